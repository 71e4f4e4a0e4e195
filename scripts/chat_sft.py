"""Fine-tune a base model on conversations, so that it replies.

    python -m scripts.chat_sft                                            the embedded conversations
    python -m scripts.chat_sft --data embedded:1,my.jsonl:2 --epochs 2
    torchrun --standalone --nproc_per_node=8 -m scripts.chat_sft -- --data smoltalk:9,embedded:1

A line of a JSONL file is {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}; only
what the assistant says is learned. Everything goes to NANOGKA_BASE_DIR/runs/<run>, as in scripts.base_train, with
bad_conversations.jsonl: what was left out, where and why. `--resume auto` continues a run that was stopped.
"""

import argparse
import sys

from nanogka.cli import from_flags, parse_flags, run_script
from nanogka.distributed import Ranks
from nanogka.problems import Problems
from nanogka.train.chat import ChatSettings
from nanogka.train.launch import launch
from tasks.chat_training import prepare, validation


def fine_tune(args: argparse.Namespace) -> int:
    """Prepare and train; returns the exit code."""
    ranks, problems = Ranks.from_environment(), Problems()
    settings = from_flags(ChatSettings, args, problems)
    preparation = prepare(settings, ranks, problems)
    name = preparation.folder.name
    afterwards = f"evaluate: python -m scripts.chat_eval --run {name}\ntalk: python -m scripts.chat_cli --run {name}"
    return launch("chat_sft", preparation, lambda: [validation(preparation)], afterwards)


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    args = parse_flags(ChatSettings, "chat_sft", __doc__, argv)
    return run_script(lambda: fine_tune(args), "chat_sft")


if __name__ == "__main__":
    sys.exit(main())
