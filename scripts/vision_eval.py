"""Measure a trained vision transformer: top-1 and top-5 on the held-out images, and how fast it is.

    python -m scripts.vision_eval                                    the run trained last
    python -m scripts.vision_eval --run imagenet-deit_tiny_gka_patch16_224 --ema --data /data/imagenet

Prints a line a number, writes evaluation.json to the run's folder and prints it as the last line. Takes the extra
`vision`.
"""

import json
import sys
import time
from dataclasses import dataclass

from nanogka.cli import flag, run
from nanogka.distributed import Ranks
from nanogka.files import atomic_write
from nanogka.formatting import number
from nanogka.problems import Problems
from nanogka.runtime import pick_device_and_dtype


@dataclass(frozen=True)
class Settings:
    """The flags."""

    run: str = flag("", "a run's folder or name (default: the run trained last)")
    data: str = flag("", "what to measure on (default: the held-out images of what it was trained on)")
    ema: bool = flag(False, "measure the averaged weights")
    batch_size: int = flag(128, "images at a time")
    workers: int = flag(0, "processes that read images")
    device: str = flag("auto", "auto, cpu, cuda, cuda:N or mps")
    dtype: str = flag("auto", "of activations and products", ("auto", "float32", "bfloat16"))


def body(settings: Settings, problems: Problems) -> None:
    """Measure one run."""
    device, dtype = pick_device_and_dtype(settings.device, settings.dtype, problems)
    for name, least, most in (("batch_size", 1, 10**6), ("workers", 0, 1024)):
        value = getattr(settings, name)
        takes = f"an integer from {least} to {most}"
        problems.check(least <= value <= most, f"--{name.replace('_', '-')}", value, takes)
    try:
        from nanogka.vision.data import open_image_data
        from nanogka.vision.evaluate import measure_accuracy
        from nanogka.vision.run import load_image_run
    except ImportError as error:
        problems.lines.append(f'takes timm: pip install "nanogka[vision]" ({error})')
        problems.raise_any()
    trained = problems.attempt(lambda: load_image_run(settings.run, device or "cpu", settings.ema))
    data = trained and problems.attempt(lambda: open_image_data(settings.data or trained.config["settings"]["data"]))
    if data:
        classes, takes = len(data.classes), f"data of {trained.config['run']['classes']} classes, as the model has"
        problems.check(classes == trained.config["run"]["classes"], "--data", settings.data, takes)
    problems.raise_any()
    began = time.perf_counter()
    values = measure_accuracy(
        trained.model,
        data,
        size=trained.config["model"]["img_size"],
        batch=settings.batch_size,
        device=device,
        dtype=dtype,
        ranks=Ranks(),
        workers=settings.workers,
    )
    seconds = time.perf_counter() - began
    result = {"run": trained.folder.name, "step": trained.step, "ema": settings.ema, **values}
    result["images_per_second"] = values["images"] / seconds
    for name, value in result.items():
        print(f"{name:18} {number(value) if isinstance(value, float) else value}")
    atomic_write(trained.folder / "evaluation.json", json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


def main(argv: list[str] | None = None) -> int:
    """The command line."""
    return run(Settings, body, "vision_eval", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
