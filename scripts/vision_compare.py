"""Train DeiT, the value-less transformer and GKA of one small shape alike, with several seeds, and compare them.

    python -m scripts.vision_compare                                 digits, three models × three seeds
    python -m scripts.vision_compare --data fashion-mnist            hours on a CPU; stopped, it goes on where it was
    python -m scripts.vision_compare --data fashion-mnist --table    only the table of what is finished

Prints a Markdown table and, as the last line, the same as JSON. Takes the extra `vision`.
"""

import sys
from dataclasses import dataclass

from nanogka.cli import flag, run
from nanogka.distributed import Ranks
from nanogka.problems import Problems
from nanogka.runtime import base_dir
from nanogka.vision.settings import VisionSettings

ATTENTIONS = {"softmax": "", "vlt": "vlt", "gka": "gka"}


@dataclass(frozen=True)
class Settings:
    """The flags; what else a run has is its recipe's."""

    data: str = flag("digits", "what to learn from: as scripts.vision_train takes it")
    name: str = flag("", "beginning of the names of the runs (default: the data's)")
    attentions: str = flag("softmax,vlt,gka", "which to compare")
    seeds: int = flag(3, "runs of each")
    epochs: int | None = flag(None, "passes over the data (default: the recipe's)")
    eval_every: int = flag(0, "epochs between evaluations; 0: only at the end")
    table: bool = flag(False, "train nothing: the table of what is finished")
    device: str = flag("auto", "auto, cpu, cuda, cuda:N or mps")


def body(settings: Settings, problems: Problems) -> int:
    """Train what is not finished, then print the table."""
    names = [name for name in settings.attentions.split(",") if name]
    known = bool(names) and all(name in ATTENTIONS for name in names)
    problems.check(known, "--attentions", settings.attentions, f"some of {','.join(ATTENTIONS)}")
    problems.check(1 <= settings.seeds <= 1000, "--seeds", settings.seeds, "an integer from 1 to 1000")
    common = {name: getattr(settings, name) for name in ("data", "epochs", "eval_every", "device")}
    plain = VisionSettings(**common, run=settings.name)
    plain.with_recipe().check(problems)
    try:
        from nanogka.train.loop import Evaluation, train
        from nanogka.vision.compare import collect_outcomes, format_outcomes, plan_runs
        from nanogka.vision.run import prepare
    except ImportError as error:
        problems.lines.append(f'takes timm: pip install "nanogka[vision]" ({error})')
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


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    return run(Settings, body, "vision_compare", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
