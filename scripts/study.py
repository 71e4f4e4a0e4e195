"""Compare families of models: train each at several sizes and seeds with its own best rates, measure, report.

    python -m scripts.study docs/study/families.yaml                   run what is missing, then write the report
    python -m scripts.study docs/study/families.yaml --dry-run         only list the jobs, their costs, and what is done
    python -m scripts.study docs/study/families.yaml --report          only write the report

`nanogka.study.grid` describes the YAML file. Finished jobs are lines of a .jsonl file beside it and are never run
again; a study that was stopped or killed goes on when it is called again. The report and its plots lie there too.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from nanogka.cli import flag, run
from nanogka.problems import Problems
from nanogka.study.grid import Grid, read_grid
from nanogka.study.report import write_report
from nanogka.study.runner import Study, read_results


@dataclass(frozen=True)
class Settings:
    """The flags."""

    grid: str = flag("", "the YAML file; may stand first, without its flag")
    results: str = flag("", "file of finished jobs (default: beside the grid, with its name and .jsonl)")
    workers: int | None = flag(None, "jobs side by side (default: one per GPU, else one per core)")
    only: str = flag("", "these families only, with commas between")
    sizes: str = flag("", "these sizes only, with commas between; the sweep keeps its own")
    dry_run: bool = flag(False, "only list the jobs")
    report: bool = flag(False, "only write the report, from the results there are")


def say(line: str) -> None:
    """Print a line at once, for logs."""
    print(line, flush=True)


def names(text: str) -> tuple[str, ...]:
    """The names in a list with commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def write_reports(grid: Grid, results: Path) -> None:
    """Write the report beside the results and print where its parts are."""
    for path in write_report(grid, read_results(results), results.with_suffix(".md")):
        print(path)


def body(settings: Settings, problems: Problems) -> int:
    """List, run or report; returns the exit code."""
    path = Path(settings.grid).expanduser()
    found = problems.check(path.is_file(), "--grid", settings.grid, "a YAML file")
    grid = problems.attempt(lambda: read_grid(path)) if found else None
    problems.raise_any()
    results = Path(settings.results).expanduser() if settings.results else path.with_suffix(".jsonl")
    if settings.report:
        write_reports(grid, results)
        return 0
    study = Study(grid, results, settings.workers, names(settings.only), names(settings.sizes), say)
    if settings.dry_run:
        print(study.describe())
        return 0
    code = study.run()
    if study.stopped is None and study.rows:
        write_reports(grid, results)
    return code


def main(argv: list[str] | None = None) -> int:
    """The command line; its first word may be the grid."""
    words = sys.argv[1:] if argv is None else argv
    if words and not words[0].startswith("-"):
        words = ["--grid", *words]
    return run(Settings, body, "study", __doc__, words)


if __name__ == "__main__":
    sys.exit(main())
