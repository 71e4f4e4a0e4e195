"""Tokens per second and peak memory of a whole training step: the mixers against each other, alternating.

    python -m scripts.bench_train --depth 8 --sequence-len 1024
    python -m scripts.bench_train --compare losses --vocab-size 32768     the chunked loss against all logits at once

Prints a table and, last, the same as one JSON document. See `nanogka.bench.train` for what is measured and how.
"""

import json
import logging
import sys
from dataclasses import asdict

from nanogka.bench.train import StepSettings, compare_steps, ratios, table
from nanogka.cli import run
from nanogka.problems import Problems
from nanogka.runtime import describe_hardware, pick_device_and_dtype


def body(settings: StepSettings, problems: Problems) -> None:
    """Measure and print."""
    settings.check(problems)
    device, dtype = pick_device_and_dtype(settings.device, settings.dtype, problems)
    problems.raise_any()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    costs = compare_steps(settings, device, dtype)
    hardware, kind = describe_hardware(device).name, str(dtype).removeprefix("torch.")
    print(f"{hardware}, {kind}, depth {settings.depth}, {settings.batch} × {settings.sequence_len} tokens")
    print("\n".join(table(costs)))
    baselines = list(costs)[1:]
    document = asdict(settings) | {"hardware": hardware, "device": device.type, "dtype": kind}
    document |= {"ratios": {name: ratios(costs, name) for name in baselines}}
    print(json.dumps({**document, "results": {name: asdict(cost) for name, cost in costs.items()}}))


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    return run(StepSettings, body, "bench_train", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
