"""From text to a trained, evaluated, talking model: what speedrun.sh runs once the set-up is done.

Prints the plan for this machine, then runs its commands one by one. What is done already is skipped and a training run
that was stopped goes on, so calling it again is safe. Environment variables override the choices:

"""

import argparse
import os
import subprocess
import sys
import time

from nanogka.cli import run_script
from nanogka.train.metrics import duration
from nanogka.train.plan import VARIABLES, make_plan

__doc__ += "\n".join(f"    {name:<18} {what}" for name, what in VARIABLES.items()) + "\n"


def speedrun() -> int:
    """Plan and run; returns the exit code of the first command that fails, or 0."""
    began = time.monotonic()
    plan = make_plan(os.environ)
    print(plan.describe(), flush=True)
    if os.environ.get("DRY_RUN") == "1":
        return 0
    for i, step in enumerate(plan.steps, 1):
        done = " (done already)" if step.done else ""
        print(f"\n[{i}/{len(plan.steps)}] {step.title}{done}", flush=True)
        if step.done:
            continue
        code = subprocess.call(step.command)
        if code != 0:
            print(f"speedrun: {step.title!r} ended with exit code {code}: {step.text}", file=sys.stderr)
            print("speedrun: what is done is kept; calling it again goes on from here", file=sys.stderr)
            return code
    print(f"\nAll done in {duration(time.monotonic() - began)}. Talk to it:")
    print(f"    .venv/bin/python -m scripts.chat_cli --run {plan.talk_to}")
    return 0


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.speedrun", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.parse_args(argv)
    return run_script(speedrun, "speedrun")


if __name__ == "__main__":
    sys.exit(main())
