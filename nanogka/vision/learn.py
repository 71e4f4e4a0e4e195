"""Batches, loss and optimizer of images, as `nanogka.train.trainer` expects them, of timm's parts.

Draws of a step are seeded with its number, so that a run resumed from any step draws what it would have drawn.
"""

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import count

import torch
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.models import VisionTransformer
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from nanogka.common.distributed import Ranks
from nanogka.train.async_checkpoint import host_copy
from nanogka.train.trainer import LossFunction
from nanogka.vision.data import ImageBatch, ImageData, Prepared, draw_epoch, load, seed_everything, train_transform
from nanogka.vision.settings import VisionSettings

# First number of the key of each kind of draw.
OF_WEIGHTS, OF_IMAGES, OF_STEP = 0, 1, 2


class ImageLoader(AbstractContextManager):
    """This rank's batches of pictures of `size` pixels from number `step` on; `data_wait`: seconds waited for them."""

    def __init__(
        self,
        data: ImageData,
        settings: VisionSettings,
        ranks: Ranks,
        device: torch.device,
        step: int,
        size: int,
        steps_per_epoch: int,
    ) -> None:
        self.data, self.settings, self.ranks, self.device, self.step = data, settings, ranks, device, step
        self.size, self.batch, self.steps_per_epoch = size, settings.batch_size // ranks.world_size, steps_per_epoch
        self.data_wait, self.damaged = 0.0, []
        self._batches = self._read(step)

    def __exit__(self, *exception: object) -> None:
        self._batches.close()

    def __iter__(self) -> "ImageLoader":
        return self

    def __next__(self) -> ImageBatch:
        began = time.perf_counter()
        batch = next(self._batches)
        self.data_wait += time.perf_counter() - began
        # Mixup and stochastic depth draw from these generators: the same in a run that was stopped here and resumed.
        seed_everything(self.settings.seed, OF_STEP, self.step, self.ranks.rank)
        if torch.cuda.is_available():
            torch.cuda.manual_seed(torch.default_generator.initial_seed())
        self.step += 1
        self.damaged = batch.damaged
        return replace(batch, state={"batches": self.step})

    @property
    def progress(self) -> dict[str, object]:
        """The names of the damaged images that others replaced in the last batch, if there are any on some rank."""
        if not self.ranks.sum([len(self.damaged)], self.device)[0]:
            return {}
        return {"replaced": [self.data.train.name(index) for index in sum(self.ranks.gather(self.damaged), [])]}

    def _read(self, step: int) -> Iterator[ImageBatch]:
        settings, rank = self.settings, self.ranks.rank
        transform = train_transform(self.data, settings, self.size)
        shape = (self.data.channels, self.size, self.size)
        first, done = divmod(step, self.steps_per_epoch)
        for epoch in count(first):  # beyond the last epoch where bad batches were skipped
            images = len(self.data.train.targets)
            drawn = list(enumerate(draw_epoch(images, settings, epoch, rank, self.ranks.world_size)))
            prepared = Prepared(self.data.train, transform, shape, (settings.seed, OF_IMAGES, epoch, rank))
            rest = drawn[done * self.batch : self.steps_per_epoch * self.batch]
            yield from load(prepared, rest, self.batch, settings.workers, True)
            done = 0


def build_loss(
    model: VisionTransformer, settings: VisionSettings, classes: int, dtype: torch.dtype, ranks: Ranks
) -> LossFunction:
    """Cross entropy of smoothed labels, on images that Mixup and CutMix blend in pairs, with their labels.

    With several ranks `DistributedDataParallel` averages the gradients during the backward pass.
    """
    device, parallel = next(model.parameters()).device, model
    mix = None
    if settings.mixup or settings.cutmix:
        mix = Mixup(settings.mixup, settings.cutmix, label_smoothing=settings.smoothing, num_classes=classes)
    criterion = SoftTargetCrossEntropy() if mix else nn.CrossEntropyLoss(label_smoothing=settings.smoothing)
    if ranks.world_size > 1:
        parallel = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        if mix:
            images, labels = mix(images, labels)
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            return criterion(parallel(images).float(), labels)

    return loss


class ImageOptimizer:
    """timm's AdamW and its cosine schedule, clipped gradients, and the moving average of the weights."""

    def __init__(self, model: VisionTransformer, settings: VisionSettings, steps_per_epoch: int, ranks: Ranks) -> None:
        self.model, self.ranks = model, ranks
        self.average = ModelEmaV3(model, decay=settings.ema) if settings.ema else None
        self.largest_norm = settings.clip_grad or math.inf
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
        """Clip the gradients, which are averaged over ranks already; returns their norm before, and the ranks' loss."""
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.largest_norm)
        return norm.item(), self.ranks.sum([loss.item()], loss.device)

    def zero_grad(self) -> None:
        self.adamw.zero_grad(set_to_none=True)

    def step(self) -> None:
        """Update the weights and their average, and drop the gradients."""
        self.adamw.step()
        self.zero_grad()
        if self.average:
            steps = int(next(iter(self.adamw.state.values()))["step"])
            self.average.update(self.model, step=steps)

    def set_rates(self, step: int) -> dict[str, float]:
        """Set the learning rate of the update after `step`; returns what to log of it."""
        self.schedule.step_update(step)
        return {"lr": self.adamw.param_groups[0]["lr"]}

    def state_dict(self) -> dict:
        """A copy in host memory; the average is among the weights of a checkpoint."""
        return {"adamw": host_copy(self.adamw.state_dict())}

    def load_state_dict(self, saved: dict) -> None:
        self.adamw.load_state_dict(saved["adamw"])
