"""Train DeiT, the value-less transformer and GKA of one small shape alike, with several seeds, and compare them.

    python -m scripts.vision_compare                                 digits, three models × three seeds
    python -m scripts.vision_compare --data fashion-mnist            hours on a CPU; stopped, it goes on where it was
    python -m scripts.vision_compare --data fashion-mnist --table    only the table of what is finished
    python -m scripts.vision_compare --info                          the paper's table of costs, the plan for ImageNet
    python -m scripts.vision_compare --info --size micro --num-classes 26

Prints a Markdown table and, as the last line, the same as JSON. `--info` trains and allocates nothing: it prints
parameters and FLOPs (of one image, forward, 2 × the multiply-adds) and the cost of training each on ImageNet-1k. Takes
the extra `vision`.
"""

import json
import sys
from dataclasses import dataclass

from nanogka.common.cli import command, flag
from nanogka.common.errors import Errors
from nanogka.common.files import base_dir

ATTENTIONS = {"softmax": "", "vlt": "vlt", "gka": "gka", "gka_affine": "gka_affine"}
SIZES = ("tiny", "small", "base", "micro")
GPU = "H100"  # of the plan


@dataclass(frozen=True)
class Settings:
    """The flags; the recipe of the data sets all else."""

    data: str = flag("digits", "data to learn from, as scripts.vision_train takes it")
    name: str = flag("", "beginning of the names of the runs (default: the data's)")
    attentions: str = flag("softmax,vlt,gka", "attentions to compare")
    seeds: int = flag(3, "number of runs of each attention", ge=1, le=1000)
    epochs: int | None = flag(None, "passes over the data (default: the recipe's)", ge=1, le=10**6)
    eval_every: int = flag(0, "epochs between evaluations; 0: only at the end", ge=0, le=10**6)
    table: bool = flag(False, "train nothing: print the table of what is finished")
    device: str = flag("auto", "device to train on: auto, cpu, cuda, cuda:N or mps")
    info: bool = flag(False, "train nothing: print the costs of the models")
    size: str = flag("paper", "with --info: one size, or the paper's three", ("paper", *SIZES))
    img_size: int | None = flag(None, "with --info: pixels along a side (default: 224, micro 8)", ge=1, le=4096)
    patch_size: int | None = flag(None, "with --info: pixels of a patch's side (default: 16, micro 2)", ge=1, le=256)
    num_classes: int | None = flag(None, "with --info: classes (default: 1000, micro 10)", ge=1, le=10**6)


def print_costs(settings: Settings, errors: Errors) -> None:
    """Print the costs of the models and the plan for ImageNet-1k."""
    from nanogka.common.runtime import PEAKS
    from nanogka.vision import needs_timm
    from nanogka.vision.settings import RECIPES

    options = {name: getattr(settings, name) for name in ("img_size", "patch_size", "num_classes")}
    options = {name: value for name, value in options.items() if value is not None}
    pixels = settings.img_size or (8 if settings.size == "micro" else 224)
    patch = settings.patch_size or (2 if settings.size == "micro" else 16)
    errors.require(pixels % patch == 0, "--img-size", pixels, f"a multiple of the patch, {patch}")
    with needs_timm(errors):
        from nanogka.vision.accounting import ASSUMED_MFU, collect_costs, format_costs, plan_imagenet
    errors.raise_if_any()
    costs = collect_costs(SIZES[:3] if settings.size == "paper" else (settings.size,), **options)
    epochs, peak = RECIPES["deit"]["epochs"], PEAKS[GPU][0]
    plan = plan_imagenet(costs, epochs, peak)
    title = f"ImageNet-1k, {epochs} epochs, on one {GPU} at {ASSUMED_MFU:.0%} of {peak:.3g} FLOP/s (computed, not run):"
    print(format_costs(costs, plan, title))
    print(json.dumps({"costs": costs, "plan": plan}))


def body(settings: Settings, errors: Errors) -> int:
    """Train what is not finished, then print the table."""
    from nanogka.common.distributed import Ranks
    from nanogka.vision import needs_timm
    from nanogka.vision.settings import VisionSettings

    if settings.info:
        print_costs(settings, errors)
        return 0
    names = [name for name in settings.attentions.split(",") if name]
    known = bool(names) and all(name in ATTENTIONS for name in names)
    errors.require(known, "--attentions", settings.attentions, f"some of {','.join(ATTENTIONS)}")
    common = {name: getattr(settings, name) for name in ("data", "epochs", "eval_every", "device")}
    plain = VisionSettings(**common, run=settings.name)
    plain.with_recipe().check(errors)
    with needs_timm(errors):
        from nanogka.vision.compare import collect_outcomes, format_outcomes, plan_runs
        from nanogka.vision.run import plan_images, train_images
    errors.raise_if_any()
    planned = list(plan_runs(plain, [ATTENTIONS[name] for name in names], settings.seeds))
    ranks = Ranks()
    for one in () if settings.table else planned:
        run = plan_images(one, ranks, Errors())
        print(f"{one.run}: {run.num_iterations:,} steps", flush=True)
        if code := train_images(run):
            return code
    print(format_outcomes(collect_outcomes(base_dir() / "vision", planned)))
    return 0


main = command("vision_compare", Settings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
