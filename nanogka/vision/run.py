"""From settings to an `ImageRun`, and from a run's folder back to a model.

A run lives in base_dir()/vision/<name>: config.yaml, metrics.jsonl, checkpoints, the report. Its files are those of a
language model's run (`nanogka.runs`, `nanogka.checkpoint`), with the same promises.
"""

import math
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import timm
import torch
from safetensors.torch import load_file
from timm.models import VisionTransformer
from torch import Tensor

from nanogka.checkpoint import WEIGHTS, list_checkpoints, load_weights, step_of
from nanogka.cli import flag_name
from nanogka.distributed import Ranks
from nanogka.formatting import duration, scientific
from nanogka.problems import Problems
from nanogka.runs import CONFIG, find_checkpoint, read_config
from nanogka.runtime import Hardware, base_dir, describe_hardware, pick_device_and_dtype
from nanogka.train.setup import find_resume
from nanogka.vision.accounting import ASSUMED_MFU, TRAINING_PASSES, ImageAccounting, count_image_model
from nanogka.vision.attention import GaussianAttention
from nanogka.vision.data import ImageData, draw_epoch, open_image_data, train_transform
from nanogka.vision.settings import FREE_ON_RESUME, VisionSettings

EMA = "ema."  # before the names of the averaged weights in a checkpoint
RESULTS = ("evaluation.json", "report.md", "report.html", "plots", "maps")


@dataclass(frozen=True)
class ImageRun:
    """A run that can start.

    Attributes:
        settings: with the recipe filled in.
        model: what `build_model` takes.
        folder: of the run; not created yet.
        resume_from: the checkpoint to go on from; None starts anew.
        found: names of the checkpoints in the folder.
        notes: lines for the user.
    """

    settings: VisionSettings
    ranks: Ranks
    data: ImageData
    model: dict
    accounting: ImageAccounting
    device: torch.device
    dtype: torch.dtype
    hardware: Hardware
    folder: Path
    steps_per_epoch: int
    resume_from: Path | None
    found: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def batch(self) -> int:
        """Images of a step on this device."""
        return self.settings.batch_size // self.ranks.world_size

    @property
    def steps(self) -> int:
        """Updates in all."""
        return self.steps_per_epoch * self.settings.epochs

    def describe(self) -> str:
        """The run and its cost in a few lines, for people."""
        s, a, data = self.settings, self.accounting, self.data
        images = self.steps * s.batch_size
        flops = TRAINING_PASSES * a.flops * images
        peak = self.hardware.peak_flops
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
        return "\n".join([*lines, *self.notes])


def prepare(settings: VisionSettings, ranks: Ranks, problems: Problems) -> ImageRun:
    """Check the settings against the machine, the data and the run's folder.

    Raises:
        ValueError: one line for each problem, naming the flag, what it got and what it takes.
    """
    settings = settings.with_recipe()
    settings.check(problems)
    sound = not problems.lines
    device, dtype = pick_device_and_dtype(settings.device, settings.dtype, problems)
    data = problems.attempt(lambda: open_image_data(settings.data))
    if not (sound and data and device and dtype):
        problems.raise_any()
    settings = replace(settings, dtype=str(dtype).removeprefix("torch."))
    options = model_options(settings, data)
    folder = base_dir() / "vision" / (settings.run or f"{data.name}-{settings.model}")
    model = problems.attempt(lambda: build_model(options, torch.device("meta")))
    problems.attempt(lambda: train_transform(data, settings, options["img_size"]))
    steps = _steps_per_epoch(settings, data, ranks, problems)
    resume_from, notes = None, []
    if not settings.dry_run:
        refuse = partial(_refuse_differences, settings, folder, data)
        resumed = problems.attempt(lambda: find_resume(folder, settings.resume, settings.overwrite, refuse, RESULTS))
        resume_from, notes = resumed or (None, [])
    problems.raise_any()
    device = ranks.device(device)
    found = tuple(path.name for path in list_checkpoints(folder / "checkpoints"))
    return ImageRun(
        settings=settings,
        ranks=ranks,
        data=data,
        model=options,
        accounting=count_image_model(model),
        device=device,
        dtype=dtype,
        hardware=describe_hardware(device),
        folder=folder,
        steps_per_epoch=steps,
        resume_from=resume_from,
        found=found,
        notes=tuple(notes),
    )


