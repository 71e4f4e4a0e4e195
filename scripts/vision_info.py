"""Print the costs of the vision transformers and the paper's accuracy.

    python -m scripts.vision_info

The costs are parameters, FLOPs and ImageNet training time. FLOPs are those of one forward pass over one image. Training
costs are computed, not measured. Needs the extra `vision`.
"""

import sys
from dataclasses import dataclass

from nanogka.common.cli import command, flag
from nanogka.common.errors import Errors
from nanogka.common.runtime import GPUS

GPU = "H100"


@dataclass(frozen=True)
class Settings:
    """Settings."""

    sizes: str = flag("tiny,small,base", "sizes, separated by commas: tiny, small, base, micro")


def body(settings: Settings, errors: Errors) -> None:
    """Print the table."""
    errors.raise_if_any()
    try:
        from nanogka.vision.accounting import EPOCHS, format_costs, table_costs
        from nanogka.vision.models import SIZES
    except ImportError as error:
        raise ValueError(f"timm is missing: pip install -e '.[vision]' ({error})") from error
    sizes = tuple(settings.sizes.split(","))
    errors.require(set(sizes) <= set(SIZES), "--sizes", settings.sizes, f"names of {', '.join(SIZES)}")
    errors.raise_if_any()
    peak = GPUS[GPU].peak_flops
    assert peak, "its data sheet has it"
    print(format_costs(table_costs(sizes), peak))
    print(f"\nHours: ImageNet-1k, {EPOCHS} epochs, one {GPU} at {GPUS[GPU].usual_mfu:.0%} of {peak:.3g} FLOP/s.")


main = command("vision_info", Settings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
