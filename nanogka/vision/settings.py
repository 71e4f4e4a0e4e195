"""Every setting of a training run on images, its flag and its help. Needs no timm.

A recipe fills in what is not given. `deit` is the paper's for ImageNet-1k (section 4.1), which is DeiT's (arXiv
2012.12877, table 9); `digits` and `fashion-mnist` are ours for images of a few pixels.
"""

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from nanogka.cli import flag, flag_name
from nanogka.distributed import TIMEOUT
from nanogka.problems import Problems

MICRO = "deit_micro_gka_patch2_8"
RECIPES: dict[str, dict[str, Any]] = {
    "deit": {
        "model": "deit_tiny_gka_patch16_224",
        "epochs": 300,
        "batch_size": 1024,
        "lr": 1e-3,  # 5e-4 · batch / 512
        "warmup_epochs": 5,
        "drop_path": 0.1,
        "mixup": 0.8,
        "cutmix": 1.0,
        "auto_augment": "rand-m9-mstd0.5-inc1",
        "random_erasing": 0.25,
        "repeats": 3,
        "ema": 0.99996,
        "crop_scale": 0.08,
        "hflip": 0.5,
    },
    "digits": {
        "model": MICRO,
        "epochs": 80,
        "batch_size": 64,
        "lr": 5e-3,
        "warmup_epochs": 5,
        "drop_path": 0.1,
        "mixup": 0.0,
        "cutmix": 0.0,
        "auto_augment": "none",
        "random_erasing": 0.0,
        "repeats": 1,
        "ema": 0.99,
        "crop_scale": 0.9,
        "hflip": 0.0,
    },
}
RECIPES["fashion-mnist"] = {
    **RECIPES["digits"],
    "patch_size": 4,
    "epochs": 10,
    "batch_size": 128,
    "lr": 3e-3,
    "warmup_epochs": 1,
    "ema": 0.999,
    "hflip": 0.5,
}
FREE_ON_RESUME = {"run", "resume", "overwrite", "dry_run", "eval_every", "save_every", "keep", "workers"}
FREE_ON_RESUME |= {"device", "rank_timeout", "data"}  # the pictures themselves are compared


