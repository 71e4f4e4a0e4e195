"""Every setting of a training run on images, its flag and its help. Needs no timm.

A recipe fills in what is not given. `deit` is the paper's for ImageNet-1k (section 4.1), which is DeiT's (arXiv
2012.12877, table 9); `digits` and `fashion-mnist` are ours for images of a few pixels.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

from nanogka.common.cli import flag
from nanogka.common.errors import Errors
from nanogka.train.settings import RunSettings

MICRO = "deit_micro_gka_patch2_8"
AUGMENTED = {"mixup": 0.8, "cutmix": 1.0, "auto_augment": "rand-m9-mstd0.5-inc1", "random_erasing": 0.25, "repeats": 3}
PLAIN = {"mixup": 0.0, "cutmix": 0.0, "auto_augment": "none", "random_erasing": 0.0, "repeats": 1}
DEIT = {"model": "deit_tiny_gka_patch16_224", "epochs": 300, "batch_size": 1024, "warmup_epochs": 5, "drop_path": 0.1}
DEIT |= {"lr": 1e-3, "ema": 0.99996, "crop_scale": 0.08, "hflip": 0.5}  # lr: 5e-4 · batch / 512
DIGITS = {"model": MICRO, "epochs": 80, "batch_size": 64, "warmup_epochs": 5, "drop_path": 0.1}
DIGITS |= {"lr": 5e-3, "ema": 0.99, "crop_scale": 0.9, "hflip": 0.0}
FASHION = {"patch_size": 4, "epochs": 10, "batch_size": 128, "warmup_epochs": 1, "lr": 3e-3, "ema": 0.999, "hflip": 0.5}
RECIPES: dict[str, dict[str, Any]] = {
    "deit": DEIT | AUGMENTED,
    "digits": DIGITS | PLAIN,
    "fashion-mnist": DIGITS | PLAIN | FASHION,
}
FREE_ON_RESUME = {"run", "resume", "overwrite", "dry_run", "eval_every", "save_every", "keep", "keep_best", "workers"}
FREE_ON_RESUME |= {"skip_bad_batches", "profile", "tracker", "device", "rank_timeout"}
FREE_ON_RESUME |= {"data"}  # the pictures are compared


@dataclass(frozen=True)
class VisionSettings(RunSettings):
    """Images, model, augmentation, optimizer; where no default stands, the recipe decides."""

    data: str = flag("digits", "digits, fashion-mnist, a folder with train/ and val/ in ImageNet's layout, or hf:NAME")
    recipe: str = flag("auto", "what is not given here; auto: of the data's name, else deit", ("auto", *RECIPES))
    model: str | None = flag(None, "a vision transformer by timm's name: deit_tiny_gka_patch16_224, …")

    img_size: int | None = flag(None, "pixels along a side (default: the data's, or 224)", ge=1, le=4096)
    patch_size: int | None = flag(
        None, "pixels along a side of a patch (default: as the model's name says)", ge=1, le=256
    )
    drop_path: float | None = flag(None, "stochastic depth of the last block, below 1", ge=0, le=0.999)
    bandwidth_init: float | None = flag(None, "initial value of every σ (default: head size ^ ¼)", gt=0, le=10**6)

    epochs: int | None = flag(None, "passes over the data", ge=1, le=10**6)
    batch_size: int | None = flag(None, "images per step over all devices", ge=1, le=10**7)
    lr: float | None = flag(None, "highest learning rate (AdamW)", gt=0, le=10**6)
    min_lr: float = flag(1e-5, "learning rate at the end", ge=0, le=10**6)
    warmup_lr: float = flag(1e-6, "learning rate at the start", ge=0, le=10**6)
    warmup_epochs: int | None = flag(None, "epochs in which the learning rate rises", ge=0, le=10**6)
    weight_decay: float = flag(
        0.05, "weight decay of matrices; vectors, σ among them, and positions have none", ge=0, le=10**6
    )
    clip_grad: float = flag(1.0, "largest norm of the gradient; 0: any", ge=0, le=10**6)
    ema: float | None = flag(None, "decay of the weights' moving average, below 1; 0: none", ge=0, le=1 - 1e-9)

    auto_augment: str | None = flag(None, "timm's name of an augmentation policy, or none")
    mixup: float | None = flag(None, "α of Mixup; 0: none", ge=0, le=10**6)
    cutmix: float | None = flag(None, "α of CutMix; 0: none", ge=0, le=10**6)
    smoothing: float = flag(0.1, "label smoothing, below 1", ge=0, le=0.999)
    random_erasing: float | None = flag(
        None, "chance, below 1, that a part of an image is replaced with noise", ge=0, le=0.999
    )
    repeats: int | None = flag(
        None, "differently augmented copies of an image per epoch, of as many fewer images", ge=1, le=100
    )
    crop_scale: float | None = flag(None, "smallest share of an image that a random crop keeps", gt=0, le=1)
    hflip: float | None = flag(None, "chance, below 1, that an image is mirrored", ge=0, le=0.999)

    run: str = flag("", "name of the run's folder (default: <data>-<model>)")
    eval_every: int = flag(5, "epochs between evaluations; 0: only at the end", ge=0, le=10**6)
    save_every: int = flag(10, "epochs between checkpoints; 0: only at the end", ge=0, le=10**6)
    keep_best: int = flag(0, "number of checkpoints with the lowest val_loss to keep besides; 0: none", ge=0)
    seed: int = flag(1, "seed of the initial weights and of every draw", ge=0, le=2**32 - 1)
    workers: int = flag(0, "processes per device that read and augment images; 0: the trainer itself", ge=0, le=1024)

    @property
    def free_on_resume(self) -> set[str]:
        return FREE_ON_RESUME

    def with_recipe(self) -> "VisionSettings":
        """The settings with what is None taken from the recipe."""
        name = self.recipe if self.recipe != "auto" else self.data if self.data in RECIPES else "deit"
        given = {f.name for f in fields(self) if getattr(self, f.name) is not None}
        chosen = {key: value for key, value in RECIPES[name].items() if key not in given}
        if "warmup_epochs" in chosen:  # a run of few epochs
            epochs = chosen.get("epochs", self.epochs)
            chosen["warmup_epochs"] = max(0, min(chosen["warmup_epochs"], epochs // 2))
        return replace(self, recipe=name, **chosen)

    def check(self, errors: Errors) -> None:
        super().check(errors)
        short = self.warmup_epochs <= self.epochs
        errors.require(short, "--warmup-epochs", self.warmup_epochs, f"at most the {self.epochs} epochs")
