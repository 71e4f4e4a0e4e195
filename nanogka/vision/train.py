"""Train a vision transformer with timm's data sets, augmentation, optimizer, schedule and moving average.

Images have their own short loop: the loop of the language model saves, resumes and counts by steps and tokens, an image
run by epochs. A run's folder has config.yaml, metrics.jsonl (a line per epoch) and last.pt, the state after the last
finished epoch. A resumed run draws the order and augmentation of an epoch from the seed and the epoch's number alone,
so it repeats what an uninterrupted run does.
"""

import io
import json
import math
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import timm
import torch
import torch.nn.functional as F
import yaml
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
from tqdm import tqdm

from nanogka.checkpoint import check_finite, check_optimizer_state, check_weights, read_torch
from nanogka.common.distributed import Ranks
from nanogka.common.errors import Errors, in_one_line
from nanogka.common.files import atomic_write, base_dir, expand_path
from nanogka.common.formatting import shorten
from nanogka.common.runtime import describe_hardware, pick_device, pick_dtype
from nanogka.vision import models  # noqa: F401 (registers the models)
from nanogka.vision.accounting import image_costs
from nanogka.vision.settings import VisionSettings

# DeiT's constants, which no recipe changes.
MIN_LR, WARMUP_LR = 1e-5, 1e-6  # learning rates at the end and at the start
CLIP_GRAD = 1.0  # maximum norm of the gradient
SMOOTHING = 0.1  # of the labels


@dataclass(frozen=True)
class ImagePlan:
    """A run that can start; its settings have the recipe filled in."""

    settings: VisionSettings
    folder: Path
    ranks: Ranks
    device: torch.device
    dtype: torch.dtype
    model: dict  # name, options and image statistics of the network
    train_set: Dataset
    val_set: Dataset
    steps_per_epoch: int


# ---- data ----


@contextmanager
def timm_errors(flag: str) -> Iterator[None]:
    """Name the flag that timm rejects: timm raises many types of exceptions for a bad value."""
    try:
        yield
    except (AssertionError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"{flag}: {in_one_line(error)}") from error


def open_images(settings: VisionSettings, split: str, channels: int) -> Dataset:
    """A split ("train" or "validation") of one of timm's data sets."""
    with timm_errors("--dataset, --data-dir"):
        return create_dataset(
            settings.dataset,
            root=str(expand_path(settings.data_dir)),
            split=split,
            is_training=split == "train",
            download=settings.download,
            input_img_mode="RGB" if channels == 3 else "L",
        )


def count_classes(images: Dataset) -> int:
    """The number of classes of a data set of timm, torchvision or a folder."""
    classes = getattr(images, "classes", None) or getattr(getattr(images, "reader", None), "class_to_idx", None)
    if not classes:
        raise ValueError(f"dataset: {type(images).__name__} does not name its classes")
    return len(classes)


def image_transforms(settings: VisionSettings, model: dict) -> tuple[Callable, Callable]:
    """timm's augmentation with DeiT's settings; and for held-out images a resize and a crop at the center."""
    shape = (model["in_chans"], model["img_size"], model["img_size"])
    common = {"interpolation": "bicubic", "mean": model["mean"], "std": model["std"]}
    with timm_errors("--auto-augment"):
        augment = create_transform(
            shape,
            is_training=True,
            scale=(settings.crop_scale, 1.0),
            color_jitter=0.3 if shape[0] == 3 else None,
            auto_augment=None if settings.auto_augment == "none" else settings.auto_augment,
            re_prob=settings.random_erasing,
            re_mode="pixel",
            **common,
        )
    for step in augment.transforms:
        for operation in step.ops if isinstance(step, RandAugment) else ():
            if operation.aug_fn is posterize:
                operation.aug_fn = _posterize
    return augment, create_transform(shape, crop_pct=model["crop_pct"], **common)


