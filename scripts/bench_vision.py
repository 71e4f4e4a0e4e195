"""Images a second of DeiT, of the value-less transformer and of GKA: the paper's table 4 on this machine.

    python -m scripts.bench_vision
    python -m scripts.bench_vision --size base --batches 1,64,256 --training

Prints a table and, last, the same as one JSON document. Takes the extra `vision`.
"""

import json
import sys
from dataclasses import dataclass

from nanogka.cli import flag, run
from nanogka.formatting import markdown_table, number
from nanogka.problems import Problems
from nanogka.runtime import describe_hardware, pick_device_and_dtype


@dataclass(frozen=True)
class Settings:
    """The flags."""

    size: str = flag("tiny", "of DeiT", ("tiny", "small", "base", "micro"))
    models: str = flag("", "timm's names of vision transformers, with commas (default: the three of the size)")
    batches: str = flag("1,16", "images at a time, several with commas")
    img_size: int | None = flag(None, "pixels along a side (default: the model's)")
    training: bool = flag(False, "forward and backward, in place of forward")
    repeats: int = flag(3, "timings whose median counts")
    device: str = flag("auto", "auto, cpu, cuda, cuda:N or mps")
    dtype: str = flag("auto", "of activations and products", ("auto", "float32", "bfloat16"))


def body(settings: Settings, problems: Problems) -> None:
    """Check the settings, measure and print."""
    device, dtype = pick_device_and_dtype(settings.device, settings.dtype, problems)
    parts = settings.batches.split(",")
    batches = [int(part) for part in parts if part.strip().isdecimal()]
    whole = len(batches) == len(parts) and all(1 <= batch <= 10**5 for batch in batches)
    problems.check(whole, "--batches", settings.batches, "integers from 1 to 100000, with commas")
    problems.check(1 <= settings.repeats <= 1000, "--repeats", settings.repeats, "an integer from 1 to 1000")
    pixels = settings.img_size
    problems.check(pixels is None or 16 <= pixels <= 4096, "--img-size", pixels, "an integer from 16 to 4096")
    try:
        from nanogka.vision.models import ATTENTION, model_name
        from nanogka.vision.throughput import measure_throughput
    except ImportError as error:
        problems.lines.append(f'takes timm: pip install "nanogka[vision]" ({error})')
    problems.raise_any()
    names = settings.models.split(",") if settings.models else [model_name(settings.size, a) for a in ATTENTION]
    options = {"repeats": settings.repeats, "training": settings.training, "img_size": pixels}
    rows = measure_throughput(names, batches, device, dtype, **options)
    hardware = describe_hardware(device).name
    what = "forward and backward" if settings.training else "forward"
    print(f"{hardware}, {str(dtype).removeprefix('torch.')}, {what}, images / s")
    rates = {(row["model"], row["batch"]): row["images_per_second"] for row in rows}
    table = [[name, *(number(rates[name, batch], 1) for batch in batches)] for name in names]
    print(markdown_table(["model", *(f"batch {batch}" for batch in batches)], table))
    for row in rows:
        if row["reason"]:
            print(f"{row['model']}, batch {row['batch']}: {row['reason']}")
    print(json.dumps({"hardware": hardware, "dtype": str(dtype), "training": settings.training, "measurements": rows}))


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    return run(Settings, body, "bench_vision", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
