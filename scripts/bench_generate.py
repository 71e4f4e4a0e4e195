"""Measures decoding: time of the prefill and of a step, tokens per second and cache size, for every mixer at several
contexts and batch sizes, beside the floor under them (the bare matrix products of a step).

    python -m scripts.bench_generate
    python -m scripts.bench_generate --depth 20 --contexts 8192 --batch-sizes 1,16,64 --dtype bfloat16

Prints a table and, last, the same as one JSON document. What is measured and how: `nanogka.bench.generate`.
"""

import json
import logging
import sys
from dataclasses import asdict

from nanogka.bench.generate import DecodeSettings, compare_decoding, cost_table
from nanogka.cli import run
from nanogka.problems import Problems
from nanogka.runtime import describe_hardware, pick_device_and_dtype


def body(settings: DecodeSettings, problems: Problems) -> None:
    """Check the settings, measure and print."""
    settings.check(problems)
    device, dtype = pick_device_and_dtype(settings.device, settings.dtype, problems)
    problems.raise_any()

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    costs = compare_decoding(settings, device, dtype)
    hardware, kind = describe_hardware(device), str(dtype).removeprefix("torch.")
    print(f"{hardware.name}, {kind}, depth {settings.depth}, vocabulary {settings.vocab_size:,}\n")
    print(cost_table(costs))
    document = {"hardware": hardware.name, "device": str(device), "dtype": kind, "settings": asdict(settings)}
    document["peak_bandwidth"] = hardware.peak_bandwidth
    print(json.dumps(document | {"results": [asdict(cost) for cost in costs]}))


def main(argv: list[str] | None = None) -> int:
    """Run the script; returns the exit code."""
    return run(DecodeSettings, body, "bench_generate", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
