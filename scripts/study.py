"""Compare families of models: train each at several sizes and seeds with its own best rates, measure, report.

    python -m scripts.study docs/research/families.yaml                run the missing jobs, then write the report
    python -m scripts.study docs/research/families.yaml --dry-run      only list the jobs, their costs, and what is done
    python -m scripts.study docs/research/families.yaml --report       only write the report

`nanogka.study.grid` describes the YAML file. Finished jobs are lines of a .jsonl file beside it and are never run
again; a study that was stopped or killed goes on when it is called again. The report and its plots lie there too.
"""

import sys
from dataclasses import dataclass

from nanogka.common.cli import command, flag
from nanogka.common.errors import Errors
from nanogka.common.files import expand_path


@dataclass(frozen=True)
class Settings:
    """Settings."""

    grid: str = flag("", "the YAML file of the study", positional=True)
    results: str = flag("", "file of finished jobs (default: beside the grid, with its name and .jsonl)")
    output: str = flag("", "folder of the report (default: that of the results)")
    workers: int | None = flag(None, "jobs side by side (default: one per GPU, else one per core)", ge=1, le=1024)
    only: str = flag("", "train these families only, separated by commas (default: all)")
    sizes: str = flag("", "train these sizes only, separated by commas (default: all)")
    dry_run: bool = flag(False, "only list the jobs")
    report: bool = flag(False, "only write the report, from the results there are")


def body(settings: Settings, errors: Errors) -> int:
    """List, run or report; returns the exit code."""
    from nanogka.study.grid import read_grid  # takes pydantic
    from nanogka.study.plan import Results, read_results
    from nanogka.study.report import write_report
    from nanogka.study.runner import Study

    path = expand_path(settings.grid)
    found = errors.require(path.is_file(), "--grid", settings.grid, "a YAML file")
    grid = errors.capture(lambda: read_grid(path)) if found else None
    errors.raise_if_any()
    file = expand_path(settings.results) if settings.results else path.with_suffix(".jsonl")
    code, results = 0, None
    if settings.report:
        results = Results(read_results(file))
    else:
        only, sizes = (tuple(filter(None, text.split(","))) for text in (settings.only, settings.sizes))
        study = Study(grid, file, settings.workers, only, sizes, lambda line: print(line, flush=True))
        if settings.dry_run:
            print(study.describe())
            return 0
        code = study.run()
        if study.stopped is None and study.results.rows:
            results = study.results
    target = (expand_path(settings.output) if settings.output else file.parent) / f"{file.stem}.md"
    for part in write_report(grid, results, target) if results else ():
        print(part)
    return code


main = command("study", Settings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
