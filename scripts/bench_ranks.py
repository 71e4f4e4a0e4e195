"""Seconds of a training step and optimiser memory over several ranks: sharded against plain, alternating.

    torchrun --standalone --nproc_per_node=2 -m scripts.bench_ranks -- --depth 4

Prints a table and, last, the same as one JSON document. What is measured and how: `nanogka.bench.ranks`.
"""

import argparse
import json
import sys
from dataclasses import asdict

from nanogka.bench.ranks import compare_ranks
from nanogka.cli import run_script
from nanogka.distributed import Ranks
from nanogka.model import GPTConfig
from nanogka.problems import Problems
from nanogka.runtime import describe_hardware, pick_device


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts.bench_ranks", description=__doc__.splitlines()[0])
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--attention", default="gaussian")
    parser.add_argument("--sequence-len", type=int, default=256, help="context in tokens")
    parser.add_argument("--vocab-size", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=2, help="rows a rank and step")
    parser.add_argument("--repeats", type=int, default=10, help="steps of each whose median counts")
    parser.add_argument("--device", default="auto")
    return parser.parse_args(argv)


def benchmark(arguments: argparse.Namespace) -> None:
    """Check the arguments, measure and print. Raises ValueError naming every flag that is wrong."""
    problems, ranks = Problems(), Ranks.from_environment()
    for name in ("batch", "repeats"):
        value = getattr(arguments, name)
        problems.check(value >= 1, f"--{name}", value, "an integer of at least 1")
    takes = "at least 2 (torchrun --standalone --nproc_per_node=2 -m scripts.bench_ranks)"
    problems.check(ranks.world_size > 1, "ranks", ranks.world_size, takes)
    problems.raise_any()
    device = ranks.device(pick_device(arguments.device))
    config = GPTConfig.from_depth(
        arguments.depth, arguments.attention, sequence_len=arguments.sequence_len, vocab_size=arguments.vocab_size
    )
    ranks.start(device)
    try:
        costs = compare_ranks(config, arguments.batch, arguments.repeats, ranks, device)
    finally:
        ranks.stop()
    if ranks.is_main:
        print("| | median step | optimiser state a rank |\n|---|---:|---:|")
        for kind, cost in costs.items():
            print(f"| {kind} | {cost.median * 1e3:.0f} ms | {max(cost.state_bytes) / 2**20:.1f} MiB |")
        results = {kind: asdict(cost) | {"median": cost.median} for kind, cost in costs.items()}
        hardware = describe_hardware(device).name
        print(json.dumps({"hardware": hardware, "ranks": ranks.world_size, **vars(arguments), "results": results}))


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark."""
    return run_script(lambda: benchmark(parse_arguments(argv)), "bench_ranks")


if __name__ == "__main__":
    sys.exit(main())
