"""Write a report on a run and compare it with other runs.

    python -m scripts.report --run d4-successor
    python -m scripts.report --run d4-successor --compare d4-gaussian,runs/elsewhere/d4-dot_product

Writes report.html (self-contained), report.md and plots/ to the run's folder. Prints a five-line summary and the path.
Ratios are --run divided by --compare.
"""

import sys
from dataclasses import dataclass

from nanogka.common.cli import command, flag
from nanogka.common.errors import Errors
from nanogka.common.files import base_dir
from nanogka.common.formatting import one_line


@dataclass(frozen=True)
class Settings:
    """Report."""

    run: str | None = flag(None, "tag or folder of a run (default: the latest base run)")
    compare: str | None = flag(None, "tags or folders of runs to compare with, separated by commas")
    overwrite: bool = flag(False, "rewrite the report even if nothing has changed")


def body(settings: Settings, errors: Errors) -> None:
    """Read the runs, write the report, print its summary."""
    from nanogka.plots.report import write_report
    from nanogka.plots.trained_run import open_report_run

    chosen = errors.capture(lambda: open_report_run(settings.run))
    names = [name for name in (settings.compare or "").split(",") if name]
    others = [errors.capture(lambda name=name: open_report_run(name, "--compare")) for name in names]
    errors.raise_if_any()
    path, summary = write_report(chosen, base_dir() / "runs", others, settings.overwrite)
    last = f"report: {path}" if summary else f"report exists already: {path} (--overwrite writes it again)"
    print("\n".join(map(one_line, [*summary, last])))


main = command("report", Settings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
