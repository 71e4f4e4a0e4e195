"""Write a run's report: report.md, report.html (one file, figures and all) and figures in the run's folder.

    python -m scripts.report --run d4-gaussian
    python -m scripts.report --run d4-gaussian --compare runs/elsewhere/d4-dot_product

A finished run of another mixer with the same settings is found by itself and stands beside it. Prints five lines that
sum the report up, and its path.
"""

import sys
from dataclasses import dataclass

from nanogka.common.cli import command, flag
from nanogka.common.errors import Errors
from nanogka.common.files import base_dir
from nanogka.common.formatting import one_line


@dataclass(frozen=True)
class Settings:
    """Settings."""

    run: str | None = flag(None, "a run's tag or folder (default: the base run trained last)")
    compare: str | None = flag(None, "tag or folder of the run beside it (default: found by its settings)")


def body(settings: Settings, errors: Errors) -> None:
    """Read the runs, write the report, print its summary."""
    from nanogka.plots.counterparts import open_report_run
    from nanogka.plots.report import write_report

    chosen = errors.capture(lambda: open_report_run(settings.run))
    other = None
    if settings.compare is not None:
        other = errors.capture(lambda: open_report_run(settings.compare), renamed={"--run": "--compare"})
    same = chosen and other and chosen.folder.resolve() == other.folder.resolve()
    errors.require(not same, "--compare", settings.compare, "another run than --run")
    errors.raise_if_any()
    path, summary = write_report(chosen, base_dir() / "runs", other)
    print("\n".join(map(one_line, [*summary, f"report: {path}"])))


main = command("report", Settings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
