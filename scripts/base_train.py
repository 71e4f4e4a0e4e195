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
