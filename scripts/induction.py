"""Measure what mixers can do in context: copy repeated random tokens, recall values by their keys.

    python -m scripts.induction docs/study/families.yaml
    python -m scripts.induction docs/study/families.yaml --only baseline,gka --tasks repeat --depths 1,2

The families are those of a study's grid, of which nothing else is used. `nanogka.study.induction` describes the tasks,
`nanogka.study.induction_run` how they are tried. Trials are lines of a .jsonl file and are not repeated; a table is
printed, and a plot of each task is written beside that file.
"""

import sys

from nanogka.cli import run
from nanogka.problems import Problems
from nanogka.runtime import pick_device
from nanogka.study.induction_run import InductionSettings, open_induction, plot, table


def body(settings: InductionSettings, problems: Problems) -> None:
    """Try, print the table, draw the plots."""
    settings.check(problems)
    device = problems.attempt(lambda: pick_device(settings.device))
    induction = open_induction(settings, device, problems, lambda line: print(line, flush=True))
    rows = induction.run()
    print(table(rows, induction.families))
    for task in induction.tasks:
        name = f"{induction.path.stem}-{task}.png"
        print(plot(task, rows, induction.families, induction.path.with_name(name)))


def main(argv: list[str] | None = None) -> int:
    """The command line; its first word may be the grid."""
    words = sys.argv[1:] if argv is None else argv
    if words and not words[0].startswith("-"):
        words = ["--grid", *words]
    return run(InductionSettings, body, "induction", __doc__, words)


if __name__ == "__main__":
    sys.exit(main())
