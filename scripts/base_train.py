"""Pretrain a model.

    python -m scripts.base_train --depth 4 --sequence-len 512 --num-iterations 200 --total-batch-size 8192
    python -m scripts.launch --nproc_per_node=8 -m scripts.base_train -- --depth 20 --data fineweb-edu --device cuda
    python -m scripts.base_train --depth 20 --dry-run          print the plan and its cost, train nothing
    python -m scripts.base_train --depth 20 --dry-run --hardware h100 --devices 8 --price 3    on other hardware

Everything goes to NANOGKA_BASE_DIR/runs/<run>: config.yaml, metrics.jsonl, checkpoints. `--resume auto` continues a
run that was stopped and reproduces the losses of an uninterrupted run.
"""

import sys
from functools import partial

from nanogka.common.cli import command
from nanogka.common.distributed import Ranks
from nanogka.common.errors import Errors
from nanogka.common.formatting import as_started
from nanogka.evaluate.bundle import open_core_tasks
from nanogka.evaluate.core import core_evaluation
from nanogka.train.costs import describe_plan, on_hardware
from nanogka.train.plan import TrainPlan
from nanogka.train.pretraining import plan_pretraining, pretraining_loader
from nanogka.train.run import train_run
from nanogka.train.settings import TrainSettings
from nanogka.train.trainer import Evaluation
from nanogka.train.validation import samples, validation
from tasks import CORE


def body(settings: TrainSettings, errors: Errors) -> int:
    """Check everything, then train; returns the exit code."""
    ranks, max_per_task = Ranks.from_environment(), settings.core_max_per_task
    settings.check(errors)
    errors.raise_if_any()
    tasks = []
    if settings.core_every > 0:
        tasks = open_core_tasks(settings.eval_bundle, CORE, max_per_task)
    plan, corpus = plan_pretraining(settings, ranks)
    if settings.dry_run:
        if ranks.is_main:
            print(describe_plan(on_hardware(plan) if settings.hardware else plan))
        return 0

    assert corpus is not None, "only a dry run may lack it"

    def evaluations(plan: TrainPlan[TrainSettings]) -> list[Evaluation]:
        found = []
        if tasks:
            core = core_evaluation(tasks, CORE, plan.tokenizer, ranks, max_per_task)
            found.append(Evaluation(settings.core_every, core))
        if settings.sample_every > 0:
            found.append(Evaluation(settings.sample_every, samples(plan)))
        # Validation comes last, so that its line is the last of a step.
        return [*found, Evaluation(settings.eval_every, validation(plan, corpus))]

    evaluate = as_started(f"evaluate: python -m scripts.base_eval --run {plan.folder.name}")
    return train_run(plan, partial(pretraining_loader, corpus), evaluations, next_steps=[evaluate])


main = command("base_train", TrainSettings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
