"""Accuracy: top-1, top-5 and loss over all images, shared by the ranks."""

import torch
import torch.nn.functional as F
from torch import nn

from nanogka.common.distributed import Ranks
from nanogka.vision.data import ImageData, Prepared, load, val_transform


@torch.no_grad()
def measure_accuracy(
    model: nn.Module,
    data: ImageData,
    *,
    size: int,
    batch: int,
    device: torch.device,
    dtype: torch.dtype,
    ranks: Ranks,
    workers: int = 0,
) -> dict[str, float]:
    """Accuracy on the held-out images; the model is left in the mode that it was in.

    `top1`, `top5` (fractions; top-5 among at least six classes), `val_loss` (nats), `images`, and `damaged`, those that
    could not be decoded and count for nothing.
    """
    training = model.training
    model.eval()
    shape = (data.channels, size, size)
    prepared = Prepared(data.val, val_transform(data, size), shape, None)
    drawn = [(0, index) for index in range(ranks.rank, len(data.val.targets), ranks.world_size)]
    sums = torch.zeros(5, dtype=torch.float64)
    for images in load(prepared, drawn, batch, workers, whole=False):
        labels = images.targets.to(device)
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            logits = model(images.inputs.to(device, non_blocking=True))
        logits, measured = logits.float(), labels >= 0
        best = logits.topk(min(5, logits.shape[-1])).indices == labels[:, None]
        loss = F.cross_entropy(logits, labels, ignore_index=-1, reduction="sum")
        counts = (best[:, 0].sum(), best.any(-1).sum(), loss, measured.sum(), (~measured).sum())
        sums += torch.stack([value.double() for value in counts]).cpu()
    top1, top5, loss, count, damaged = ranks.sum(sums.tolist(), device)
    model.train(training)
    if not count:
        raise ValueError(f"--data: none of the {int(damaged)} images to measure can be read")
    values = {"top1": top1 / count, "val_loss": loss / count, "images": int(count), "damaged": int(damaged)}
    return values | ({"top5": top5 / count} if len(data.classes) > 5 else {})
