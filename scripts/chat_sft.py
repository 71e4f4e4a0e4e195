"""Fine-tune a base model on conversations, so that it replies.

    python -m scripts.chat_sft                                            the embedded conversations
    python -m scripts.chat_sft --data embedded:1,my.jsonl:2 --epochs 2
    torchrun --standalone --nproc_per_node=8 -m scripts.chat_sft -- --data smoltalk:9,embedded:1

A line of a JSONL file is {"messages": [{"role": "user", "content": "…"}, {"role": "assistant", "content": "…"}]}; only
what the assistant says is learned. Everything goes to NANOGKA_BASE_DIR/runs/<run>, as in scripts.base_train, with
bad_conversations.jsonl: what was left out, where and why. `--resume auto` continues a run that was stopped.
"""

import sys

from nanogka.common.cli import command
from nanogka.common.distributed import Ranks
from nanogka.common.errors import Errors
from nanogka.common.formatting import as_started
from nanogka.evaluate.bpb import measure_chat_loss
from nanogka.train.chat import ChatSettings, Mix, prepare_chat, validation
from nanogka.train.loop import Evaluation, train
from tasks.chat_data import open_source, parse_mixture


def body(settings: ChatSettings, errors: Errors) -> int:
    """Prepare and fine-tune; returns the exit code."""
    ranks = Ranks.from_environment()

    def open_sources(errors: Errors) -> Mix:
        mixture = errors.capture(lambda: parse_mixture(settings.data)) or []
        if errors.lines:
            return []
        opened = [(errors.capture(lambda n=name: open_source(n, settings.seed)), share) for name, share in mixture]
        return [(source, share) for source, share in opened if source]

    context = prepare_chat(settings, open_sources, ranks, errors)
    if ranks.is_main:
        print(context.describe(), flush=True)
    if settings.dry_run:
        return 0
    with ranks.joined(context.device, settings.rank_timeout):
        code = train(context, [Evaluation(settings.eval_every, validation(context, measure_chat_loss))])
    if ranks.is_main and code == 0:
        name = context.folder.name
        print(f"done: {context.folder}")
        print(as_started(f"evaluate: python -m scripts.chat_eval --run {name}"))
        print(as_started(f"talk: python -m scripts.chat_cli --run {name}"))
    return code


main = command("chat_sft", ChatSettings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
