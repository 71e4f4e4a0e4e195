"""Time of a decoding step against the bytes that it has to read, for one model and several ways of running it.

A step reads every matrix and the output table once, whatever the number of streams, and of each stream's cache what its
layers see. At one token a stream that is all it costs on a machine that multiplies faster than it reads.
"""

import statistics
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from nanogka.generate.cache import DecodeCache
from nanogka.generate.decoder import STEPS
from nanogka.generate.static import StaticStep
from nanogka.model import GPT, GPTConfig, count
from nanogka.model.accounting import MULTIPLYING_GROUPS
from nanogka.problems import Problems

MIXERS = ("gaussian", "dot_product")
KINDS = STEPS[1:]
WARM_UP = 3


@dataclass(frozen=True)
class StepSettings:
    """What is measured: `steps` greedy tokens of `batch` streams that have `context` tokens each."""

    depth: int = 4
    context: int = 2048
    sequence_len: int = 2048
    batch: int = 1
    vocab_size: int = 32768
    steps: int = 32

    def check(self, problems: Problems) -> None:
        """Collect what is out of range."""
        for name, least in (("depth", 1), ("context", 1), ("sequence_len", 2), ("batch", 1), ("vocab_size", 1)):
            value = getattr(self, name)
            problems.check(value >= least, f"--{name.replace('_', '-')}", value, f"an integer of at least {least}")
        problems.check(self.steps >= 1, "--steps", self.steps, "an integer of at least 1")


@dataclass(frozen=True)
class StepCost:
    """One model and kind of step.

    Attributes:
        seconds: of each step, median of three rounds of `steps`.
        weight_bytes, cache_bytes: that a step has to read: matrices and output table once, and every stream's cache.
        bandwidth: bytes a second.
    """

    mixer: str
    kind: str
    seconds: float
    weight_bytes: int
    cache_bytes: int
    bandwidth: float

    @classmethod
    def of(
        cls, mixer: str, kind: str, seconds: float, config: GPTConfig, settings: StepSettings, size: int
    ) -> "StepCost":
        """From a measured time; `size` is the bytes of an element."""
        costs = count(config)
        weights = size * sum(costs.parameters[group] for group in MULTIPLYING_GROUPS)
        cache = settings.batch * costs.cache_bytes(settings.context, size)
        return cls(mixer, kind, seconds, weights, cache, (weights + cache) / seconds)


def compare(settings: StepSettings, kinds: list[str], device: torch.device, dtype: torch.dtype) -> list[StepCost]:
    """Measure each kind of step with each mixer."""
    costs = []
    for mixer in MIXERS:
        config = GPTConfig.from_depth(
            settings.depth, mixer, sequence_len=settings.sequence_len, vocab_size=settings.vocab_size
        )
        model = _random_model(config, device).to_compute(dtype).eval()
        for kind in kinds:
            seconds = measure(model, kind, settings)
            costs.append(StepCost.of(mixer, kind, seconds, config, settings, dtype.itemsize))
        del model
    return costs


@torch.no_grad()
def _random_model(config: GPTConfig, device: torch.device) -> GPT:
    """Made on the device: on the host the initial weights of a large model take longer than the measurement."""
    with torch.device("meta"):
        model = GPT(config)
    model.to_empty(device=device)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.normal_(0, config.n_embd**-0.5)
        else:
            parameter.fill_(0.5)
    return model


@torch.no_grad()
def measure(model: GPT, kind: str, settings: StepSettings) -> float:
    """Median seconds of a step; the streams have `context` tokens in the middle of a round."""
    layers, length = _remembered(model, settings)
    if kind == "growing":
        cache = DecodeCache(model, settings.batch, settings.context + settings.steps)

        def begin() -> None:
            cache.replace([tuple(t.clone() for t in tensors) for tensors in layers], [length] * settings.batch)

        def step(tokens: Tensor) -> Tensor:
            return model.unembed(model.hidden(tokens[:, None], cache)[:, -1])

    else:
        step = StaticStep(model, settings.batch, settings.context + settings.steps, kind)

        def begin() -> None:
            step.load(layers, [length] * settings.batch)

    tokens = torch.zeros(settings.batch, dtype=torch.int64, device=model.device)
    times = []
    for number in range(4):
        begin()
        for _ in range(WARM_UP):
            step(tokens)
        begin()
        _synchronize(model.device)
        start = time.perf_counter()
        for _ in range(settings.steps):
            tokens = step(tokens).argmax(-1)
        _synchronize(model.device)
        if number:
            times.append((time.perf_counter() - start) / settings.steps)
    return statistics.median(times)


def _remembered(model: GPT, settings: StepSettings) -> tuple[list[tuple[Tensor, ...]], int]:
    """Random contents of a cache, with room for a round, and how many tokens that is before one."""
    length = max(1, settings.context - settings.steps // 2)
    layers = []
    for block in model.blocks:
        mixer, slots = block.mixer, settings.context + settings.steps
        slots = slots if mixer.window is None else min(slots, mixer.window + 1)
        shape = (settings.batch, slots, mixer.n_head, mixer.head_dim)
        layers.append(
            tuple(torch.randn(shape, device=model.device, dtype=model.compute_dtype) for _ in range(mixer.remembered))
        )
    return layers, length


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def table(costs: list[StepCost], peak_bandwidth: float | None) -> list[str]:
    """The costs as lines of a Markdown table."""
    lines = [
        "| mixer | step | ms / token | weights | cache | GB/s | of the peak |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for c in costs:
        share = "—" if peak_bandwidth is None else f"{100 * c.bandwidth / peak_bandwidth:.1f} %"
        sizes = f"{c.weight_bytes / 1e6:.1f} MB | {c.cache_bytes / 1e6:.1f} MB"
        lines.append(f"| {c.mixer} | {c.kind} | {1e3 * c.seconds:.3f} | {sizes} | {c.bandwidth / 1e9:.1f} | {share} |")
    return lines
