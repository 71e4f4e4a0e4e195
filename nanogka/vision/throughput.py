"""Images a second of models beside each other: the paper's table 4."""

import statistics
import time
from collections.abc import Sequence

import timm
import torch

from nanogka.problems import in_one_line


def measure_throughput(
    names: Sequence[str],
    batches: Sequence[int],
    device: torch.device,
    dtype: torch.dtype,
    *,
    repeats: int,
    training: bool = False,
    img_size: int | None = None,
) -> list[dict]:
    """Time forward passes (with `training`, also backward) of random images; the models take turns.

    Returns:
        A dict a model and batch: model, batch, `images_per_second` (median) and `seconds`; where it did not run, None
        and the `reason`.

    Raises:
        ValueError: if timm does not know a model.
    """
    unknown = [name for name in names if not timm.is_model(name)]
    if unknown:
        raise ValueError(f"--models: got {unknown[0]!r}, takes timm's names, with commas")
    options = {} if img_size is None else {"img_size": img_size}
    models = {name: timm.create_model(name, **options).to(device).train(training) for name in names}
    results = []
    for batch in batches:
        times: dict[str, list[float]] = {name: [] for name in names}
        reasons: dict[str, str] = {}
        for _ in range(repeats + 1):  # the first one warms up
            for name, model in models.items():
                if name not in reasons:
                    try:
                        times[name].append(_seconds(model, batch, device, dtype, training))
                    except RuntimeError as error:  # most of all memory
                        reasons[name] = in_one_line(error)
        for name in names:
            seconds = None if name in reasons else statistics.median(times[name][1:])
            rate = seconds and batch / seconds
            row = {"model": name, "batch": batch, "images_per_second": rate, "seconds": seconds}
            results.append(row | {"reason": reasons.get(name)})
    return results


def _seconds(model: torch.nn.Module, batch: int, device: torch.device, dtype: torch.dtype, training: bool) -> float:
    images = torch.randn(batch, *model.default_cfg["input_size"][:1], *model.patch_embed.img_size, device=device)
    _wait(device)
    began = time.perf_counter()
    with torch.set_grad_enabled(training), torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        logits = model(images)
    if training:
        logits.float().sum().backward()
        model.zero_grad(set_to_none=True)
    _wait(device)
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
