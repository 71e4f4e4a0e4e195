"""Seconds of a training step and optimiser memory over several ranks: sharded against replicated, alternating.

    torchrun --standalone --nproc_per_node=2 -m scripts.bench_ranks -- --depth 4

Prints a table and, last, the same as one JSON document. See `nanogka.bench.ranks` for what is measured and how.
"""

import json
import sys
from dataclasses import asdict, dataclass

from nanogka.bench.ranks import compare_ranks
from nanogka.cli import flag, flag_name, run
from nanogka.distributed import Ranks
from nanogka.model import GPTConfig
from nanogka.problems import Problems
from nanogka.runtime import describe_hardware, pick_device


@dataclass(frozen=True)
class RankSettings:
    """Settings of this script."""

    depth: int = flag(4, "number of layers")
    attention: str = flag("gaussian", "a mixer's name, or a pattern of mixer letters")
    sequence_len: int = flag(256, "context in tokens")
    vocab_size: int = flag(4096, "tokens of the vocabulary")
    batch: int = flag(2, "rows per rank and step")
    repeats: int = flag(10, "steps of each whose median counts")
    device: str = flag("auto", "auto, cpu, cuda or mps")


def body(settings: RankSettings, problems: Problems) -> None:
    """Measure and print."""
    ranks = Ranks.from_environment()
    for name in ("batch", "repeats"):
        value = getattr(settings, name)
        problems.check(value >= 1, flag_name(name), value, "an integer of at least 1")
    takes = "at least 2 (torchrun --standalone --nproc_per_node=2 -m scripts.bench_ranks)"
    problems.check(ranks.world_size > 1, "ranks", ranks.world_size, takes)
    device = problems.attempt(lambda: ranks.device(pick_device(settings.device)))
    shape = {"sequence_len": settings.sequence_len, "vocab_size": settings.vocab_size}
    config = problems.attempt(lambda: GPTConfig.from_depth(settings.depth, settings.attention, **shape))
    problems.raise_any()
    with ranks.joined(device):
        costs = compare_ranks(config, settings.batch, settings.repeats, ranks, device)
    if ranks.is_main:
        print("| | median step | optimiser state per rank |\n|---|---:|---:|")
        for kind, cost in costs.items():
            print(f"| {kind} | {cost.median * 1e3:.0f} ms | {max(cost.state_bytes) / 2**20:.1f} MiB |")
        results = {kind: asdict(cost) | {"median": cost.median} for kind, cost in costs.items()}
        document = {"hardware": describe_hardware(device).name, "ranks": ranks.world_size, **asdict(settings)}
        print(json.dumps(document | {"results": results}))


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    return run(RankSettings, body, "bench_ranks", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
