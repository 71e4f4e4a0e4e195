"""Fine-tune a base model on conversations to make a chat model.

    python -m scripts.chat_sft                                            the embedded conversations
    python -m scripts.chat_sft --data embedded:1,my.jsonl:2 --epochs 2
    python -m scripts.launch --nproc_per_node=8 -m scripts.chat_sft -- --data smoltalk:9,embedded:1 --device cuda

A line of a JSONL file is {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}. The
loss covers only what the assistant says. Everything goes to NANOGKA_BASE_DIR/runs/<run>, as in scripts.base_train. The
file bad_conversations.jsonl lists the skipped conversations and why. `--resume auto` continues a run that was stopped.
"""

import sys

from nanogka.common.cli import command
from nanogka.common.distributed import Ranks
from nanogka.common.errors import Errors
from nanogka.common.runtime import pick_device
from nanogka.train.base import open_base
from nanogka.train.chat import ChatSettings, plan_chat
from nanogka.train.run import train_run
from tasks.chat_data import open_source, parse_mixture


def body(settings: ChatSettings, errors: Errors) -> int:
    """Check everything, then fine-tune; returns the exit code."""
    settings.check(errors)
    errors.raise_if_any()
    mix, base, ranks = parse_mixture(settings.data), open_base(settings), Ranks.from_environment()
    # Last, because it may fetch from the hub.
    ranks.init(ranks.device(pick_device(settings.device)))
    opened = ranks.first_on_each_node(lambda: [open_source(name, settings.seed) for name, _ in mix])
    sources = [(source, weight) for source, (_, weight) in zip(opened, mix)]
    return train_run(*plan_chat(settings, base, sources, ranks))


main = command("chat_sft", ChatSettings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
