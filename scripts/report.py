"""Write a run's report: report.md, report.html (one file, figures and all) and figures in the run's folder.

    python -m scripts.report --run d4-gaussian
    python -m scripts.report --run d4-gaussian --compare runs/elsewhere/d4-dot_product

A finished run of another mixer with the same settings is found by itself and stands beside it. Prints five lines that
sum the report up, and its path.
"""

import sys
from dataclasses import dataclass

from nanogka.cli import flag, run
from nanogka.formatting import one_line
from nanogka.plots.report import write_report
from nanogka.plots.runs import Run, base_folder, load_run
from nanogka.problems import Problems
from nanogka.runs import open_run
from nanogka.runtime import base_dir


@dataclass(frozen=True)
class Settings:
    """The flags."""

    run: str | None = flag(None, "a run's tag or folder (default: the base run trained last)")
    compare: str | None = flag(None, "tag or folder of the run beside it (default: found by its settings)")


def open_report_run(name: str, given: str | None, problems: Problems) -> Run | None:
    """The run that the flag `name` asks for; a chat run's report is that of the run it was made from."""
    try:
        found = open_run(given or None, load_run, None if given else "base")
        base = base_folder(found)
        return found if base is None else load_run(base)
    except ValueError as error:
        problems.collect(ValueError(str(error).replace("--run:", f"{name}:")))
        return None


def body(settings: Settings, problems: Problems) -> None:
    """Read the runs, write the report, print its summary."""
    chosen = open_report_run("--run", settings.run, problems)
    other = None if settings.compare is None else open_report_run("--compare", settings.compare, problems)
    same = chosen and other and chosen.folder.resolve() == other.folder.resolve()
    problems.check(not same, "--compare", settings.compare, "another run than --run")
    problems.raise_any()
    path, summary = write_report(chosen, base_dir() / "runs", other)
    print("\n".join(map(one_line, [*summary, f"report: {path}"])))


def main(argv: list[str] | None = None) -> int:
    """Write one run's report."""
    return run(Settings, body, "report", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
