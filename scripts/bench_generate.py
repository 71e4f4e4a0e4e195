"""What generation costs: time to the first token, tokens per second of one and of many streams, cache bytes, against
context length; `gaussian` and `dot_product` side by side, and the floor under both
(a bare loop of the matrix-vector products of a token; and the same by torch).

    python -m scripts.bench_generate
    python -m scripts.bench_generate --steps growing,compiled --contexts 2048
    python -m scripts.bench_generate --depth 20 --contexts 8192 --streams 1,16,64 --dtype bfloat16 --steps graph

Prints a table and, last, the same as one JSON document. What is measured and how: `nanogka.bench.generate`.
"""

import argparse
import json
import logging
import sys
from dataclasses import asdict

from nanogka.bench.generate import MIXERS, DecodeCost, DecodeSettings, compare_decoding
from nanogka.cli import run_script
from nanogka.generate.decoder import STEPS
from nanogka.problems import Problems
from nanogka.runtime import describe_hardware, pick_device_and_dtype


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    default = DecodeSettings()
    p = argparse.ArgumentParser(
        prog="python -m scripts.bench_generate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--depth", type=int, default=default.depth, help="of both models (default: %(default)s)")
    p.add_argument("--vocab-size", type=int, default=default.vocab_size, help="(default: %(default)s)")
    p.add_argument("--window-pattern", default=default.window_pattern, help="S or L a layer (default: %(default)s)")
    p.add_argument("--sequence-len", type=int, default=0, help="twice the window (default: the longest context)")
    p.add_argument("--all-windowed", action="store_true", help="give the last layer a window too")
    p.add_argument(
        "--contexts", default="256,1024,2048", help="tokens before and with the last one timed (default: %(default)s)"
    )
    p.add_argument("--streams", default="1,16", help="prompts decoded together, with commas (default: %(default)s)")
    p.add_argument("--tokens", type=int, default=default.tokens, help="decoded in one repeat (default: %(default)s)")
    p.add_argument("--repeats", type=int, default=default.repeats, help="whose median counts (default: %(default)s)")
    p.add_argument("--steps", default="auto", help=f"of {', '.join(STEPS)}, with commas (default: %(default)s)")
    p.add_argument(
        "--token-by-token",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="also read the longest prompt one token at a time (default: yes)",
    )
    p.add_argument("--dtype", default="auto", help="auto, float32, bfloat16 or float16 (default: %(default)s)")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps (default: %(default)s)")
    return p.parse_args(argv)


def benchmark(arguments: argparse.Namespace) -> None:
    """Check the arguments, measure and print. Raises `SettingsError` naming every flag that is wrong."""
    problems = Problems()
    chosen = {name: value for name, value in vars(arguments).items() if name not in ("dtype", "device")}
    chosen |= {name: _integers(chosen[name]) for name in ("contexts", "streams")}
    chosen["steps"] = tuple(arguments.steps.split(","))
    settings = DecodeSettings(**chosen)
    settings.check(problems)
    device, dtype = pick_device_and_dtype(arguments.device, arguments.dtype, problems)
    problems.raise_any()

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    costs = compare_decoding(settings, device, dtype)
    hardware, kind = describe_hardware(device), str(dtype).removeprefix("torch.")
    windows = "all windowed" if settings.all_windowed else settings.window_pattern
    model = f"depth {settings.depth}, vocabulary {settings.vocab_size:,}, {windows}"
    print(f"{hardware.name}, {kind}, {model}")
    print("\n".join(table(costs, hardware.peak_bandwidth)))
    document = {"hardware": hardware.name, "device": str(device), "dtype": kind, "settings": asdict(settings)}
    document["peak_bandwidth"] = hardware.peak_bandwidth
    print(json.dumps(document | {"results": [cost.to_dict() for cost in costs]}))


def table(costs: list[DecodeCost], peak_bandwidth: float | None) -> list[str]:
    """The costs as lines of a Markdown table, then what the two mixers are to each other."""
    columns = "context, streams, step, mixer, first token, a step, tokens/s, over the floor, over torch's"
    columns += ", cache, read a step, GB/s"
    lines = [f"| {columns.replace(', ', ' | ')} |", "|---:|---:|---|---|" + "---:|" * 8]
    for cost in costs:
        cells = [f"{cost.context:,}", str(cost.streams), cost.step, cost.mixer]
        cells += [f"{cost.first_token_seconds * 1e3:,.0f} ms", f"{cost.token_seconds * 1e3:.3f} ms"]
        cells += [f"{cost.tokens_per_second:,.0f}", f"{cost.over_floor:.2f}", f"{cost.over_torch:.2f}"]
        share = f" ({cost.bandwidth / peak_bandwidth:.0%} of the peak)" if peak_bandwidth else ""
        cells += [f"{cost.cache_bytes / 2**20:,.1f} MiB", f"{cost.read_bytes / 1e6:,.1f} MB"]
        cells += [f"{cost.bandwidth / 1e9:,.1f}{share}"]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    for ours, baseline in zip(costs[:: len(MIXERS)], costs[1 :: len(MIXERS)]):
        faster, promise = baseline.token_seconds / ours.token_seconds, baseline.read_bytes / ours.read_bytes
        lines.append(
            f"{ours.context:,} tokens, {ours.streams} streams, {ours.step}: gaussian {faster:.3f} × as fast; "
            f"bytes read promise {promise:.3f}; kept {faster / promise:.3f}"
        )
    for cost in costs:
        if cost.one_by_one_seconds is not None:
            gain = cost.one_by_one_seconds / cost.first_token_seconds
            lines.append(
                f"{cost.mixer}, prompt of {cost.context:,} tokens less those timed: {cost.first_token_seconds:.2f} s "
                f"in chunks, {cost.one_by_one_seconds:.1f} s token by token: {gain:.1f} ×"
            )
    return lines


def _integers(text: str) -> tuple[int, ...]:
    """Integers with commas; () where one is none, which the check then names."""
    parts = [part.strip() for part in text.split(",")]
    return tuple(map(int, parts)) if all(part.isdigit() for part in parts) else ()


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    return run_script(lambda: benchmark(parse_arguments(argv)), "bench_generate")


if __name__ == "__main__":
    sys.exit(main())