@dataclass(frozen=True)
class VisionSettings:
    """Settings of `scripts.vision_train`. None means: the recipe's."""

    data: str = flag("digits", "digits, fashion-mnist, a folder with train/ and val/ in ImageNet's layout, or hf:NAME")
    recipe: str = flag("auto", "what is not given here; auto: of the data's name, else deit", ("auto", *RECIPES))
    model: str | None = flag(None, "a vision transformer by timm's name: deit_tiny_gka_patch16_224, …")
    run: str = flag("", "name of the run's folder (default: <data>-<model>)")

    img_size: int | None = flag(None, "pixels along a side (default: the data's, or 224)")
    patch_size: int | None = flag(None, "pixels along a side of a patch (default: as the model's name says)")
    drop_path: float | None = flag(None, "stochastic depth of the last block")
    bandwidth_init: float | None = flag(None, "first value of every σ (default: head size ^ ¼)")

    epochs: int | None = flag(None, "passes over the data")
    batch_size: int | None = flag(None, "images per step over all devices")
    lr: float | None = flag(None, "AdamW's highest learning rate")
    min_lr: float = flag(1e-5, "its last one")
    warmup_lr: float = flag(1e-6, "its first one")
    warmup_epochs: int | None = flag(None, "epochs in which it rises")
    weight_decay: float = flag(0.05, "of matrices; vectors, σ among them, and positions have none")
    clip_grad: float = flag(1.0, "largest norm of the gradient; 0: any")
    ema: float | None = flag(None, "decay of the weights' moving average; 0: none")

    auto_augment: str | None = flag(None, "timm's name of a policy, or none")
    mixup: float | None = flag(None, "α of Mixup; 0: none")
    cutmix: float | None = flag(None, "α of CutMix; 0: none")
    smoothing: float = flag(0.1, "label smoothing")
    random_erasing: float | None = flag(None, "chance that a part of an image is replaced with noise")
    repeats: int | None = flag(None, "differently augmented copies of an image in an epoch, of as many fewer images")
    crop_scale: float | None = flag(None, "smallest share of an image that a random crop keeps")
    hflip: float | None = flag(None, "chance that an image is mirrored")

    eval_every: int = flag(5, "epochs between evaluations; 0: only at the end")
    save_every: int = flag(10, "epochs between checkpoints; 0: only at the end")
    keep: int = flag(2, "how many of the newest checkpoints to keep")
    resume: str = flag("never", "`auto` goes on from the newest sound checkpoint of the run", ("auto", "never"))
    overwrite: bool = flag(False, "start over in a folder that holds a run already, deleting that run")
    dry_run: bool = flag(False, "only say what the run would be and cost")
    seed: int = flag(1, "of the initial weights and of every draw")

    workers: int = flag(0, "processes that read and augment images, per device; 0: the trainer itself")
    device: str = flag("auto", "auto, cpu, cuda, cuda:N or mps")
    dtype: str = flag("auto", "of activations and products", ("auto", "float32", "bfloat16"))
    rank_timeout: float = flag(TIMEOUT, "seconds after which a collective that not all ranks have joined fails")

    def with_recipe(self) -> "VisionSettings":
        """The settings with what is None taken from the recipe."""
        name = self.recipe if self.recipe != "auto" else self.data if self.data in RECIPES else "deit"
        given = {f.name for f in fields(self) if getattr(self, f.name) is not None}
        chosen = {key: value for key, value in RECIPES[name].items() if key not in given}
        if "warmup_epochs" in chosen:  # a run of few epochs
            epochs = chosen.get("epochs", self.epochs)
            chosen["warmup_epochs"] = max(0, min(chosen["warmup_epochs"], epochs // 2))
        return replace(self, recipe=name, **chosen)

    def check(self, problems: Problems) -> None:
        """Record every setting that is out of range; of settings with a recipe."""
        most = {"img_size": 4096, "patch_size": 256, "epochs": 10**6, "batch_size": 10**7, "repeats": 100}
        most |= {"eval_every": 10**6, "save_every": 10**6, "keep": 10**6, "workers": 1024, "warmup_epochs": 10**6}
        least = dict.fromkeys(("eval_every", "save_every", "workers", "warmup_epochs"), 0)
        for name, high in most.items():
            value, low = getattr(self, name), least.get(name, 1)
            ok = value is None or low <= value <= high
            problems.check(ok, flag_name(name), value, f"an integer from {low} to {high}")
        shares = ("drop_path", "random_erasing", "hflip", "smoothing", "ema")
        for name in shares:
            problems.check(0 <= getattr(self, name) < 1, flag_name(name), getattr(self, name), "0 to below 1")
        problems.check(0 < self.crop_scale <= 1, "--crop-scale", self.crop_scale, "above 0, at most 1")
        positive = ("lr", "rank_timeout", *(["bandwidth_init"] if self.bandwidth_init is not None else []))
        for name in (*positive, "min_lr", "warmup_lr", "weight_decay", "clip_grad", "mixup", "cutmix"):
            value, above = getattr(self, name), name in positive
            takes = f"a number {'above' if above else 'of at least'} 0, at most 1e6"
            problems.check((value > 0 if above else value >= 0) and value <= 1e6, flag_name(name), value, takes)
        problems.check(0 <= self.seed < 2**32, "--seed", self.seed, "an integer from 0 to 2**32 − 1")
        short = self.warmup_epochs <= self.epochs
        problems.check(short, "--warmup-epochs", self.warmup_epochs, f"at most the {self.epochs} epochs")
        plain = self.run not in (".", "..") and "/" not in self.run and "\0" not in self.run and len(self.run) < 200
        problems.check(plain, "--run", self.run, "the name of a folder")

    def to_dict(self) -> dict:
        """All fields, for YAML."""
        return asdict(self)
