"""Tokens per second and peak memory of a whole training step: gaussian against dot_product, same settings, alternating.

    python -m scripts.bench_train --depth 8 --sequence-len 1024
    python -m scripts.bench_train --compare losses --vocab-size 32768     the chunked loss against all logits at once

Prints a table and, last, the same as one JSON document. What is measured and how: `nanogka.bench.train`.
"""

import argparse
import json
import logging
import sys
from dataclasses import asdict

from nanogka.bench.train import CONTESTANTS, StepSettings, compare_steps, ratios, table
from nanogka.cli import run_script
from nanogka.problems import Problems
from nanogka.runtime import describe_hardware, pick_device_and_dtype


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    default = StepSettings()
    parser = argparse.ArgumentParser(prog="scripts.bench_train", description=__doc__.splitlines()[0])
    parser.add_argument("--depth", type=int, default=default.depth)
    parser.add_argument("--sequence-len", type=int, default=default.sequence_len, help="context in tokens")
    parser.add_argument("--batch", type=int, default=default.batch, help="sequences a step")
    parser.add_argument("--vocab-size", type=int, default=default.vocab_size)
    parser.add_argument("--repeats", type=int, default=default.repeats, help="steps of each whose median counts")
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=default.compile,
        help="through torch.compile, as in training",
    )
    parser.add_argument(
        "--compare", default=default.compare, help=f"of {', '.join(CONTESTANTS)} (default: %(default)s)"
    )
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    parser.add_argument("--device", default="auto")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark."""
    return run_script(lambda: benchmark(parse_arguments(argv)), "bench_train")


def benchmark(arguments: argparse.Namespace) -> None:
    """Check the arguments, measure and print. Raises `SettingsError` naming every flag that is wrong."""
    problems = Problems()
    chosen = {name: value for name, value in vars(arguments).items() if name not in ("dtype", "device")}
    settings = StepSettings(**chosen)
    settings.check(problems)
    device, dtype = pick_device_and_dtype(arguments.device, arguments.dtype, problems)
    problems.raise_any()

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    costs = compare_steps(settings, device, dtype)
    hardware, kind, r = describe_hardware(device).name, str(dtype).removeprefix("torch."), ratios(costs)
    print(f"{hardware}, {kind}, depth {settings.depth}, {settings.batch} × {settings.sequence_len} tokens")
    print("\n".join(table(costs)))
    kept, promise = r.pop("kept_of_promise"), 1 / r["flops_per_token"]
    print(f"tokens/s gained over what the FLOPs promise ({promise:.3f}): {kept:.3f}")
    document = {"hardware": hardware, "device": device.type, "dtype": kind, **chosen}
    document |= {"ratios": r, "kept_of_promise": kept}
    print(json.dumps({**document, "results": {name: asdict(cost) for name, cost in costs.items()}}))


if __name__ == "__main__":
    sys.exit(main())