def _posterize(picture: Image.Image, bits: int, **options: object) -> Image.Image:
    """timm's posterize, but 0 bits give a black picture: rand-m9-mstd0.5-inc1 asks for them and Pillow 13 fails."""
    return posterize(picture, bits, **options) if bits else picture.point(lambda _: 0)


def build_sampler(images: Dataset, settings: VisionSettings, ranks: Ranks) -> RepeatAugSampler:
    """This rank's images of an epoch, with repeated augmentation."""
    # Several augmented copies of each image per epoch, of fewer images: one of DeiT's key ingredients.
    rounded = 256 if settings.repeats > 1 and len(images) >= 256 else 0  # DeiT rounds an epoch down to 256 images
    return RepeatAugSampler(images, ranks.world_size, ranks.rank, num_repeats=settings.repeats, selected_round=rounded)


def seed_everything(*key: int) -> None:
    """Seed the generators of Python, numpy and torch: timm's augmentation draws from all three."""
    seed = int(np.random.SeedSequence(key).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


# ---- plan ----


def plan_images(settings: VisionSettings, ranks: Ranks) -> ImagePlan:
    """Check the settings against the machine, the data and the run's folder, before anything is created."""
    errors, settings = Errors(), settings.with_recipe()
    batch, world = settings.batch_size, ranks.world_size
    errors.require(bool(settings.data_dir), "data_dir", settings.data_dir, "a folder")
    errors.require(timm.is_model(settings.model), "model", settings.model, "timm's name of a vision transformer")
    short = settings.warmup_epochs < settings.epochs
    errors.require(short, "warmup_epochs", settings.warmup_epochs, f"fewer than the {settings.epochs} epochs")
    errors.require(batch % world == 0, "batch_size", batch, f"a multiple of the {world} devices")
    even = not (settings.mixup or settings.cutmix) or batch // world % 2 == 0
    errors.require(even, "batch_size", batch, "an even number of images per device: Mixup blends pairs")
    errors.raise_if_any()

    known = timm.get_pretrained_cfg(settings.model)
    channels, size = known.input_size[0], settings.img_size or known.input_size[1]
    model = {"name": settings.model, "img_size": size, "in_chans": channels, "drop_path_rate": settings.drop_path}
    model |= {"mean": list(known.mean), "std": list(known.std), "crop_pct": known.crop_pct}
    train_set, val_set = (open_images(settings, split, channels) for split in ("train", "validation"))
    train_set.transform, val_set.transform = image_transforms(settings, model)
    model["num_classes"] = count_classes(train_set)
    with torch.device("meta"):
        build_model(model)
    per_rank = len(build_sampler(train_set, settings, ranks))
    errors.require(per_rank >= batch // world, "batch_size", batch, f"at most the {per_rank * world:,} of an epoch")

    name = settings.dataset.rpartition("/")[2] or expand_path(settings.data_dir).name
    folder = base_dir() / "vision" / (settings.run or f"{name}-{settings.model}")
    if settings.resume:
        errors.require((folder / "last.pt").is_file(), "resume", folder, "a folder with last.pt")
    else:
        errors.require(not folder.exists(), "run", folder, "a new folder, or --resume")
    errors.raise_if_any()
    device = ranks.device(pick_device(settings.device))
    dtype, steps = pick_dtype(settings.dtype, device), per_rank // (batch // world)
    return ImagePlan(settings, folder, ranks, device, dtype, model, train_set, val_set, steps)


def build_model(model: dict) -> VisionTransformer:
    """The network that a run's config describes, with random weights."""
    options = {name: model[name] for name in ("img_size", "in_chans", "drop_path_rate", "num_classes")}
    with timm_errors("--model"):
        built = timm.create_model(model["name"], **options)
    if not isinstance(built, VisionTransformer):
        raise ValueError(f"model: got {model['name']!r}, expected a VisionTransformer, not {type(built).__name__}")
    return built


def describe_images(run: ImagePlan) -> str:
    """The run in a few lines, for people."""
    s = run.settings
    with torch.device("meta"):
        costs = image_costs(build_model(run.model))
    images = f"{len(run.train_set):,} images of {run.model['num_classes']:,} classes, {len(run.val_set):,} held out"
    return f"""\
model      {s.model}, {costs["parameters"]:,} parameters, {costs["flops"] / 1e9:.3g} GFLOPs per image
data       {images}
plan       {s.epochs} epochs × {run.steps_per_epoch:,} steps × {s.batch_size:,} images, recipe {s.recipe}
machine    {run.ranks.world_size} × {describe_hardware(run.device).name}, {run.dtype}
folder     {run.folder}"""


# ---- training ----


def train_images(run: ImagePlan) -> VisionTransformer:
    """Train; returns the model with averaged weights. Raises ValueError if the loss is not finite."""
    settings, ranks, device = run.settings, run.ranks, run.device
    with ranks.process_group(device):
        seed_everything(settings.seed)
        model = build_model(run.model).to(device).train()
        # The average of the weights over about 1 / (1 − decay) steps is less noisy: the paper's top-1 is its accuracy.
        average = ModelEmaV3(model, decay=settings.ema)
        optimizer = create_optimizer_v2(model, opt="adamw", lr=settings.lr, weight_decay=settings.weight_decay)
        schedule, _ = create_scheduler_v2(
            optimizer,
            num_epochs=settings.epochs,
            min_lr=MIN_LR,
            warmup_lr=min(WARMUP_LR, settings.lr),
            warmup_epochs=settings.warmup_epochs,
            step_on_epochs=False,
            updates_per_epoch=run.steps_per_epoch,
        )
        first = 0
        if settings.resume:
            first = load_last(run, model, average.module, optimizer)
        elif ranks.is_main:
            run.folder.mkdir(parents=True)
            config = {"model": run.model, "settings": asdict(settings), "timm": timm.__version__}
            atomic_write(run.folder / "config.yaml", yaml.safe_dump(config, sort_keys=False))

        sampler, loss_fn = build_sampler(run.train_set, settings, ranks), build_loss(model, run)
        batch = settings.batch_size // ranks.world_size
        loader = DataLoader(run.train_set, batch, sampler=sampler, num_workers=settings.workers, drop_last=True)
        for epoch in range(first, settings.epochs):
            seed_everything(settings.seed, epoch, ranks.rank)  # augmentation, Mixup, stochastic depth
            sampler.set_epoch(settings.seed * 10_000 + epoch)  # the order
            # The sum of the losses stays on the device: to read every loss would make the GPU wait for the CPU.
            began, total = time.perf_counter(), torch.zeros((), device=device)
            step = epoch * run.steps_per_epoch
            for images, labels in tqdm(loader, f"epoch {epoch + 1}/{settings.epochs}", disable=not ranks.is_main):
                loss = loss_fn(images.to(device), labels.to(device))
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), CLIP_GRAD)
                schedule.step_update(step)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                step += 1
                average.update(model, step=step)
                total += loss.detach()
            losses = ranks.sum([total.item() / run.steps_per_epoch], device)
            row = {"epoch": epoch + 1, "lr": optimizer.param_groups[0]["lr"], "loss": losses[0] / ranks.world_size}
            if not math.isfinite(row["loss"]):
                raise ValueError(f"lr: the loss of epoch {epoch + 1} is {row['loss']}: lower --lr, or --dtype float32")
            row["images_per_second"] = run.steps_per_epoch * settings.batch_size / (time.perf_counter() - began)
            if (epoch + 1) % settings.eval_every == 0 or epoch + 1 == settings.epochs:
                row |= measure_accuracy(model, run)
                row |= {f"ema_{name}": value for name, value in measure_accuracy(average.module, run).items()}
            if ranks.is_main:
                finish_epoch(run, row, {"model": model, "ema": average.module, "optimizer": optimizer})
        return average.module


