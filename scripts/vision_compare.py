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

from nanogka.cli import command, flag
from nanogka.files import base_dir
from nanogka.problems import Problems

ATTENTIONS = {"softmax": "", "vlt": "vlt", "gka": "gka", "gka_affine": "gka_affine"}
SIZES = ("tiny", "small", "base", "micro")
GPU = "H100"  # of the plan


@dataclass(frozen=True)
class Settings:
    """The flags; the recipe of the data sets all else."""

    data: str = flag("digits", "data to learn from, as scripts.vision_train takes it")
    name: str = flag("", "beginning of the names of the runs (default: the data's)")
    attentions: str = flag("softmax,vlt,gka", "attentions to compare")
    seeds: int = flag(3, "number of runs of each attention", least=1, most=1000)
    epochs: int | None = flag(None, "passes over the data (default: the recipe's)", least=1, most=10**6)
    eval_every: int = flag(0, "epochs between evaluations; 0: only at the end", least=0, most=10**6)
    table: bool = flag(False, "train nothing: print the table of what is finished")
    device: str = flag("auto", "device to train on: auto, cpu, cuda, cuda:N or mps")
    info: bool = flag(False, "train nothing: print the costs of the models")
    size: str = flag("paper", "with --info: one size, or the paper's three", ("paper", *SIZES))
    img_size: int | None = flag(None, "with --info: pixels along a side (default: 224, micro 8)", least=1, most=4096)
    patch_size: int | None = flag(
        None, "with --info: pixels of a patch's side (default: 16, micro 2)", least=1, most=256
    )
    num_classes: int | None = flag(None, "with --info: classes (default: 1000, micro 10)", least=1, most=10**6)


def print_costs(settings: Settings, problems: Problems) -> None:
    """Print the costs of the models and the plan for ImageNet-1k."""
    from nanogka.runtime import PEAKS
    from nanogka.vision import needs_timm
    from nanogka.vision.settings import RECIPES

    options = {name: getattr(settings, name) for name in ("img_size", "patch_size", "num_classes")}
    options = {name: value for name, value in options.items() if value is not None}
    pixels = settings.img_size or (8 if settings.size == "micro" else 224)
    patch = settings.patch_size or (2 if settings.size == "micro" else 16)
    problems.check(pixels % patch == 0, "--img-size", pixels, f"a multiple of the patch, {patch}")
    with needs_timm(problems):
        from nanogka.vision.accounting import ASSUMED_MFU, collect_costs, format_costs, plan_imagenet
    problems.raise_any()
    costs = collect_costs(SIZES[:3] if settings.size == "paper" else (settings.size,), **options)
    epochs, peak = RECIPES["deit"]["epochs"], PEAKS[GPU][0]
    plan = plan_imagenet(costs, epochs, peak)
    title = f"ImageNet-1k, {epochs} epochs, on one {GPU} at {ASSUMED_MFU:.0%} of {peak:.3g} FLOP/s (computed, not run):"
    print(format_costs(costs, plan, title))
    print(json.dumps({"costs": costs, "plan": plan}))


def body(settings: Settings, problems: Problems) -> int:
    """Train what is not finished, then print the table."""
    from nanogka.distributed import Ranks
    from nanogka.vision import needs_timm
    from nanogka.vision.settings import VisionSettings

    if settings.info:
        print_costs(settings, problems)
        return 0
    names = [name for name in settings.attentions.split(",") if name]
    known = bool(names) and all(name in ATTENTIONS for name in names)
    problems.check(known, "--attentions", settings.attentions, f"some of {','.join(ATTENTIONS)}")
    common = {name: getattr(settings, name) for name in ("data", "epochs", "eval_every", "device")}
    plain = VisionSettings(**common, run=settings.name)
    plain.with_recipe().check(problems)
    with needs_timm(problems):
        from nanogka.train.loop import Evaluation, train
        from nanogka.vision.compare import collect_outcomes, format_outcomes, plan_runs
        from nanogka.vision.run import prepare
    problems.raise_any()
    planned = list(plan_runs(plain, [ATTENTIONS[name] for name in names], settings.seeds))
    ranks = Ranks()
    for one in () if settings.table else planned:
        context = prepare(one, ranks, Problems())
        print(f"{one.run}: {context.num_iterations:,} steps", flush=True)
        if code := train(context, [Evaluation(one.eval_every, context.measure)]):
            return code
    print(format_outcomes(collect_outcomes(base_dir() / "vision", planned)))
    return 0


main = command("vision_compare", Settings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
