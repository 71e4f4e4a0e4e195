"""The loss on conversations: nats a token, over the tokens that the assistant would have to write."""

import numpy as np
import torch

from nanogka.data.chat import inputs_and_targets


@torch.no_grad()
def measure_chat_loss(model, rows: np.ndarray, bos_id: int, batch_size: int) -> tuple[float, int]:
    """Sum of the losses in nats and the number of targets.

    Args:
        model: as of `nanogka.evaluate.measure_bits_per_byte`.
        rows: packed conversations (N, T + 1), see `nanogka.data.chat`.
    """
    was_training = model.training
    model.eval()
    nats, count = 0.0, 0
    try:
        for start in range(0, len(rows), batch_size):
            inputs, targets = inputs_and_targets(rows[start : start + batch_size], bos_id)
            losses = model(inputs.to(model.device), targets.to(model.device), reduction="none")
            nats += losses.double().sum().item() if losses.device.type != "mps" else losses.sum().item()
            count += int((targets >= 0).sum())
    finally:
        model.train(was_training)
    return nats, count