def load_last(run: ImagePlan, model: nn.Module, average: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load last.pt and return the number of finished epochs. Raises ValueError that names the file if it is foreign."""
    path = run.folder / "last.pt"
    saved, source = read_torch(path, run.device), f"resume: {path}"
    if set(saved) != {"model", "ema", "optimizer", "epoch"} or type(saved["epoch"]) is not int:
        raise ValueError(
            f"{source}: holds {shorten(', '.join(map(str, saved)))}, expected model, ema, optimizer, epoch"
        )
    for name, network in (("model", model), ("ema", average)):
        check_weights(network, saved[name], f"{source}: {name}")
        check_finite(saved[name], f"{source}: {name}")
    # torch keeps state by a parameter's position, counted through all groups. The groups have the run's own settings.
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    shapes = {i: {"step": (), "exp_avg": p.shape, "exp_avg_sq": p.shape} for i, p in enumerate(parameters)}
    state = saved["optimizer"].get("state") if isinstance(saved["optimizer"], dict) else saved["optimizer"]
    check_optimizer_state(state, shapes, source)
    own = {
        i: {key: value.clone(memory_format=torch.contiguous_format) for key, value in entry.items()}
        for i, entry in state.items()
    }
    model.load_state_dict(saved["model"])
    average.load_state_dict(saved["ema"])
    optimizer.load_state_dict(optimizer.state_dict() | {"state": own})
    return saved["epoch"]


def build_loss(model: VisionTransformer, run: ImagePlan) -> Callable[[Tensor, Tensor], Tensor]:
    """Cross entropy of smoothed labels; Mixup and CutMix blend pairs of images and their labels."""
    settings, device, parallel, mix = run.settings, run.device, model, None
    if settings.mixup or settings.cutmix:
        classes = run.model["num_classes"]
        mix = Mixup(settings.mixup, settings.cutmix, label_smoothing=SMOOTHING, num_classes=classes)
    # Mixup's targets are distributions over classes, already smoothed; without it they are class numbers.
    criterion = SoftTargetCrossEntropy() if mix else nn.CrossEntropyLoss(label_smoothing=SMOOTHING)
    if run.ranks.world_size > 1:
        parallel = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        if mix:
            images, labels = mix(images, labels)
        with torch.autocast(device.type, run.dtype, enabled=run.dtype != torch.float32):
            return criterion(parallel(images).float(), labels)  # a loss in bfloat16 would have two digits

    return loss


@torch.no_grad()
def measure_accuracy(model: nn.Module, run: ImagePlan) -> dict[str, float]:
    """Top-1 and top-5 accuracy (fractions) and loss (nats) on the held-out images, shared by the ranks."""
    ranks, batch = run.ranks, max(run.settings.batch_size // run.ranks.world_size, 64)
    indices = range(ranks.rank, len(run.val_set), ranks.world_size)
    sums = torch.zeros(3)
    model.eval()
    for images, labels in DataLoader(run.val_set, batch, sampler=indices, num_workers=run.settings.workers):
        images, labels = images.to(run.device), labels.to(run.device)
        with torch.autocast(run.device.type, run.dtype, enabled=run.dtype != torch.float32):
            logits = model(images).float()
        best = logits.topk(min(5, logits.shape[-1])).indices == labels[:, None]
        loss = F.cross_entropy(logits, labels, reduction="sum")
        sums += torch.stack([best[:, 0].sum(), best.sum(), loss]).cpu()
    model.train()
    top1, top5, loss = (total / len(run.val_set) for total in ranks.sum(sums.tolist(), run.device))
    return {"top1": top1, "top5": top5, "val_loss": loss}


def finish_epoch(run: ImagePlan, row: dict, parts: dict) -> None:
    """Write the checkpoint, then the line of the log, and print the line."""
    content = io.BytesIO()
    torch.save({name: part.state_dict() for name, part in parts.items()} | {"epoch": row["epoch"]}, content)
    atomic_write(run.folder / "last.pt", content.getvalue())
    with open(run.folder / "metrics.jsonl", "a") as file:
        file.write(json.dumps(row) + "\n")
    print("  ".join(f"{name} {value:.4g}" for name, value in row.items()), flush=True)
