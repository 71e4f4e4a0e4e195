"""Settings of a training run on images. Importing this module does not import timm.

A recipe fills in every setting that is None. `deit` is the paper's for ImageNet-1k (section 4.1), which is DeiT's
(arXiv 2012.12877, table 9). `small` is ours, for images of a few pixels on a laptop.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

from nanogka.common.cli import flag

PAPER_BATCH = 7 * 256  # the paper's effective batch size
RECIPES: dict[str, dict[str, Any]] = {
    "deit": {
        "model": "deit_tiny_gka_patch16_224",
        "epochs": 300,
        "batch_size": PAPER_BATCH,
        "lr": 5e-4 * PAPER_BATCH / 512,  # DeiT's linear rule
        "warmup_epochs": 5,
        "ema": 0.99996,
        "auto_augment": "rand-m9-mstd0.5-inc1",
        "mixup": 0.8,
        "cutmix": 1.0,
        "random_erasing": 0.25,
        "repeats": 3,
        "crop_scale": 0.08,
    },
    "small": {
        "model": "deit_micro_gka_patch4_28",
        "epochs": 10,
        "batch_size": 128,
        "lr": 3e-3,
        "warmup_epochs": 1,
        "ema": 0.999,
        "auto_augment": "none",
        "mixup": 0.0,
        "cutmix": 0.0,
        "random_erasing": 0.0,
        "repeats": 1,
        "crop_scale": 0.9,
    },
}


@dataclass(frozen=True)
class VisionSettings:
    """Images, model, augmentation, optimizer. A setting without a default comes from the recipe."""

    dataset: str = flag("", "timm's name of a data set, such as torch/cifar100 or hfds/NAME (default: a folder)")
    data_dir: str = flag("", "folder of the images: train/<class>/… and val/<class>/…, or where to keep a download")
    download: bool = flag(False, "download the data set if it is not there")
    recipe: str = flag("small", "preset for all flags that you do not set", tuple(RECIPES))
    model: str | None = flag(None, "timm's name of a vision transformer, such as deit_tiny_gka_patch16_224")
    img_size: int | None = flag(None, "pixels along a side (default: the model's)", ge=1)
    drop_path: float = flag(0.1, "stochastic depth of the last block", ge=0, le=0.999)

    epochs: int | None = flag(None, "passes over the data", ge=1)
    batch_size: int | None = flag(None, "images per step over all devices", ge=1)
    lr: float | None = flag(None, "highest learning rate (AdamW)", gt=0)
    warmup_epochs: int | None = flag(None, "number of warm-up epochs of the learning rate", ge=0)
    weight_decay: float = flag(0.05, "weight decay of matrices; vectors, σ among them, never decay", ge=0)
    ema: float | None = flag(None, "decay of the exponential moving average of the weights", ge=0, le=1)

    auto_augment: str | None = flag(None, "timm's name of an augmentation policy, or none")
    mixup: float | None = flag(None, "α of Mixup; 0: none", ge=0)
    cutmix: float | None = flag(None, "α of CutMix; 0: none", ge=0)
    random_erasing: float | None = flag(None, "probability that a part of an image is replaced with noise", ge=0, le=1)
    repeats: int | None = flag(None, "augmented copies of each image per epoch (DeiT's repeated augmentation)", ge=1)
    crop_scale: float | None = flag(None, "smallest fraction of an image that a random crop keeps", gt=0, le=1)

    run: str = flag("", "name of the run's folder (default: <data>-<model>)")
    resume: bool = flag(False, "resume from the last finished epoch of the run")
    dry_run: bool = flag(False, "print the plan of the run and stop")
    eval_every: int = flag(5, "epochs between evaluations; the last epoch is always evaluated", ge=1)
    seed: int = flag(1, "seed of weights, order and augmentation", ge=0)
    workers: int = flag(0, "processes per device that read and augment images; 0 uses the trainer's process", ge=0)
    device: str = flag("auto", "auto, cpu, cuda, cuda:N or mps")
    dtype: str = flag("auto", "dtype of activations and matrix products", ("auto", "float32", "bfloat16"))

    def with_recipe(self) -> "VisionSettings":
        """The settings with every None replaced by the recipe's value."""
        left_out = {f.name for f in fields(self) if getattr(self, f.name) is None}
        return replace(self, **{name: value for name, value in RECIPES[self.recipe].items() if name in left_out})
