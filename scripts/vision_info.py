"""Costs of DeiT, of DeiT with Gaussian Kernel Attention and of the value-less transformer: the paper's table.

    python -m scripts.vision_info
    python -m scripts.vision_info --size micro --img-size 8 --num-classes 10

Prints a table, the plan for training each on ImageNet-1k, and as its last line both as one JSON document. Nothing is
allocated. FLOPs are those of one image, forward, 2 × the multiply-adds. Takes the extra `vision`.
"""

import json
import sys
from dataclasses import dataclass

from nanogka.cli import flag, run
from nanogka.formatting import MISSING, plain_table, scientific
from nanogka.problems import Problems
from nanogka.runtime import PEAKS
from nanogka.vision.settings import RECIPES

GPU = "H100"  # that the plan is made for
SIZES = ("tiny", "small", "base", "micro")
HEADER = ["", "parameters", "attention", "σ", "MLP", "tokens", "FLOPs", "top-1 in the paper"]


@dataclass(frozen=True)
class Settings:
    """The flags."""

    size: str = flag("paper", "one size, or the paper's three", ("paper", *SIZES))
    img_size: int | None = flag(None, "pixels along a side (default: 224, micro 8)")
    patch_size: int | None = flag(None, "pixels along a side of a patch (default: 16, micro 2)")
    num_classes: int | None = flag(None, "classes (default: 1000, micro 10)")


def format_costs(costs: dict[str, dict]) -> str:
    """The costs as an aligned table."""
    rows = [HEADER]
    for name, cost in costs.items():
        millions = [f"{cost[part] / 1e6:.2f} M" for part in ("attention", "mlp")]
        top1 = MISSING if cost["paper_top1"] is None else f"{cost['paper_top1']:.2f}"
        sizes = [f"{cost['parameters']:,}", millions[0], f"{cost['bandwidths']}", millions[1], f"{cost['tokens']}"]
        rows.append([name, *sizes, f"{cost['flops'] / 1e9:.2f} G", top1])
    return plain_table(rows)


def format_plan(plan: dict[str, dict]) -> str:
    """The plan as an aligned table."""
    rows = [["", "FLOPs", "hours", "hours with 8", "images / s"]]
    for name, one in plan.items():
        hours = [f"{one['hours']:.1f}", f"{one['hours'] / 8:.1f}"]
        rows.append([name, scientific(one["flops"]), *hours, f"{one['images_per_second']:,.0f}"])
    return plain_table(rows)


def body(settings: Settings, problems: Problems) -> None:
    """Print the costs."""
    limits = {"img_size": 4096, "patch_size": 256, "num_classes": 10**6}
    options = {name: value for name in limits if (value := getattr(settings, name)) is not None}
    for name, value in options.items():
        most = limits[name]
        problems.check(1 <= value <= most, f"--{name.replace('_', '-')}", value, f"an integer from 1 to {most}")
    pixels = settings.img_size or (8 if settings.size == "micro" else 224)
    patch = settings.patch_size or (2 if settings.size == "micro" else 16)
    whole = patch < 1 or (pixels >= patch and pixels % patch == 0)
    problems.check(whole, "--img-size", pixels, f"a multiple of the patch, {patch}")
    problems.raise_any()
    try:
        from nanogka.vision.accounting import ASSUMED_MFU, collect_costs, plan_imagenet
    except ImportError as error:
        raise ValueError(f'takes timm: pip install "nanogka[vision]" ({error})') from error
    sizes = SIZES[:3] if settings.size == "paper" else (settings.size,)
    costs = collect_costs(sizes, **options)
    print(format_costs(costs))
    epochs, peak = RECIPES["deit"]["epochs"], PEAKS[GPU][0]
    plan = plan_imagenet(costs, epochs, peak)
    print(
        f"\nImageNet-1k, {epochs} epochs, on one {GPU} at {ASSUMED_MFU:.0%} of {peak:.3g} FLOP/s (computed, not run):"
    )
    print(format_plan(plan))
    print(json.dumps({"costs": costs, "plan": plan}))


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    return run(Settings, body, "vision_info", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
