"""Measure a trained vision transformer, or draw its attention: top-1, top-5 and speed on the held-out images; maps.

    python -m scripts.vision_eval                                    the run trained last
    python -m scripts.vision_eval --run imagenet-deit_tiny_gka_patch16_224 --ema --data /data/imagenet
    python -m scripts.vision_eval --maps                             attention over the first held-out image
    python -m scripts.vision_eval --maps --number 7
    python -m scripts.vision_eval --maps --image photo.jpg

Measuring prints one number per line, writes evaluation.json to the run's folder and prints it as the last line. Maps
go to `maps/` in the run's folder, and the run's report is written anew (docs/research/images.md). Takes the extra
`vision`.
"""

import json
import sys
import time
from dataclasses import dataclass

from nanogka.common.cli import command, flag
from nanogka.common.errors import Errors
from nanogka.common.files import atomic_write, expand_path
from nanogka.common.formatting import number


@dataclass(frozen=True)
class Settings:
    """Settings."""

    run: str = flag("", "a run's folder or name (default: the run trained last)")
    data: str = flag("", "data to measure on (default: the held-out images of the training data)")
    ema: bool = flag(False, "take the averaged weights")
    batch_size: int = flag(128, "images per batch", ge=1, le=10**6)
    workers: int = flag(0, "processes that read images", ge=0, le=1024)
    maps: bool = flag(False, "draw where the heads look, in place of measuring")
    number: int = flag(0, "with --maps: number of the held-out image", ge=0)
    image: str = flag("", "with --maps: a file, in place of a held-out image")
    output: str = flag("", "with --maps: the folder to write (default: maps/ in the run's)")
    device: str = flag("auto", "device to measure on: auto, cpu, cuda, cuda:N or mps")
    dtype: str = flag("auto", "dtype of activations and products", ("auto", "float32", "bfloat16"))


def body(settings: Settings, errors: Errors) -> None:
    """Measure one run, or draw its maps."""
    from nanogka.common.distributed import Ranks
    from nanogka.common.runtime import pick_device_and_dtype
    from nanogka.vision import needs_timm

    device, dtype = pick_device_and_dtype(settings.device, settings.dtype, errors)
    for name in ("number", "image", "output"):
        value = getattr(settings, name)
        errors.require(settings.maps or not value, f"--{name}", value, "effect only with --maps")
    with needs_timm(errors):
        from nanogka.vision.data import open_image_data
        from nanogka.vision.evaluate import measure_accuracy
        from nanogka.vision.maps import illustrate
        from nanogka.vision.run import load_image_run
    place = "cpu" if settings.maps or not device else device
    trained = errors.capture(lambda: load_image_run(settings.run, place, settings.ema))
    if settings.maps:
        errors.raise_if_any()
        folder = expand_path(settings.output) if settings.output else None
        for path in illustrate(trained, settings.number, settings.image, folder):
            print(path)
        return
    data = trained and errors.capture(lambda: open_image_data(settings.data or trained.config["settings"]["data"]))
    if data:
        classes, takes = len(data.classes), f"data of {trained.config['run']['classes']} classes, as the model has"
        errors.require(classes == trained.config["run"]["classes"], "--data", settings.data, takes)
    errors.raise_if_any()
    began, size = time.perf_counter(), trained.config["model"]["img_size"]
    place = {"device": device, "dtype": dtype, "ranks": Ranks(), "workers": settings.workers}
    values = measure_accuracy(trained.model, data, size=size, batch=settings.batch_size, **place)
    values["images_per_second"] = values["images"] / (time.perf_counter() - began)
    result = {"run": trained.folder.name, "step": trained.step, "ema": settings.ema, **values}
    for name, value in result.items():
        print(f"{name:18} {number(value) if isinstance(value, float) else value}")
    atomic_write(trained.folder / "evaluation.json", json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


main = command("vision_eval", Settings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
