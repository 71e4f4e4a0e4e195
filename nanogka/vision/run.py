"""From settings to an `ImageRun`, and from a run's folder, base_dir()/vision/<name>, back to a model.

The folder's files are those of a language model's run (`nanogka.runs`, `nanogka.checkpoint`), with the same promises.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import timm
import torch
from timm.models import VisionTransformer
from timm.utils import ModelEmaV3
from torch import Tensor, nn

from nanogka.checkpoint import check_weights, load_weights, read_weights, step_of
from nanogka.common.distributed import Ranks
from nanogka.common.errors import Errors
from nanogka.common.files import base_dir, expand_path, has_form
from nanogka.common.formatting import duration, scientific
from nanogka.common.runtime import describe_hardware, pick_device, pick_dtype
from nanogka.runs import CONFIG, find_checkpoint, newest_first, read_config
from nanogka.train.run_dir import Run, RunDirectory, check_folder
from nanogka.train.trainer import Evaluation, restore, session, train
from nanogka.vision.accounting import ASSUMED_MFU, TRAINING_PASSES, ImageAccounting, count_image_model
from nanogka.vision.attention import GaussianAttention
from nanogka.vision.data import ImageData, draw_epoch, open_image_data, seed_everything, train_transform
from nanogka.vision.evaluate import measure_accuracy
from nanogka.vision.learn import OF_WEIGHTS, ImageLoader, ImageOptimizer, build_loss
from nanogka.vision.models import build_model, model_options
from nanogka.vision.settings import VisionSettings

CONFIG_FORM = {"model": {"name": "", "img_size": 0}, "run": {"classes": 0}, "settings": {"data": ""}}
EMA = "ema."  # before the names of the averaged weights in a checkpoint


@dataclass(kw_only=True)
class ImageRun(Run):
    """A run on images that can start; its settings have the recipe filled in."""

    settings: VisionSettings
    data: ImageData
    accounting: ImageAccounting
    steps_per_epoch: int


def plan_images(settings: VisionSettings, ranks: Ranks, errors: Errors) -> ImageRun:
    """Check the settings against the machine, the data and the run's folder, before anything is created."""
    settings = settings.with_recipe()
    settings.check(errors)
    errors.raise_if_any()
    device = ranks.device(pick_device(settings.device))
    dtype, data = pick_dtype(settings.dtype, device), open_image_data(settings.data)
    settings = replace(settings, dtype=str(dtype).removeprefix("torch."))
    options = model_options(settings, data)
    accounting = count_image_model(build_model(options, torch.device("meta")))
    train_transform(data, settings, options["img_size"])
    steps = plan_epoch(settings, data, ranks)
    folder = base_dir() / "vision" / (settings.run or f"{data.name}-{settings.model}")
    facts = {
        "parameters": accounting.parameters,
        "flops_per_image": accounting.flops,
        "steps_per_epoch": steps,
        "data": data.fingerprint,
        "classes": len(data.classes),
        "timm": timm.__version__,
    }
    check_folder(settings, folder, options, facts)
    return ImageRun(
        kind="vision",
        monitor="val_loss",
        lr_flag="--lr",
        folder=folder,
        settings=settings,
        model=options,
        facts=facts,
        ranks=ranks,
        device=device,
        dtype=dtype,
        hardware=describe_hardware(device),
        num_iterations=steps * settings.epochs,
        eval_every=settings.eval_every * steps,
        save_every=settings.save_every * steps,
        data=data,
        accounting=accounting,
        steps_per_epoch=steps,
    )


