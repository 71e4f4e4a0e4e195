"""Train families of models at several sizes and seeds and compare them.

    python -m scripts.study docs/research/families.yaml                run the missing jobs and write the report
    python -m scripts.study docs/research/families.yaml --dry-run      list the jobs and their costs
    python -m scripts.study docs/research/families.yaml --report       only write the report

Each family uses its best learning rate at a size. `nanogka.study.grid` describes the YAML file. Each finished job is a
line of a .jsonl file next to it and never runs again. Rerun the same command to continue a study that was stopped.
"""

import sys
from dataclasses import dataclass
from typing import Any

from nanogka.common.cli import command, flag
from nanogka.common.errors import Errors
from nanogka.common.files import expand_path


@dataclass(frozen=True)
class Settings:
    """Settings."""

    grid: str = flag("", "YAML file of the study", positional=True)
    results: str = flag("", "file of finished jobs (default: the grid file with the suffix .jsonl)")
    output: str = flag("", "folder for the report (default: the folder of the results)")
    workers: int | None = flag(
        None, "number of parallel jobs (default: one per GPU, or one per core without GPUs)", ge=1, le=1024
    )
    only: str = flag("", "families to train, separated by commas (default: all)")
    sizes: str = flag("", "sizes to train, separated by commas (default: all)")
    dry_run: bool = flag(False, "list the jobs and stop")
    report: bool = flag(False, "write the report from the existing results and stop")
    lead: str = flag("", "further grids, separated by commas, whose differences are drawn in the figure of the lead")


def body(settings: Settings, errors: Errors) -> int:
    """List, run or report. Returns the exit code."""
    from nanogka.study.grid import read_grid
    from nanogka.study.plan import Results, read_results
    from nanogka.study.runner import Study

    path = expand_path(settings.grid)
    found = errors.require(path.is_file(), "--grid", settings.grid, "a YAML file")
    grid: Any = errors.capture(lambda: read_grid(path)) if found else None  # a grid, once there are no errors
    errors.raise_if_any()
    file = expand_path(settings.results) if settings.results else path.with_suffix(".jsonl")
    code = 0
    if settings.report:
        results = Results(read_results(file))
    else:
        only, sizes = (tuple(filter(None, text.split(","))) for text in (settings.only, settings.sizes))
        study = Study(grid, file, settings.workers, only, sizes)
        if settings.dry_run:
            print(study.describe())
            return 0
        code, results = study.run(), study.results
    if settings.report or results.rows:
        from nanogka.study.report import write_report  # needs pandas

        folder = expand_path(settings.output) if settings.output else file.parent
        others = []
        for other in map(expand_path, filter(None, settings.lead.split(","))):
            others.append((read_grid(other), Results(read_results(other.with_suffix(".jsonl")))))
        for part in write_report(grid, results, folder / f"{file.stem}.md", others):
            print(part)
    return code


main = command("study", Settings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
