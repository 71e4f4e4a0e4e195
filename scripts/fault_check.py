"""Kill a training of two ranks at random moments, resume it each time, and check that nothing was lost.

    bash scripts/fault_check.sh                    20 kills, about five minutes on two cores
    bash scripts/fault_check.sh --kills 5 --seed 7

Prints a line for each kill and for each promise, and JSON last. Exit code 0: all held, 1: one was broken.
"""

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from nanogka.cli import run_script
from nanogka.problems import Problems
from nanogka.train.faults import check_faults


def run(args: argparse.Namespace) -> int:
    """Checks and prints; returns the exit code."""
    problems = Problems()
    problems.check(args.kills >= 1, "--kills", args.kills, "an integer of at least 1")
    problems.check(args.ranks >= 1, "--ranks", args.ranks, "an integer of at least 1")
    problems.raise_any()
    base = Path(tempfile.mkdtemp(prefix="nanogka-faults-"))
    report = check_faults(base, args.kills, args.seed, args.ranks, lambda line: print(line, flush=True))
    for promise, broken in report.promises.items():
        print(f"{'FAIL' if broken else 'PASS'}  {promise}" + "".join(f"\n      {line}" for line in broken))
    sound = not any(leg.problems for leg in report.legs)
    print(f"{'PASS' if sound else 'FAIL'}  after each of {len(report.legs)} kills the newest checkpoint loads")
    if report.passed:
        shutil.rmtree(base)
    else:
        print(f"kept for a look: {base}")
    half = sum(leg.partial for leg in report.legs)
    summary = {"passed": report.passed, "kills": len(report.legs), "half_written": half, "seconds": report.seconds}
    print(json.dumps(summary))
    return 0 if report.passed else 1


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.fault_check", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20, help="how often to kill it (default: 20)")
    parser.add_argument("--seed", type=int, default=1, help="of the moments and the kinds (default: 1)")
    parser.add_argument("--ranks", type=int, default=2, help="processes of the training (default: 2)")
    args = parser.parse_args(argv)
    return run_script(lambda: run(args), "fault_check")


if __name__ == "__main__":
    sys.exit(main())
