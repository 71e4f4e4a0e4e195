"""Write a run's report: report.md and plots in the run's folder.

    python -m scripts.report --run d4-gaussian
    python -m scripts.report --run d4-gaussian --compare runs/elsewhere/d4-dot_product

A finished run of the other mixer with the same settings is found by itself and stands beside it. Prints the report's
path and six lines that sum it up.
"""

import argparse
import sys

from nanogka.evaluate.scores import PAPER_MEAN, PAPER_SCORES
from nanogka.plots.chat import base_of
from nanogka.plots.report import write_report
from nanogka.plots.runs import Run, load_run
from nanogka.cli import run_script
from nanogka.problems import Problems
from nanogka.runtime import base_dir
from nanogka.train.checkpoint import find_run


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(
        prog="report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--run", help="a run's tag or folder (default: the base run trained last)")
    p.add_argument("--compare", help="tag or folder of the run beside it (default: found by its settings)")
    return p


def open_run(flag: str, given: str | None, problems: Problems) -> Run | None:
    """The run that a flag names; records what is wrong with it."""
    try:
        run = load_run(find_run(given, kind=None if given else "base"))
        base = base_of(run)  # a chat run is a part of the report of the run it was made from
        return run if base is None else load_run(base)
    except ValueError as error:
        problems.collect(ValueError(str(error).replace("--run:", f"{flag}:")))
        return None


def report(args: argparse.Namespace) -> None:
    """Read the runs, write the report, print what it says."""
    problems = Problems()
    run = open_run("--run", args.run, problems)
    compare = open_run("--compare", args.compare, problems) if args.compare is not None else None
    same = run is not None and compare is not None and run.folder.resolve() == compare.folder.resolve()
    problems.check(not same, "--compare", args.compare, "another run than --run")
    problems.raise_any()
    paper_scores = {**PAPER_SCORES, "mean of the six": PAPER_MEAN}
    written = write_report(run, base_dir() / "runs", paper_scores, compare)
    print("\n".join([*written.summary, f"report: {written.path}"]))


def main(argv: list[str] | None = None) -> int:
    """Write one run's report."""
    args = parser().parse_args(argv)
    return run_script(lambda: report(args), "report")


if __name__ == "__main__":
    sys.exit(main())
