"""Time and memory of Gaussian kernel attention beside its literal version and ordinary attention, at the same shapes.

    python -m scripts.bench_attention --lengths 1024,2048,4096 --window 256

Prints a table, saves a plot against T under `<base dir>/benchmarks`, and prints the same as one JSON document last.
"""

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from matplotlib.ticker import FuncFormatter

from nanogka.bench.attention import CONTESTANTS, Measurement, Shape, measure, table
from nanogka.cli import run_script
from nanogka.plots import style
from nanogka.problems import Problems
from nanogka.runtime import base_dir, describe_hardware, pick_device_and_dtype

COLOURS = {"ours": style.BLUE, "triton": style.SKY, "reference": style.PINK, "sdpa": style.ORANGE, "flex": style.GREEN}


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts.bench_attention", description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", default="1024,2048,4096,8192", help="T in positions, several with commas")
    parser.add_argument("--window", type=int, help="positions that each sees before itself (default: all)")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--contestants", default="ours,reference,sdpa,flex", help=f"of {', '.join(CONTESTANTS)}")
    parser.add_argument("--repeats", type=int, default=5, help="timings whose median counts")
    parser.add_argument("--reference-gib", type=float, default=4.0, help="memory that the literal version may take")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark."""
    return run_script(lambda: benchmark(parse_arguments(argv)), "bench_attention")


def benchmark(arguments: argparse.Namespace) -> None:
    """Check the arguments, measure, print and plot. Raises `SettingsError` naming every flag that is wrong."""
    problems = Problems()
    lengths = [int(part) for part in arguments.lengths.split(",") if part.strip().isdigit()]
    whole = len(lengths) == arguments.lengths.count(",") + 1 and min(lengths, default=0) >= 1
    problems.check(whole, "--lengths", arguments.lengths, "integers of at least 1, with commas")
    for flag in ("batch", "heads", "head_dim", "repeats"):
        value = getattr(arguments, flag)
        problems.check(value >= 1, f"--{flag.replace('_', '-')}", value, "an integer of at least 1")
    window = arguments.window
    problems.check(window is None or window >= 0, "--window", window, "an integer of at least 0")
    names = arguments.contestants.split(",")
    known = set(names) <= set(CONTESTANTS)
    problems.check(known, "--contestants", arguments.contestants, f"some of {', '.join(CONTESTANTS)}, with commas")
    device, dtype = pick_device_and_dtype(arguments.device, arguments.dtype, problems)
    problems.raise_any()

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    hardware = describe_hardware(device).name
    limit = int(arguments.reference_gib * 2**30)
    measurements: list[Measurement] = []
    for length in lengths:
        shape = Shape(arguments.batch, length, arguments.heads, arguments.head_dim, window, dtype)
        measurements += [measure(name, shape, device, arguments.repeats, limit) for name in names]
    kind = str(dtype).removeprefix("torch.")
    reach = "full" if window is None else window
    title = f"{hardware}, {kind}, B={arguments.batch} H={arguments.heads} D={arguments.head_dim}, window {reach}"
    print(title)
    print("\n".join(table(measurements)))
    path = base_dir() / "benchmarks" / f"attention-{device.type}-{kind}-window-{reach}.png"
    plot(measurements, title, path)
    print(f"plot: {path}")
    settings = {key: value for key, value in vars(arguments).items() if key not in ("dtype", "device")}
    document = {"hardware": hardware, "device": device.type, "dtype": kind, **settings, "plot": str(path)}
    print(json.dumps({**document, "measurements": [m.to_dict() for m in measurements]}))


def plot(measurements: Sequence[Measurement], title: str, path: Path) -> None:
    """Time and memory against T, log-log, one line a contestant, as a PNG."""
    panels = (
        ("total_seconds", 1e3, "forward + backward, ms"),
        ("peak_bytes", 2**-20, "peak memory beyond the inputs, MiB"),
    )
    lengths = sorted({m.length for m in measurements})
    with style.styled():
        figure = style.new_figure(11, 4.5, title)
        for axes, (field, scale, label) in zip(figure.subplots(1, 2), panels, strict=True):
            for name in dict.fromkeys(m.contestant for m in measurements):
                measured = [m for m in measurements if m.contestant == name and getattr(m, field)]
                values = [getattr(m, field) * scale for m in measured]
                axes.plot([m.length for m in measured], values, marker="o", label=name, color=COLOURS[name])
            axes.set_title(label)
            axes.set_xscale("log", base=2)
            axes.set_xticks(lengths)
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axes.set_yscale("log")
            axes.set_xlabel("T, positions")
        axes.legend()
        style.save(figure, path)


if __name__ == "__main__":
    sys.exit(main())
