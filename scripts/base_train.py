"""Pretrain a model.

    python -m scripts.base_train --depth 4 --sequence-len 512 --num-iterations 200 --total-batch-size 8192
    python -m scripts.launch --nproc_per_node=8 -m scripts.base_train -- --depth 20 --data fineweb-edu --device cuda
    python -m scripts.base_train --depth 20 --dry-run          print the plan and its cost, train nothing

Everything goes to NANOGKA_BASE_DIR/runs/<run>: config.yaml, metrics.jsonl, checkpoints. `--resume auto` continues a
run that was stopped and reproduces the losses of an uninterrupted run.
"""

import sys

from nanogka.common.cli import command
from nanogka.common.distributed import Ranks
from nanogka.common.errors import Errors
from nanogka.train.pretraining import plan_pretraining
from nanogka.train.run import train_run
from nanogka.train.settings import TrainSettings
from tasks import CORE


def body(settings: TrainSettings, errors: Errors) -> int:
    """Check everything, then train; returns the exit code."""
    settings.check(errors)
    errors.raise_if_any()
    return train_run(*plan_pretraining(settings, Ranks.from_environment(), CORE))


main = command("base_train", TrainSettings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
