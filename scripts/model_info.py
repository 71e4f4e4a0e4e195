"""Print a model's parameters, FLOPs, training horizon and decode cache.

    python -m scripts.model_info --depth 20 --attention gaussian
    python -m scripts.model_info --depth 20 --attention gaussian --measure   # does the mixer declare what it does?

Prints a table. With `--json`, or if stdout is a file or pipe, also prints the numbers as one line of JSON. The model is
built on the meta device, so depth 40 takes seconds and little memory.
"""

import sys
from dataclasses import dataclass

from nanogka.common.cli import command, flag, json_flag, print_json
from nanogka.common.errors import Errors
from nanogka.train.costs import describe_costs, describe_measured, format_costs
from nanogka.train.settings import ModelSettings


@dataclass(frozen=True)
class Settings(ModelSettings):
    """Settings."""

    vocab_size: int = flag(32768, "vocabulary size")
    target_param_data_ratio: float | None = flag(
        None, "training tokens per matrix or lm_head parameter (default: the mixer's)", gt=0
    )
    total_batch_size: int | None = flag(None, "tokens per step (default: computed from the horizon)", ge=1)
    measure: bool = flag(False, "count the FLOPs and saved tensors of small layers too, next to the declared ones")
    json: bool = json_flag()


def body(settings: Settings, errors: Errors) -> None:
    """Print the costs of one configuration."""
    config = errors.capture(lambda: settings.config(settings.vocab_size))
    errors.raise_if_any()
    costs = describe_costs(config, settings.target_param_data_ratio, settings.total_batch_size)
    if settings.measure:
        costs["measured"] = describe_measured(config)
    print(format_costs(costs))
    print_json(costs, settings.json)


main = command("model_info", Settings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
