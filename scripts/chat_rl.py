"""Improve a chat model by reinforcement learning on checkable answers.

    python -m scripts.chat_rl --tasks addition                      the latest chat run
    python -m scripts.chat_rl --base d4-gaussian-chat --tasks addition,spelling --no-calculator
    python -m scripts.launch --nproc_per_node=8 -m scripts.chat_rl -- --tasks gsm8k --max-tokens 256

The tasks are the embedded skills (see scripts.chat_eval) and gsm8k from the Hugging Face hub. The run goes to
NANOGKA_BASE_DIR/runs/<run>, as in scripts.chat_sft. docs/rl.md explains the method. `--resume auto` continues a run
that was stopped.
"""

import sys

from nanogka.common.cli import command
from nanogka.common.distributed import Ranks
from nanogka.common.errors import Errors
from nanogka.common.runtime import pick_device
from nanogka.data.hub import Hub
from nanogka.evaluate.chat import ChatItem, ChatTask
from nanogka.train.base import open_base
from nanogka.train.rl import RewardTask, RLSettings, plan_rl
from nanogka.train.run import train_run
from tasks import gsm8k
from tasks.skills import HELD_OUT, SKILLS, TRAIN

GSM8K = "gsm8k"


def body(settings: RLSettings, errors: Errors) -> int:
    """Check everything, then train; returns the exit code."""
    ranks = Ranks.from_environment()
    settings.check(errors)
    names = list(dict.fromkeys(filter(None, (name.strip() for name in settings.tasks.split(",")))))
    known = (*(name for name, skill in SKILLS.items() if skill.measured), GSM8K)
    errors.require(bool(names) and set(names) <= set(known), "--tasks", settings.tasks, ", ".join(known))
    base = errors.capture(lambda: open_base(settings, kind="chat"))
    errors.raise_if_any()
    # Last, because it may fetch from the hub.
    ranks.init(ranks.device(pick_device(settings.device)))
    tasks = ranks.first_on_each_node(lambda: [open_task(name, settings.eval_items) for name in names])
    return train_run(*plan_rl(settings, base, tasks, ranks))


def open_task(name: str, items: int) -> RewardTask:
    """Open a task by its name."""
    if name == GSM8K:
        train, test = (Hub().items(gsm8k.DATASET, "main", split, gsm8k.from_row) for split in ("train", "test"))
        return RewardTask(name, lambda rng: rng.choice(train), ChatTask(name, test[:items], chance=0.0))
    skill = SKILLS[name]

    def draw(rng) -> ChatItem:
        question, item = skill.ask(rng, TRAIN)
        return ChatItem(question, item.answer)

    return RewardTask(name, draw, skill.task(HELD_OUT, items))


main = command("chat_rl", RLSettings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
