"""From settings to an `ImageRun`, and from a run's folder, base_dir()/vision/<name>, back to a model.

The folder's files are those of a language model's run (`nanogka.runs`, `nanogka.checkpoint`), with the same promises.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import timm
import torch
from timm.models import VisionTransformer
from timm.utils import ModelEmaV3
from torch import Tensor

from nanogka.checkpoint import check_weights, load_weights, read_weights, step_of
from nanogka.common.distributed import Ranks
from nanogka.common.errors import Errors
from nanogka.common.files import base_dir, expand_path, has_form
from nanogka.common.formatting import duration, scientific, si
from nanogka.common.runtime import describe_hardware, pick_device_and_dtype
from nanogka.runs import CONFIG, find_checkpoint, newest_first, read_config
from nanogka.train.context import LossFunction, RunContext, find_entry
from nanogka.vision.accounting import ASSUMED_MFU, TRAINING_PASSES, ImageAccounting, count_image_model
from nanogka.vision.attention import GaussianAttention
from nanogka.vision.data import ImageBatch, ImageData, draw_epoch, open_image_data, seed_everything, train_transform
from nanogka.vision.evaluate import measure_accuracy
from nanogka.vision.learn import OF_WEIGHTS, ImageLoader, ImageOptimizer, build_loss
from nanogka.vision.models import build_model, model_options
from nanogka.vision.settings import VisionSettings

CONFIG_FORM = {"model": {"name": "", "img_size": 0}, "run": {"classes": 0}, "settings": {"data": ""}}
EMA = "ema."  # before the names of the averaged weights in a checkpoint


@dataclass(kw_only=True)
class ImageRun(RunContext):
    """A run on images that can start; its settings have the recipe filled in."""

    settings: VisionSettings
    data: ImageData
    model: dict  # what `build_model` takes
    accounting: ImageAccounting
    steps_per_epoch: int
    average: ModelEmaV3 | None = None  # moving average of the weights, made with the optimizer; None without

    kind = "vision"
    score = "val_loss"
    rate_flag = "--lr"
    repeats_bad_batches = False  # their augmentation and mixture would be drawn anew

    @property
    def period(self) -> int:
        return self.steps_per_epoch

    def build_model(self) -> VisionTransformer:
        seed_everything(self.settings.seed, OF_WEIGHTS)
        return build_model(self.model).to(self.device).train()

    def build_optimizer(self, model: VisionTransformer) -> ImageOptimizer:
        optimizer = ImageOptimizer(model, self.settings, self.steps_per_epoch, self.ranks)
        self.average = optimizer.average
        return optimizer

    def build_loss(self, model: VisionTransformer) -> LossFunction:
        return build_loss(model, self.settings, len(self.data.classes), self.dtype, self.ranks)

    def set_rates(self, optimizer: ImageOptimizer, step: int) -> dict[str, float]:
        optimizer.schedule.step_update(step)
        return {"lr": optimizer.adamw.param_groups[0]["lr"]}

    def state_dict(self, model: VisionTransformer) -> dict[str, Tensor]:
        averaged = self.average.module.state_dict() if self.average else {}
        return model.state_dict() | {EMA + name: value for name, value in averaged.items()}

    def load_weights(self, model: VisionTransformer, weights: dict[str, Tensor], source: str) -> None:
        plain, averaged = split_weights(weights)
        load_weights(model, plain, source)
        if self.average:
            load_weights(self.average.module, averaged, source)

    def loader(self, state: dict | None, step: int) -> ImageLoader:
        if state and not has_form(state, {"batches": 0}):
            raise ValueError("loader state: damaged, expected the number of `batches`")
        step = state["batches"] if state else step  # older checkpoints have the step alone
        return ImageLoader(self.data, self.settings, self.ranks, step, self.model["img_size"], self.steps_per_epoch)

    def costs(self, step: int, seconds: float | None = None) -> dict[str, float]:
        images = self.settings.batch_size
        values = {"epoch": step / self.steps_per_epoch, "images": step * images}
        return values if seconds is None else values | {"images_per_second": images / seconds}

    def observe(self, model: VisionTransformer, batches: list[ImageBatch]) -> dict[str, object]:
        """σ of each head of each layer that has them, and the names of damaged images that others replaced."""
        values = {"bandwidth": [m.bandwidth.tolist() for m in model.modules() if isinstance(m, GaussianAttention)]}
        mine = [index for batch in batches for index in batch.damaged]
        if self.ranks.sum([len(mine)], self.device)[0]:
            numbers = sum(self.ranks.gather(mine), [])
            values["replaced"] = [self.data.train.name(index) for index in numbers]
        return values

    def summary(self, values: dict) -> str:
        damaged = f"  {len(values['replaced'])} damaged images replaced" if "replaced" in values else ""
        return f"loss {values['smooth_loss']:.3f}  {si(values['images_per_second'])} images/s{damaged}"

    def model_config(self) -> dict:
        return self.model

    def facts(self) -> dict:
        return {
            "parameters": self.accounting.parameters,
            "flops_per_image": self.accounting.flops,
            "steps_per_epoch": self.steps_per_epoch,
            "data": self.data.fingerprint,
            "classes": len(self.data.classes),
            "timm": timm.__version__,
        }

    def measure(self, model: VisionTransformer) -> dict[str, float]:
        size, batch = self.model["img_size"], max(self.settings.batch_size // self.ranks.world_size, 64)
        common = {"size": size, "batch": batch, "device": self.device, "dtype": self.dtype}
        common |= {"ranks": self.ranks, "workers": self.settings.workers}
        values = measure_accuracy(model, self.data, **common)
        if self.average:
            averaged = measure_accuracy(self.average.module, self.data, **common)
            values |= {f"ema_{name}": averaged[name] for name in ("top1", "top5", "val_loss") if name in averaged}
        return values

    def describe(self) -> str:
        s, a, data = self.settings, self.accounting, self.data
        images, peak = self.num_iterations * s.batch_size, self.hardware.peak_flops
        flops = TRAINING_PASSES * a.flops * images
        cost = f"{scientific(flops)} FLOPs"
        if peak:
            seconds = flops / (ASSUMED_MFU * peak * self.ranks.world_size)
            cost += f", about {duration(seconds)} at {ASSUMED_MFU:.0%} of {peak:.2g} FLOP/s per device"
        policy = f"{s.auto_augment}, mixup {s.mixup:g}, cutmix {s.cutmix:g}, erasing {s.random_erasing:g}"
        lines = [
            f"model      {s.model}, {self.model['img_size']} pixels, {a.tokens} tokens, {a.parameters:,} parameters, "
            f"{a.flops / 1e9:.3g} GFLOPs per image",
            f"data       {data.name}: {len(data.train.targets):,} images of {len(data.classes):,} classes, "
            f"{len(data.val.targets):,} to measure",
            f"recipe     {s.recipe}: AdamW {s.lr:g}, decay {s.weight_decay:g}, {s.warmup_epochs} epochs warm-up, "
            f"cosine; {policy}, repeats {s.repeats}, EMA {s.ema:g}",
            f"horizon    {s.epochs} epochs × {self.steps_per_epoch:,} steps × {s.batch_size:,} images = {images:,}",
            f"machine    {self.ranks.world_size} × {self.hardware.name}, {str(self.dtype).removeprefix('torch.')}",
            f"cost       {cost}",
            f"folder     {self.folder}",
        ]
        return "\n".join([*lines, *self.entry.notes])


def prepare(settings: VisionSettings, ranks: Ranks, errors: Errors) -> ImageRun:
    """Check the settings against the machine, the data and the run's folder; all errors are raised together."""
    settings = settings.with_recipe()
    settings.check(errors)
    sound = not errors.lines
    device, dtype = pick_device_and_dtype(settings.device, settings.dtype, errors)
    data = errors.capture(lambda: open_image_data(settings.data))
    if not (sound and data and device and dtype):
        errors.raise_if_any()
    settings = replace(settings, dtype=str(dtype).removeprefix("torch."))
    options = model_options(settings, data)
    folder = base_dir() / "vision" / (settings.run or f"{data.name}-{settings.model}")
    model = errors.capture(lambda: build_model(options, torch.device("meta")))
    errors.capture(lambda: train_transform(data, settings, options["img_size"]))
    steps = _steps_per_epoch(settings, data, ranks, errors)
    entry = errors.capture(lambda: find_entry(settings, folder, options, {"data": data.fingerprint}))
    errors.raise_if_any()
    device = ranks.device(device)
    return ImageRun(
        settings=settings,
        ranks=ranks,
        device=device,
        dtype=dtype,
        hardware=describe_hardware(device),
        entry=entry,
        num_iterations=steps * settings.epochs,
        data=data,
        model=options,
        accounting=count_image_model(model),
        steps_per_epoch=steps,
    )


