"""Train a vision transformer on the common loop, with timm's data sets, augmentation, optimizer and schedule.

Checkpoints, resume, signals and trackers are those of `nanogka.train`. A resumed run draws the order and augmentation
of its current epoch again, so a checkpoint at the end of an epoch continues exactly.
"""

import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import count

import numpy as np
import timm
import torch
import torch.nn.functional as F
from PIL import Image
from timm.data import Mixup, create_dataset, create_transform
from timm.data.auto_augment import RandAugment, posterize
from timm.data.distributed_sampler import RepeatAugSampler
from timm.loss import SoftTargetCrossEntropy
from timm.models import VisionTransformer
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from nanogka.common.distributed import Ranks
from nanogka.common.errors import Errors
from nanogka.common.files import base_dir, expand_path
from nanogka.common.runtime import describe_hardware, pick_device, pick_dtype
from nanogka.data.loader import Batch
from nanogka.train.async_checkpoint import host_copy
from nanogka.train.run_dir import Run, RunDirectory, check_folder
from nanogka.train.trainer import Evaluation, LossFunction, restore, session, train
from nanogka.vision import models  # noqa: F401 (registers the models)
from nanogka.vision.accounting import count_costs
from nanogka.vision.attention import GaussianAttention
from nanogka.vision.settings import VisionSettings

EMA = "ema."  # prefix of the averaged weights in a checkpoint


@dataclass(kw_only=True)
class ImageRun(Run):
    """A run on images that can start; its settings have the recipe filled in."""

    settings: VisionSettings
    train_set: Dataset
    val_set: Dataset
    classes: int
    steps_per_epoch: int


# ---- data ----


def open_images(settings: VisionSettings, split: str, channels: int) -> Dataset:
    """A split ("train" or "validation") of timm's data sets. Raises ValueError if it cannot be opened."""
    try:
        return create_dataset(
            settings.dataset,
            root=str(expand_path(settings.data_dir)),
            split=split,
            is_training=split == "train",
            download=settings.download,
            input_img_mode="RGB" if channels == 3 else "L",
        )
    except (OSError, RuntimeError, ValueError, AssertionError) as error:
        where = f"{settings.dataset or 'a folder'} in {settings.data_dir}"
        raise ValueError(f"--data-dir: cannot open {where}: {' '.join(str(error).split())[:300]}") from error


def train_transform(settings: VisionSettings, model: dict) -> Callable[[Image.Image], Tensor]:
    """timm's augmentation with DeiT's settings. Raises ValueError for an unknown policy."""
    channels, size = model["in_chans"], model["img_size"]
    policy = None if settings.auto_augment == "none" else settings.auto_augment
    try:
        transform = create_transform(
            (channels, size, size),
            is_training=True,
            scale=(settings.crop_scale, 1.0),
            color_jitter=0.3 if channels == 3 else None,
            auto_augment=policy,
            interpolation="bicubic",
            mean=model["mean"],
            std=model["std"],
            re_prob=settings.random_erasing,
            re_mode="pixel",
        )
    except (AssertionError, KeyError, ValueError, IndexError) as error:
        raise ValueError(f"--auto-augment: got {policy!r}, expected none or a policy that timm knows") from error
    for step in transform.transforms:
        for operation in step.ops if isinstance(step, RandAugment) else ():
            if operation.aug_fn is posterize:
                operation.aug_fn = _posterize
    return transform


def _posterize(picture: Image.Image, bits: int, **options: object) -> Image.Image:
    """timm's posterize, but 0 bits give a black picture: rand-m9-mstd0.5-inc1 asks for them and Pillow 13 fails."""
    return posterize(picture, bits, **options) if bits else picture.point(lambda _: 0)


def val_transform(model: dict) -> Callable[[Image.Image], Tensor]:
    """Resize and crop at the center, without augmentation."""
    shape = (model["in_chans"], model["img_size"], model["img_size"])
    return create_transform(
        shape, interpolation="bicubic", mean=model["mean"], std=model["std"], crop_pct=model["crop_pct"]
    )