def _steps_per_epoch(settings: VisionSettings, data: ImageData, ranks: Ranks, problems: Problems) -> int:
    batch, world = settings.batch_size, ranks.world_size
    if not problems.check(batch % world == 0, "--batch-size", batch, f"a multiple of the {world} devices"):
        return 0
    images = len(draw_epoch(len(data.train.targets), settings, 0, 0, world))
    most = images * world
    problems.check(images >= batch // world, "--batch-size", batch, f"at most the {most:,} images of an epoch")
    mixes = settings.mixup > 0 or settings.cutmix > 0
    problems.check(
        not mixes or (batch // world) % 2 == 0,
        "--batch-size",
        batch,
        "an even number of images a device, which are mixed in pairs",
    )
    return images // max(1, batch // world)


# ---- the model ----


def model_options(settings: VisionSettings, data: ImageData) -> dict:
    """Arguments of `build_model`, fit for config.yaml."""
    return {
        "name": settings.model,
        "img_size": settings.img_size or data.size or 224,
        "patch_size": settings.patch_size,
        "in_chans": data.channels,
        "num_classes": len(data.classes),
        "drop_path_rate": settings.drop_path,
        "bandwidth_init": settings.bandwidth_init,
    }


def build_model(options: dict, device: torch.device | str = "cpu") -> VisionTransformer:
    """The network, with weights drawn from torch's generator.

    Raises:
        ValueError: if timm knows no such model, it is no vision transformer, or its parts do not fit.
    """
    options = {name: value for name, value in options.items() if value is not None}
    name, start = options.pop("name"), options.pop("bandwidth_init", None)
    pixels, patch = options["img_size"], options.get("patch_size", 1)
    if pixels % patch:
        raise ValueError(f"--img-size: got {pixels}, takes a multiple of --patch-size, {patch}")
    if not timm.is_model(name):
        near = ", ".join(timm.list_models("deit*gka*"))
        raise ValueError(f"--model: got {name!r}, takes a vision transformer by timm's name: {near}, …")
    try:
        with torch.device(device):
            model = timm.create_model(name, **options)
    except (TypeError, RuntimeError, AssertionError, ValueError) as error:
        why = " ".join(str(error).split())[:200]
        raise ValueError(f"--model: got {name!r}, which timm cannot make with {options}: {why}") from error
    if not isinstance(model, VisionTransformer):
        raise ValueError(f"--model: got {name!r}, takes a vision transformer, not {type(model).__name__}")
    if pixels % (patch := model.patch_embed.patch_size[0]):
        raise ValueError(f"--img-size: got {pixels}, takes a multiple of the patch, {patch}")
    if start is not None:
        with torch.no_grad():
            for layer in model.modules():
                if isinstance(layer, GaussianAttention):
                    layer.log_bandwidth.fill_(math.log(start))
    return model


# ---- the run's folder ----


def _refuse_differences(settings: VisionSettings, folder: Path, data: ImageData) -> None:
    """Raise ValueError naming every way in which the run in `folder` is another one."""
    saved, problems = read_config(folder), Problems()
    for name, value in settings.to_dict().items():
        before = saved["settings"].get(name, value)
        same = name in FREE_ON_RESUME or value == before
        problems.check(same, flag_name(name), value, f"{before!r}, as {folder} has")
    same = saved["run"].get("data") == data.fingerprint
    problems.check(same, "--data", settings.data, f"the pictures that {folder} was trained with: these are others")
    problems.raise_any()


def build_config(run: ImageRun) -> dict:
    """The content of config.yaml."""
    facts = {
        "tag": run.folder.name,
        "kind": "vision",
        "parameters": run.accounting.parameters,
        "flops_per_image": run.accounting.flops,
        "steps_per_epoch": run.steps_per_epoch,
        "data": run.data.fingerprint,
        "classes": len(run.data.classes),
        "hardware": run.hardware.name,
        "world_size": run.ranks.world_size,
        "dtype": str(run.dtype).removeprefix("torch."),
        "torch": str(torch.__version__),
        "timm": timm.__version__,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
    return {"model": run.model, "settings": run.settings.to_dict(), "run": facts}


@dataclass(frozen=True)
class TrainedImageModel:
    """A trained model in eval mode on its device, and where it came from."""

    model: VisionTransformer
    config: dict
    step: int
    folder: Path


def find_image_run(run: str) -> Path:
    """The folder of a run: a folder, a name under base_dir()/vision, or "" for the one trained last.

    Raises:
        ValueError: if there is none.
    """
    home = base_dir() / "vision"
    if run:
        for folder in (Path(run).expanduser(), home / run):
            if (folder / CONFIG).is_file():
                return folder
    saved = sorted(home.glob("*/checkpoints/step_*/manifest.json"), key=lambda path: path.stat().st_mtime)
    if run or not saved:
        known = ", ".join(sorted({path.parents[2].name for path in saved})) or "nothing yet"
        raise ValueError(f"--run: got {run!r}, takes a folder or a name under {home} ({known})")
    return saved[-1].parents[2]


def load_image_run(run: str, device: torch.device | str = "cpu", ema: bool = False) -> TrainedImageModel:
    """Load a trained model, or with `ema` its averaged weights, from the newest sound checkpoint.

    Raises:
        ValueError: if there is no such run, no sound checkpoint, or what there is does not fit together.
    """
    folder = find_image_run(run)
    config, path = read_config(folder), find_checkpoint(folder)
    plain, averaged = split_weights(load_file(path / WEIGHTS))
    if ema and not averaged:
        raise ValueError(f"--ema: {folder} has no averaged weights: it was trained with --ema 0")
    model = build_model(config["model"])
    load_weights(model, averaged if ema else plain, f"--run: {path}")
    return TrainedImageModel(model.to(device).eval(), config, step_of(path), folder)


def split_weights(weights: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The model's and the averaged weights of a checkpoint, by the model's names."""
    averaged = {name.removeprefix(EMA): value for name, value in weights.items() if name.startswith(EMA)}
    return {name: value for name, value in weights.items() if not name.startswith(EMA)}, averaged