def _steps_per_epoch(settings: VisionSettings, data: ImageData, ranks: Ranks, errors: Errors) -> int:
    batch, world = settings.batch_size, ranks.world_size
    if not errors.require(batch % world == 0, "--batch-size", batch, f"a multiple of the {world} devices"):
        return 0
    images = len(draw_epoch(len(data.train.targets), settings, 0, 0, world))
    most = images * world
    errors.require(images >= batch // world, "--batch-size", batch, f"at most the {most:,} images of an epoch")
    mixes = settings.mixup > 0 or settings.cutmix > 0
    even = not mixes or (batch // world) % 2 == 0
    errors.require(even, "--batch-size", batch, "an even number of images per device, which are mixed in pairs")
    return images // max(1, batch // world)


# ---- a trained model ----


@dataclass(frozen=True)
class TrainedImageModel:
    """A trained model in eval mode on its device, and its source."""

    model: VisionTransformer
    config: dict
    step: int
    folder: Path


def find_image_run(run: str) -> Path:
    """The folder of a run: a folder, a name under base_dir()/vision, or "" for the one trained last."""
    home = base_dir() / "vision"
    if run:
        for folder in (expand_path(run), home / run):
            if (folder / CONFIG).is_file():
                return folder
    saved = newest_first(home.glob("*/checkpoints/step_*/manifest.json"))
    if run or not saved:
        known = ", ".join(sorted({path.parents[2].name for path in saved})) or "nothing yet"
        raise ValueError(f"--run: got {run!r}, expected a folder or a name under {home} ({known})")
    return saved[0].parents[2]


def load_image_run(run: str, device: torch.device | str = "cpu", ema: bool = False) -> TrainedImageModel:
    """Load a trained model, or with `ema` its averaged weights, from the newest sound checkpoint."""
    folder = find_image_run(run)
    config, path = read_config(folder), find_checkpoint(folder)
    plain, averaged = split_weights(read_weights(path))
    if ema and not averaged:
        raise ValueError(f"--ema: {folder} has no averaged weights: it was trained with --ema 0")
    try:
        if not has_form(config, CONFIG_FORM):
            raise ValueError("the run is not one on images")
        check_weights(build_model(config["model"], "meta"), plain, str(path))  # before a forged size takes memory
        model = build_model(config["model"])
    except ValueError as error:
        raise ValueError(f"--run: {folder / CONFIG} cannot be used: {error}") from error
    load_weights(model, averaged if ema else plain, f"--run: {path}")
    return TrainedImageModel(model.to(device).eval(), config, step_of(path), folder)


def split_weights(weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The model's and the averaged weights of a checkpoint, by the model's names."""
    averaged = {name.removeprefix(EMA): value for name, value in weights.items() if name.startswith(EMA)}
    return {name: value for name, value in weights.items() if not name.startswith(EMA)}, averaged
