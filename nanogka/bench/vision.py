"""Images per second of DeiT, the value-less transformer and GKA on this machine, as in the paper's table 4.

    python -m scripts.bench vision
    python -m scripts.bench vision --size base --batches 1,64,256 --training

Needs the extra `vision`.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import timm
import torch

from nanogka.bench.common import BenchSettings, integers, table, take_turns
from nanogka.common.cli import flag
from nanogka.common.errors import Errors
from nanogka.common.formatting import number
from nanogka.vision.models import ATTENTION, model_name

COLUMNS = {
    "model": lambda row: row["model"],
    "batch": lambda row: number(row["batch"]),
    "images/s": lambda row: f"{number(row['images_per_second'], 1)} {row['reason']}".rstrip(),
}


@dataclass(frozen=True)
class Settings(BenchSettings):
    """Settings."""

    size: str = flag("tiny", "size of DeiT", ("tiny", "small", "base", "micro"))
    models: str = flag("", "timm's names of vision transformers, separated by commas (default: all of the size)")
    batches: str = flag("1,16", "batch sizes, separated by commas")
    img_size: int | None = flag(None, "pixels along a side (default: the model's)", ge=16)
    training: bool = flag(False, "time forward and backward instead of forward")
    repeats: int = flag(3, "timings per model; the median is reported", ge=1)
    dtype: str = flag("auto", "dtype of activations and products", ("auto", "float32", "bfloat16"))


def bench(settings: Settings, errors: Errors) -> None:
    """Time every model at every batch size, in turns, and print the table."""
    s = settings
    batches = integers("--batches", s.batches, errors)
    device, dtype = s.start(errors)
    names = s.models.split(",") if s.models else [model_name(s.size, attention) for attention in ATTENTION]
    if unknown := [name for name in names if not timm.is_model(name)]:
        raise ValueError(f"models: got {unknown[0]!r}, expected timm's names, with commas")
    options = {} if s.img_size is None else {"img_size": s.img_size}
    models = {name: timm.create_model(name, **options).to(device).train(s.training) for name in names}
    rows = []
    for batch in batches:
        steps = {name: _step(model, batch, device, dtype) for name, model in models.items()}
        reasons: dict[str, str] = {}
        times = take_turns(steps, device, s.repeats, failed=reasons)
        for name in names:
            speed = batch / statistics.median(times[name]) if name in times else None
            rows.append({"model": name, "batch": batch, "images_per_second": speed, "reason": reasons.get(name, "")})
    title = "forward and backward" if s.training else "forward"
    s.report(device, dtype, title, table(COLUMNS, rows), measurements=rows)


def _step(model: torch.nn.Module, batch: int, device: torch.device, dtype: torch.dtype) -> Callable[[], None]:
    """A forward pass over random images, with a backward pass if the model is in training mode."""
    images = torch.randn(batch, *model.default_cfg["input_size"][:1], *model.patch_embed.img_size, device=device)

    def step() -> None:
        with torch.set_grad_enabled(model.training), torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            logits = model(images)
        if model.training:
            logits.float().sum().backward()
            model.zero_grad(set_to_none=True)

    return step
