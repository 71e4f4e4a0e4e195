"""An image to look at: as the model takes it, and as people see it; its maps in a run's report."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from nanogka.vision.data import UNREADABLE, open_image_data, val_transform
from nanogka.vision.figures import draw_maps
from nanogka.vision.report import write_image_report
from nanogka.vision.run import TrainedImageModel


@dataclass(frozen=True)
class View:
    """`image` (channels, size, size) normalised, `picture` (size, size, 3) in 0 to 1, `name` for titles."""

    image: Tensor
    picture: np.ndarray
    name: str


def open_view(trained: TrainedImageModel, number: int, file: str = "") -> View:
    """A held-out image of the data that a model was trained on, or a file, with the model's answer in its name."""
    data = open_image_data(trained.config["settings"]["data"])
    count = len(data.val.targets)
    if not file and not number < count:
        raise ValueError(f"--number: got {number}, takes 0 to {count - 1}, the held-out images")
    try:
        if file:
            with Image.open(Path(file).expanduser()) as opened:
                picture = opened.convert("RGB" if data.channels == 3 else "L")
        else:
            picture = data.val.open(number)
    except UNREADABLE as error:
        what = f"--image: got {file!r}" if file else f"--number: got {number}"
        raise ValueError(f"{what}, which cannot be read ({' '.join(str(error).split())})") from error
    image = val_transform(data, trained.config["model"]["img_size"])(picture)
    mean, std = (torch.tensor(values)[:, None, None] for values in (data.mean, data.std))
    seen = (image * std + mean).clamp(0, 1).expand(3, -1, -1).permute(1, 2, 0).numpy()
    with torch.no_grad():
        answer = int(trained.model(image[None]).argmax())
    truth = "" if file else f", {data.classes[data.val.targets[number]]}"
    name = f"{Path(file).name if file else data.val.name(number)}{truth}, taken for {data.classes[answer]}"
    return View(image, seen, name)


def illustrate(trained: TrainedImageModel, number: int = 0, file: str = "", folder: Path | None = None) -> list[Path]:
    """Draw the maps of an image into `folder`, or into maps/ of the run, and write the run's report anew.

    Returns the paths of the figures and of the report.
    """
    view = open_view(trained, number, file)
    drawn = draw_maps(trained.model, view.image, view.picture, view.name, folder or trained.folder / "maps")
    return [*drawn, write_image_report(trained.folder)]