def plan_epoch(settings: VisionSettings, data: ImageData, ranks: Ranks) -> int:
    """The steps of an epoch. Raises ValueError if the batch does not fit it."""
    errors = Errors()
    batch, world = settings.batch_size, ranks.world_size
    errors.require(batch % world == 0, "--batch-size", batch, f"a multiple of the {world} devices")
    errors.raise_if_any()
    images = len(draw_epoch(len(data.train.targets), settings, 0, 0, world))
    most = images * world
    errors.require(images >= batch // world, "--batch-size", batch, f"at most the {most:,} images of an epoch")
    mixes = settings.mixup > 0 or settings.cutmix > 0
    even = not mixes or (batch // world) % 2 == 0
    errors.require(even, "--batch-size", batch, "an even number of images per device, which are mixed in pairs")
    errors.raise_if_any()
    return images // (batch // world)


def describe_images(run: ImageRun) -> str:
    """The run and its cost in a few lines, for people."""
    s, a, data = run.settings, run.accounting, run.data
    images, peak = run.num_iterations * s.batch_size, run.hardware.peak_flops
    flops = TRAINING_PASSES * a.flops * images
    cost = f"{scientific(flops)} FLOPs"
    if peak:
        seconds = flops / (ASSUMED_MFU * peak * run.ranks.world_size)
        cost += f", about {duration(seconds)} at {ASSUMED_MFU:.0%} of {peak:.2g} FLOP/s per device"
    policy = f"{s.auto_augment}, mixup {s.mixup:g}, cutmix {s.cutmix:g}, erasing {s.random_erasing:g}"
    lines = [
        f"model      {s.model}, {run.model['img_size']} pixels, {a.tokens} tokens, {a.parameters:,} parameters, "
        f"{a.flops / 1e9:.3g} GFLOPs per image",
        f"data       {data.name}: {len(data.train.targets):,} images of {len(data.classes):,} classes, "
        f"{len(data.val.targets):,} to measure",
        f"recipe     {s.recipe}: AdamW {s.lr:g}, decay {s.weight_decay:g}, {s.warmup_epochs} epochs warm-up, "
        f"cosine; {policy}, repeats {s.repeats}, EMA {s.ema:g}",
        f"horizon    {s.epochs} epochs × {run.steps_per_epoch:,} steps × {s.batch_size:,} images = {images:,}",
        f"machine    {run.ranks.world_size} × {run.hardware.name}, {str(run.dtype).removeprefix('torch.')}",
        f"cost       {cost}",
        f"folder     {run.folder}",
    ]
    return "\n".join(lines)


def train_images(run: ImageRun) -> int:
    """Build what learns, and train it; returns the exit code of `train`."""
    with session(run) as start:
        if start.finished:
            return 0
        seed_everything(run.settings.seed, OF_WEIGHTS)
        model = build_model(run.model).to(run.device).train()
        optimizer = ImageOptimizer(model, run.settings, run.steps_per_epoch, run.ranks)
        weights = AveragedWeights(model, optimizer.average)
        state = restore(start, weights, optimizer)
        loss_fn = build_loss(model, run.settings, len(run.data.classes), run.dtype, run.ranks)
        step = state.loader["batches"] if state.loader else state.step  # older checkpoints have the step alone
        size = run.model["img_size"]
        per_step = {"images": run.settings.batch_size, "epoch": 1 / run.steps_per_epoch}
        with (
            RunDirectory(run, start, state.step, per_step) as run_dir,
            ImageLoader(run.data, run.settings, run.ranks, run.device, step, size, run.steps_per_epoch) as loader,
        ):
            return train(
                weights,
                optimizer,
                loader,
                loss_fn,
                optimizer.set_rates,
                run_dir,
                [Evaluation(run.eval_every, lambda _: measure_run(run, model, optimizer.average))],
                state,
                observe=lambda: {"bandwidth": bandwidths(model)},
            )


class AveragedWeights(nn.Module):
    """A model and the moving average of its weights as one: `state_dict` has both."""

    def __init__(self, model: VisionTransformer, average: ModelEmaV3 | None) -> None:
        super().__init__()
        self.both = [model, average]  # in a list: they are not modules of this one

    def state_dict(self) -> dict[str, Tensor]:
        """The weights, and the averaged ones under names that begin with `EMA`."""
        model, average = self.both
        averaged = average.module.state_dict() if average else {}
        return model.state_dict() | {EMA + name: value for name, value in averaged.items()}

    def load_state_dict(self, weights: dict[str, Tensor]) -> None:
        """Take what `state_dict` gave."""
        model, average = self.both
        plain, averaged = split_weights(weights)
        model.load_state_dict(plain)
        if average:
            average.module.load_state_dict(averaged)


def bandwidths(model: VisionTransformer) -> list[list[float]]:
    """σ of each head of each layer that has them."""
    return [m.bandwidth.tolist() for m in model.modules() if isinstance(m, GaussianAttention)]


def measure_run(run: ImageRun, model: VisionTransformer, average: ModelEmaV3 | None) -> dict[str, float]:
    """Accuracy and loss of a model, and of its averaged weights, on the held-out images of the run's data."""
    size, batch = run.model["img_size"], max(run.settings.batch_size // run.ranks.world_size, 64)
    common = {"size": size, "batch": batch, "device": run.device, "dtype": run.dtype}
    common |= {"ranks": run.ranks, "workers": run.settings.workers}
    values = measure_accuracy(model, run.data, **common)
    if average:
        averaged = measure_accuracy(average.module, run.data, **common)
        values |= {f"ema_{name}": averaged[name] for name in ("top1", "top5", "val_loss") if name in averaged}
    return values


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