class EpochLoader(AbstractContextManager):
    """Batches epoch after epoch, without end; `data_wait` is the time in seconds that the loop has waited for them."""

    def __init__(self, run: ImageRun, step: int) -> None:
        self.run, self.step, self.data_wait, self.progress = run, step, 0.0, {}
        self._batches = self._read()

    def __exit__(self, *exception: object) -> None:
        self._batches.close()

    def __next__(self) -> Batch:
        began = time.perf_counter()
        images, labels = next(self._batches)
        self.data_wait += time.perf_counter() - began
        self.step += 1
        return Batch(images, labels, {"batches": self.step})

    def _read(self) -> Iterator[tuple[Tensor, Tensor]]:
        settings, ranks = self.run.settings, self.run.ranks
        sampler = build_sampler(self.run.train_set, settings, ranks)
        loader = DataLoader(
            self.run.train_set,
            settings.batch_size // ranks.world_size,
            sampler=sampler,
            num_workers=settings.workers,
            drop_last=True,
        )
        for epoch in count(self.step // self.run.steps_per_epoch):
            seed_everything(settings.seed, epoch, ranks.rank)  # augmentation, Mixup, stochastic depth
            sampler.set_epoch(settings.seed * 10_000 + epoch)  # the order
            yield from loader


def seed_everything(*key: int) -> None:
    """Seed the generators of Python, numpy and torch: timm's augmentation draws from all three."""
    seed = int(np.random.SeedSequence(key).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def build_sampler(images: Dataset, settings: VisionSettings, ranks: Ranks) -> RepeatAugSampler:
    """This rank's images of an epoch, with repeated augmentation."""
    rounded = 256 if settings.repeats > 1 and len(images) >= 256 else 0  # DeiT rounds an epoch down to 256 images
    return RepeatAugSampler(images, ranks.world_size, ranks.rank, num_repeats=settings.repeats, selected_round=rounded)


# ---- what learns ----


class ImageOptimizer:
    """timm's AdamW with its cosine schedule, clipped gradients, and the moving average of the weights."""

    def __init__(self, model: VisionTransformer, settings: VisionSettings, steps_per_epoch: int, ranks: Ranks) -> None:
        self.model, self.ranks = model, ranks
        self.average = ModelEmaV3(model, decay=settings.ema)
        self.max_norm = settings.clip_grad or math.inf
        self.adamw = create_optimizer_v2(model, opt="adamw", lr=settings.lr, weight_decay=settings.weight_decay)
        self.schedule, _ = create_scheduler_v2(
            self.adamw,
            num_epochs=settings.epochs,
            min_lr=settings.min_lr,
            warmup_lr=min(settings.warmup_lr, settings.lr),
            warmup_epochs=settings.warmup_epochs,
            step_on_epochs=False,
            updates_per_epoch=steps_per_epoch,
        )

    def reduce_gradients(self, loss: Tensor) -> tuple[float, list[float]]:
        """Clip the gradients, which DistributedDataParallel has averaged; returns their norm and every rank's loss."""
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.max_norm)
        return norm.item(), self.ranks.sum([loss.item()], loss.device)

    def zero_grad(self) -> None:
        """Drop the gradients."""
        self.adamw.zero_grad(set_to_none=True)

    def step(self) -> None:
        """Update the weights and their average, and drop the gradients."""
        self.adamw.step()
        self.zero_grad()
        self.average.update(self.model, step=int(next(iter(self.adamw.state.values()))["step"]))

    def set_rates(self, step: int) -> dict[str, float]:
        """Set the learning rate of the update after `step`; returns it for the log."""
        self.schedule.step_update(step)
        return {"lr": self.adamw.param_groups[0]["lr"]}

    def state_dict(self) -> dict:
        """A copy in host memory. The averaged weights are among the weights of a checkpoint."""
        return {"adamw": host_copy(self.adamw.state_dict())}

    def load_state_dict(self, saved: dict) -> None:
        """Load what `state_dict` returned."""
        self.adamw.load_state_dict(saved["adamw"])


class WithAverage(nn.Module):
    """A model and the moving average of its weights, with one `state_dict` for both."""

    def __init__(self, model: VisionTransformer, average: ModelEmaV3) -> None:
        super().__init__()
        self.both = [model, average.module]  # a list, so that neither becomes a submodule

    def state_dict(self) -> dict[str, Tensor]:
        """The weights, and the averaged weights under the prefix `EMA`."""
        model, average = self.both
        return model.state_dict() | {EMA + name: value for name, value in average.state_dict().items()}

    def load_state_dict(self, weights: dict[str, Tensor]) -> None:
        """Load what `state_dict` returned."""
        model, average = self.both
        model.load_state_dict({name: value for name, value in weights.items() if not name.startswith(EMA)})
        average.load_state_dict({n.removeprefix(EMA): v for n, v in weights.items() if n.startswith(EMA)})


def build_loss(model: VisionTransformer, run: ImageRun) -> LossFunction:
    """Cross entropy of smoothed labels; Mixup and CutMix blend pairs of images and their labels."""
    settings, device, parallel, mix = run.settings, run.device, model, None
    if settings.mixup or settings.cutmix:
        mix = Mixup(settings.mixup, settings.cutmix, label_smoothing=settings.smoothing, num_classes=run.classes)
    criterion = SoftTargetCrossEntropy() if mix else nn.CrossEntropyLoss(label_smoothing=settings.smoothing)
    if run.ranks.world_size > 1:
        parallel = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        if mix:
            images, labels = mix(images, labels)
        with torch.autocast(device.type, run.dtype, enabled=run.dtype != torch.float32):
            return criterion(parallel(images).float(), labels)

    return loss


@torch.no_grad()
def measure_accuracy(model: nn.Module, run: ImageRun) -> dict[str, float]:
    """Top-1 and top-5 accuracy (fractions) and loss (nats) on the held-out images, shared by the ranks."""
    sums, ranks = torch.zeros(4, dtype=torch.float64), run.ranks
    indices = range(ranks.rank, len(run.val_set), ranks.world_size)
    batch = max(run.settings.batch_size // ranks.world_size, 64)
    model.eval()
    for images, labels in DataLoader(run.val_set, batch, sampler=indices, num_workers=run.settings.workers):
        images, labels = images.to(run.device), labels.to(run.device)
        with torch.autocast(run.device.type, run.dtype, enabled=run.dtype != torch.float32):
            logits = model(images).float()
        best = logits.topk(min(5, logits.shape[-1])).indices == labels[:, None]
        loss = F.cross_entropy(logits, labels, reduction="sum")
        sums += torch.stack(
            [best[:, 0].sum().double(), best.any(-1).sum().double(), loss.double()]
            + [labels.new_tensor(len(labels)).double()]
        ).cpu()
    model.train()
    top1, top5, loss, images = ranks.sum(sums.tolist(), run.device)
    return {"top1": top1 / images, "top5": top5 / images, "val_loss": loss / images}


# ---- a run ----


def plan_images(settings: VisionSettings, ranks: Ranks) -> ImageRun:
    """Check the settings against the machine, the data and the run's folder, before anything is created."""
    errors, settings = Errors(), settings.with_recipe()
    settings.check(errors)
    errors.require(timm.is_model(settings.model), "--model", settings.model, "timm's name of a vision transformer")
    errors.raise_if_any()
    device = ranks.device(pick_device(settings.device))
    dtype = pick_dtype(settings.dtype, device)
    settings = replace(settings, dtype=str(dtype).removeprefix("torch."))
    known = timm.get_pretrained_cfg(settings.model)
    channels, size = known.input_size[0], settings.img_size or known.input_size[1]
    model = {"name": settings.model, "img_size": size, "in_chans": channels, "drop_path_rate": settings.drop_path}
    model |= {"mean": list(known.mean), "std": list(known.std), "crop_pct": known.crop_pct}
    train_set, val_set = (open_images(settings, split, channels) for split in ("train", "validation"))
    train_set.transform, val_set.transform = train_transform(settings, model), val_transform(model)
    model["num_classes"] = classes = count_classes(train_set)
    steps = plan_epoch(settings, train_set, ranks)
    with torch.device("meta"):
        costs = count_costs(build_model(model))
    facts = {"steps_per_epoch": steps, "classes": classes, "timm": timm.__version__}
    facts |= {"parameters": costs["parameters"], "flops_per_image": costs["flops"]}
    name = settings.dataset.rpartition("/")[2] or expand_path(settings.data_dir).name
    folder = base_dir() / "vision" / (settings.run or f"{name}-{settings.model}")
    check_folder(settings, folder, model, facts)
    return ImageRun(
        kind="vision",
        monitor="val_loss",
        lr_flag="--lr",
        folder=folder,
        settings=settings,
        model=model,
        facts=facts,
        ranks=ranks,
        device=device,
        dtype=dtype,
        hardware=describe_hardware(device),
        num_iterations=steps * settings.epochs,
        eval_every=settings.eval_every * steps,
        save_every=settings.save_every * steps,
        train_set=train_set,
        val_set=val_set,
        classes=classes,
        steps_per_epoch=steps,
    )


def build_model(model: dict) -> VisionTransformer:
    """The network that a run's config describes, with random weights."""
    options = {name: model[name] for name in ("img_size", "in_chans", "drop_path_rate", "num_classes")}
    try:
        built = timm.create_model(model["name"], **options)
    except (TypeError, AssertionError) as error:
        raise ValueError(f"--model: timm cannot build {model['name']!r} with {options} ({error})") from error
    if not isinstance(built, VisionTransformer):
        raise ValueError(f"--model: got {model['name']!r}, expected a VisionTransformer, not {type(built).__name__}")
    return built


def count_classes(images: Dataset) -> int:
    """The number of classes of a data set of timm, torchvision or a folder."""
    classes = getattr(images, "classes", None) or getattr(getattr(images, "reader", None), "class_to_idx", None)
    if not classes:
        raise ValueError(f"--dataset: {type(images).__name__} does not name its classes")
    return len(classes)


def plan_epoch(settings: VisionSettings, images: Dataset, ranks: Ranks) -> int:
    """The number of steps per epoch. Raises ValueError if the batch does not fit."""
    errors, batch, world = Errors(), settings.batch_size, ranks.world_size
    errors.require(batch % world == 0, "--batch-size", batch, f"a multiple of the {world} devices")
    mixes = settings.mixup > 0 or settings.cutmix > 0
    even = not mixes or batch // world % 2 == 0
    errors.require(even, "--batch-size", batch, "an even number of images per device: Mixup blends pairs")
    per_rank = len(list(build_sampler(images, settings, ranks)))
    errors.require(
        per_rank * world >= batch, "--batch-size", batch, f"at most the {per_rank * world:,} images of an epoch"
    )
    errors.raise_if_any()
    return per_rank // (batch // world)


def describe_images(run: ImageRun) -> str:
    """The run in a few lines, for people."""
    s, facts = run.settings, run.facts
    policy = (
        f"{s.auto_augment}, mixup {s.mixup:g}, cutmix {s.cutmix:g}, erasing {s.random_erasing:g}, repeats {s.repeats}"
    )
    return "\n".join(
        [
            f"model      {s.model}, {run.model['img_size']} pixels, {facts['parameters']:,} parameters, "
            f"{facts['flops_per_image'] / 1e9:.3g} GFLOPs per image",
            f"data       {len(run.train_set):,} images of {run.classes:,} classes, {len(run.val_set):,} held out",
            f"recipe     {s.recipe}: AdamW {s.lr:g}, decay {s.weight_decay:g}, EMA {s.ema:g}; {policy}",
            f"horizon    {s.epochs} epochs × {run.steps_per_epoch:,} steps × {s.batch_size:,} images",
            f"machine    {run.ranks.world_size} × {run.hardware.name}, {s.dtype}",
            f"folder     {run.folder}",
        ]
    )


def train_images(run: ImageRun) -> tuple[int, VisionTransformer | None]:
    """Train; returns the exit code and the model with averaged weights (None if there was nothing to do)."""
    with session(run) as start:
        if start.finished:
            return 0, None
        seed_everything(run.settings.seed)
        model = build_model(run.model).to(run.device).train()
        optimizer = ImageOptimizer(model, run.settings, run.steps_per_epoch, run.ranks)
        both = WithAverage(model, optimizer.average)
        state = restore(start, both, optimizer)
        sigma = [layer for layer in model.modules() if isinstance(layer, GaussianAttention)]

        def measure(_: nn.Module) -> dict[str, float]:
            averaged = measure_accuracy(optimizer.average.module, run)
            return measure_accuracy(model, run) | {f"ema_{name}": value for name, value in averaged.items()}

        per_step = {"images": run.settings.batch_size, "epoch": 1 / run.steps_per_epoch}
        with RunDirectory(run, start, state.step, per_step) as run_dir, EpochLoader(run, state.step) as loader:
            code = train(
                both,
                optimizer,
                loader,
                build_loss(model, run),
                optimizer.set_rates,
                run_dir,
                [Evaluation(run.eval_every, measure)],
                state,
                observe=lambda: {"bandwidth": [layer.bandwidth.tolist() for layer in sigma]},
            )
        return code, optimizer.average.module
