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
from nanogka.common.formatting import as_started
from nanogka.train.chat import ChatSettings, open_base, plan_chat, train_chat, validation
from nanogka.train.costs import describe_plan, on_hardware
from nanogka.train.plan import TrainPlan
from nanogka.train.trainer import Evaluation
from tasks.chat_data import open_source, parse_mixture


def body(settings: ChatSettings, errors: Errors) -> int:
    """Check everything, then fine-tune; returns the exit code."""
    ranks = Ranks.from_environment()
    settings.check(errors)
    errors.raise_if_any()
    sources = [(open_source(name, settings.seed), weight) for name, weight in parse_mixture(settings.data)]
    base = open_base(settings)
    plan, mixture = plan_chat(settings, base, sources, ranks)
    if settings.dry_run:
        if ranks.is_main:
            print(describe_plan(on_hardware(plan) if settings.hardware else plan))
        return 0

    name = plan.folder.name
    next_steps = [
        f"evaluate: python -m scripts.chat_eval --run {name}",
        f"talk: python -m scripts.chat_cli --run {name}",
    ]

    def evaluations(plan: TrainPlan) -> list[Evaluation]:
        return [Evaluation(settings.eval_every, validation(plan, mixture))]

    return train_chat(plan, base, mixture, evaluations, list(map(as_started, next_steps)))


main = command("chat_sft", ChatSettings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
