"""Images per second of DeiT, of the value-less transformer and of GKA: the paper's table 4 on this machine.

    python -m scripts.bench vision
    python -m scripts.bench vision --size base --batches 1,64,256 --training

Takes the extra `vision`.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import timm
import torch

from nanogka.bench.common import BenchSettings, integers, seconds
from nanogka.cli import flag
from nanogka.formatting import markdown_table, number
from nanogka.problems import Problems, in_one_line
from nanogka.vision.models import ATTENTION, model_name


@dataclass(frozen=True)
class Settings(BenchSettings):
    """The flags of `scripts.bench vision`."""

    size: str = flag("tiny", "size of DeiT", ("tiny", "small", "base", "micro"))
    models: str = flag("", "timm's names of vision transformers, separated by commas (default: the three of the size)")
    batches: str = flag("1,16", "images at a time, separated by commas")
    img_size: int | None = flag(None, "pixels along a side (default: the model's)", least=16, most=4096)
    training: bool = flag(False, "forward and backward, in place of forward")
    repeats: int = flag(3, "timings, of which the median counts", least=1, most=1000)
    dtype: str = flag("auto", "dtype of activations and products", ("auto", "float32", "bfloat16"))


def bench(settings: Settings, problems: Problems) -> None:
    """Measure every model at every batch size and print the result."""
    s = settings
    batches = integers("--batches", s.batches, problems, most=10**5)
    device, dtype = s.start(problems)
    names = s.models.split(",") if s.models else [model_name(s.size, attention) for attention in ATTENTION]
    options = {"repeats": s.repeats, "training": s.training, "img_size": s.img_size}
    rows = measure_throughput(names, batches, device, dtype, **options)
    rates = {(row["model"], row["batch"]): row["images_per_second"] for row in rows}
    cells = [[name, *(number(rates[name, batch], 1) for batch in batches)] for name in names]
    table = markdown_table(["model", *(f"batch {batch}" for batch in batches)], cells)
    failures = [f"{row['model']}, batch {row['batch']}: {row['reason']}" for row in rows if row["reason"]]
    title = f"{'forward and backward' if s.training else 'forward'}, images/s"
    s.report(device, dtype, title, "\n".join([table, *failures]), measurements=rows)


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

    Returns a dict per model and batch: model, batch, `images_per_second` (median) and `seconds`, or None and `reason`
    where it did not run.
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
        for _ in range(repeats + 1):  # the first round warms up
            for name, model in models.items():
                if name not in reasons:
                    try:
                        times[name].append(_seconds(model, batch, device, dtype, training))
                    except RuntimeError as error:  # out of memory, most of all
                        reasons[name] = in_one_line(error)
        for name in names:
            median = None if name in reasons else statistics.median(times[name][1:])
            rate = median and batch / median
            row = {"model": name, "batch": batch, "images_per_second": rate, "seconds": median}
            results.append(row | {"reason": reasons.get(name)})
    return results


def _seconds(model: torch.nn.Module, batch: int, device: torch.device, dtype: torch.dtype, training: bool) -> float:
    images = torch.randn(batch, *model.default_cfg["input_size"][:1], *model.patch_embed.img_size, device=device)

    def step() -> None:
        with torch.set_grad_enabled(training), torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            logits = model(images)
        if training:
            logits.float().sum().backward()
            model.zero_grad(set_to_none=True)

    return seconds(step, device)
