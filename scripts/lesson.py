"""Print the numbers of docs/lesson.md for models that you trained. It needs Node.js, which runs the pages' script.

python -m scripts.lesson                                              d3-successor and d3-gaussian
python -m scripts.lesson --successor s1,s2,s3 --gaussian g1,g2,g3     ranges over several seeds
"""

import sys
from dataclasses import dataclass

from nanogka.common.cli import command, flag
from nanogka.common.errors import Errors


@dataclass(frozen=True)
class Settings:
    """Settings."""

    successor: str = flag("d3-successor", "tags or folders of runs of the mixer successor, separated by commas")
    gaussian: str = flag("d3-gaussian", "tags or folders of runs of the mixer gaussian, separated by commas")


def body(settings: Settings, errors: Errors) -> None:
    """Load the runs, measure, print the table."""
    from nanogka.common.formatting import plain_table
    from nanogka.page.lesson import lesson_rows
    from nanogka.runs import find_run, load_run

    runs = {
        name: [
            errors.capture(lambda run=run, name=name: load_run(find_run(run, flag=f"--{name}")))
            for run in getattr(settings, name).split(",")
        ]
        for name in ("successor", "gaussian")
    }
    errors.raise_if_any()
    rows = errors.capture(lambda: lesson_rows(runs["successor"], runs["gaussian"]))
    errors.raise_if_any()
    print(plain_table([("exercise", "model", "quantity", "value"), *rows], left=3))


main = command("lesson", Settings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
