"""Time and memory of Gaussian kernel attention beside ordinary attention and the literal version, forward and backward.

    python -m scripts.bench_attention --lengths 1024,2048,4096 --window 256

Prints a table and, last, the same as one JSON document.
"""

import json
import logging
import sys
from dataclasses import asdict, dataclass

from nanogka.bench.attention import CONTESTANTS, Measurement, Shape, measure
from nanogka.cli import flag, flag_name, run
from nanogka.formatting import byte_size, markdown_table, number, si
from nanogka.problems import Problems
from nanogka.runtime import describe_hardware, pick_device_and_dtype


@dataclass(frozen=True)
class Settings:
    """The flags."""

    lengths: str = flag("1024,2048,4096,8192", "T in positions, several with commas")
    window: int | None = flag(None, "positions that each sees before itself (default: all)")
    batch: int = flag(1, "sequences")
    heads: int = flag(4, "heads")
    head_dim: int = flag(64, "features per head")
    contestants: str = flag("softmax,gaussian,reference", f"of {', '.join(CONTESTANTS)}, with commas")
    repeats: int = flag(5, "timings whose median counts")
    reference_gib: float = flag(4.0, "memory that the literal version may take; beyond, it is left out")
    dtype: str = flag("auto", "auto, float32, bfloat16 or float16")
    device: str = flag("auto", "auto, cpu, cuda, cuda:N or mps")


def body(settings: Settings, problems: Problems) -> None:
    """Check the settings, measure and print."""
    parts = settings.lengths.split(",")
    lengths = [int(part) for part in parts if part.strip().isdecimal()]
    whole = len(lengths) == len(parts) and min(lengths) >= 1
    problems.check(whole, "--lengths", settings.lengths, "integers of at least 1, with commas")
    for name in ("batch", "heads", "head_dim", "repeats"):
        value = getattr(settings, name)
        problems.check(value >= 1, flag_name(name), value, "an integer of at least 1")
    window = settings.window
    problems.check(window is None or window >= 0, "--window", window, "an integer of at least 0")
    names = settings.contestants.split(",")
    known = set(names) <= set(CONTESTANTS)
    problems.check(known, "--contestants", settings.contestants, f"some of {', '.join(CONTESTANTS)}, with commas")
    device, dtype = pick_device_and_dtype(settings.device, settings.dtype, problems)
    problems.raise_any()

    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    limit = int(settings.reference_gib * 2**30)
    measurements = []
    for length in lengths:
        shape = Shape(settings.batch, length, settings.heads, settings.head_dim, window, dtype)
        measurements += [measure(name, shape, device, settings.repeats, limit) for name in names]
    hardware, kind = describe_hardware(device).name, str(dtype).removeprefix("torch.")
    reach = "full" if window is None else window
    print(f"{hardware}, {kind}, B={settings.batch} H={settings.heads} D={settings.head_dim}, window {reach}")
    print(table(measurements))
    document = asdict(settings) | {"hardware": hardware, "device": device.type, "dtype": kind}
    print(json.dumps(document | {"measurements": [m.to_dict() for m in measurements]}))


def table(measurements: list[Measurement]) -> str:
    """The measurements as a Markdown table."""
    header = ["T", "contestant", "forward, ms", "both, ms", "forward, FLOP/s", "both, FLOP/s", "peak memory"]
    rows = []
    for m in measurements:
        times = [number(s and 1e3 * s, 2) for s in (m.forward_seconds, m.total_seconds)]
        name = f"{m.contestant} ({m.reason})" if m.reason else m.contestant
        rows.append([number(m.length), name, *times, si(m.forward_flops), si(m.total_flops), byte_size(m.peak_bytes)])
    return markdown_table(header, rows, left=2)


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark."""
    return run(Settings, body, "bench_attention", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
