"""Milliseconds a token when decoding, and the bandwidth reached: gaussian against dot_product, kinds of step compared.

    python -m scripts.bench_decode --depth 20 --context 8192 --kinds graph,compiled

Prints a table and, last, the same as one JSON document. What is measured and how: `nanogka.generate.step_benchmark`.
"""

import argparse
import json
import logging
import sys
from dataclasses import asdict

import torch

from nanogka.generate.step_benchmark import KINDS, StepSettings, compare, table
from nanogka.problems import Problems, run_script
from nanogka.runtime import describe_hardware, pick_device, pick_dtype


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    default = StepSettings()
    parser = argparse.ArgumentParser(prog="scripts.bench_decode", description=__doc__.splitlines()[0])
    parser.add_argument("--depth", type=int, default=default.depth)
    parser.add_argument("--context", type=int, default=default.context, help="tokens that each stream has")
    parser.add_argument("--sequence-len", type=int, default=default.sequence_len, help="of training: sets the windows")
    parser.add_argument("--batch", type=int, default=default.batch, help="streams")
    parser.add_argument("--vocab-size", type=int, default=default.vocab_size)
    parser.add_argument("--steps", type=int, default=default.steps, help="tokens of a round; three are measured")
    parser.add_argument("--kinds", default="growing,plain", help=f"of step: {', '.join(KINDS)}, with commas")
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    parser.add_argument("--device", default="auto")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark."""
    return run_script(lambda: benchmark(parse_arguments(argv)), "bench_decode")


def benchmark(arguments: argparse.Namespace) -> None:
    """Check the arguments, measure and print. Raises `SettingsError` naming every flag that is wrong."""
    problems = Problems()
    chosen = {name: value for name, value in vars(arguments).items() if name not in ("dtype", "device", "kinds")}
    settings = StepSettings(**chosen)
    settings.check(problems)
    kinds = arguments.kinds.split(",")
    problems.check(set(kinds) <= set(KINDS), "--kinds", arguments.kinds, f"some of {', '.join(KINDS)}, with commas")
    device = problems.attempt(lambda: pick_device(arguments.device)) or torch.device("cpu")
    dtype = problems.attempt(lambda: pick_dtype(arguments.dtype, device))
    problems.raise_any()

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    costs = compare(settings, kinds, device, dtype)
    hardware, kind = describe_hardware(device), str(dtype).removeprefix("torch.")
    streams = "one stream" if settings.batch == 1 else f"{settings.batch} streams"
    print(f"{hardware.name}, {kind}, depth {settings.depth}, {streams} of {settings.context} tokens")
    print("\n".join(table(costs, hardware.peak_bandwidth)))
    document = {"hardware": hardware.name, "device": device.type, "dtype": kind, **chosen}
    document["peak_bandwidth"] = hardware.peak_bandwidth
    print(json.dumps({**document, "results": [asdict(cost) for cost in costs]}))


if __name__ == "__main__":
    sys.exit(main())
