"""Bits per byte (BPB): the loss in a unit that does not depend on the tokenizer.

    BPB = Σ nats over the targets / (ln 2 · Σ UTF-8 bytes those targets stand for)

Special tokens stand for no text: they count neither in the sum nor in the bytes.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True)
class BitsPerByte:
    """The sums behind one measurement: `nats` over `tokens` targets that stand for `bytes` UTF-8 bytes.

    Two measurements (of two ranks, say) add up field by field.
    """

    nats: float
    bytes: int
    tokens: int

    @property
    def value(self) -> float:
        """Bits per byte; raises ValueError where no text was seen."""
        if self.bytes == 0:
            raise ValueError("bits per byte: the batches hold no text (every target is special or ignored)")
        return self.nats / (math.log(2) * self.bytes)


@torch.no_grad()
def measure_bits_per_byte(model, batches: Iterable, token_bytes: np.ndarray | torch.Tensor) -> BitsPerByte:
    """Sum the losses and the bytes of `batches`.

    Args:
        model: `model(inputs, targets, reduction="none")` gives the losses (B, T) in nats; it runs on `model.device`.
        batches: each begins with `inputs` and `targets`, (B, T) integer tensors; a target of −1 is ignored.
        token_bytes: (V,) integers, the number of bytes a token decodes to; 0 for a special token.
    """
    device = model.device
    lengths = torch.as_tensor(token_bytes).to(device=device, dtype=torch.int64)
    was_training = model.training
    model.eval()
    nats, total_bytes, tokens = 0.0, 0, 0
    try:
        for batch in batches:
            inputs, targets = batch[0].to(device), batch[1].to(device)
            losses = model(inputs, targets, reduction="none").reshape(-1)
            targets = targets.reshape(-1).long()
            # −1 is no index: look up token 0 in its place, then blank it out
            counted = torch.where(targets >= 0, lengths[targets.clamp(min=0)], 0)
            text = counted > 0
            # where, not a product: a loss that is not finite at an ignored target must not spoil the sum
            nats += torch.where(text, losses.float(), 0.0).sum(dtype=_sum_dtype(device)).item()
            total_bytes += int(counted.sum())
            tokens += int(text.sum())
    finally:
        model.train(was_training)
    return BitsPerByte(nats, total_bytes, tokens)


def _sum_dtype(device: torch.device) -> torch.dtype:
    """float64 where the device has it, so that the sum does not depend on how the text was cut into batches."""
    return torch.float32 if device.type == "mps" else torch.float64
