"""Measure the speed and memory of a training step of several mixers.

    python -m scripts.bench train --depth 8 --sequence-len 1024

The tokens are random. The model, the loss and the optimizers are those of training. The mixers take turns step by step,
so that anything else that slows the machine down slows all of them alike.
"""

import gc
import statistics
from dataclasses import dataclass

import torch

from nanogka import backends
from nanogka.bench.common import BenchSettings, check_mixers, peak_memory, table, take_turns
from nanogka.common.cli import flag
from nanogka.common.errors import Errors
from nanogka.common.formatting import MISSING, byte_size, si
from nanogka.common.runtime import describe_hardware
from nanogka.model import GPT, GPTConfig, model_costs
from nanogka.train.budget import plan_budget
from nanogka.train.optimizer import build_optimizers
from nanogka.train.snapshots import LearningRates

COLUMNS = {
    "mixer": lambda cost: cost["mixer"],
    "tokens/s": lambda cost: f"{cost['tokens_per_second']:,.0f}",
    "FLOPs per token": lambda cost: f"{cost['flops_per_token']:.4g}",
    "FLOP/s": lambda cost: si(cost["tokens_per_second"] * cost["flops_per_token"]),
    "MFU": lambda cost: f"{cost['mfu']:.1%}" if cost["mfu"] else MISSING,
    "peak memory": lambda cost: byte_size(cost["peak_bytes"]),
}


@dataclass(frozen=True)
class Settings(BenchSettings):
    """Settings."""

    mixers: str = flag("gaussian,dot_product", "token mixers, or patterns of letters, separated by commas")
    depth: int = flag(4, "number of layers", ge=1)
    sequence_len: int = flag(512, "context in tokens", ge=2)
    batch: int = flag(4, "sequences per micro-batch", ge=1)
    micro_batches: int = flag(1, "micro-batches per step", ge=1)
    vocab_size: int = flag(4096, "size of the vocabulary", ge=1)
    repeats: int = flag(5, "steps of each mixer; the median is reported", ge=1)
    compile: bool = flag(True, "compile the model, as training does")


class TrainingStep:
    """A model with its optimizers, ready for training steps on one batch of random tokens."""

    def __init__(self, mixer: str, settings: Settings, device: torch.device, dtype: torch.dtype) -> None:
        shape = {"sequence_len": settings.sequence_len, "vocab_size": settings.vocab_size}
        self.config = config = GPTConfig.from_depth(settings.depth, mixer, **shape)
        self.micro_batches = settings.micro_batches
        self.tokens = self.micro_batches * settings.batch * config.sequence_len
        self.model = GPT(config, compute_dtype=dtype).to(device)
        self.function = torch.compile(self.model, dynamic=False) if settings.compile else self.model
        horizon = plan_budget(config, num_iterations=1000, total_batch_size=self.tokens)
        muon_dtype = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32
        self.optimizers = build_optimizers(self.model, LearningRates(), horizon, muon_dtype)
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(0, config.vocab_size, (settings.batch, config.sequence_len + 1), generator=generator)
        ids = ids.to(device)
        self.inputs, self.targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def run(self) -> None:
        """Run one training step: every micro-batch forward and backward, and the update."""
        for _ in range(self.micro_batches):
            self.function(self.inputs, self.targets).backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def held_bytes(self) -> int:
        """Bytes held between steps: parameters, buffers, optimizer state."""
        state = [value for o in self.optimizers for s in o.state.values() for value in s.values()]
        tensors = [*self.model.parameters(), *self.model.buffers(), *(t for t in state if isinstance(t, torch.Tensor))]
        return sum(t.numel() * t.element_size() for t in tensors)


def compare_steps(settings: Settings, device: torch.device, dtype: torch.dtype) -> list[dict]:
    """Seconds of the steps of each mixer, tokens per second at their median, peak bytes and FLOPs per token."""
    backends.select_kernels(device, dtype)
    steps = {mixer: TrainingStep(mixer, settings, device, dtype) for mixer in settings.mixers.split(",")}
    times = take_turns({name: step.run for name, step in steps.items()}, device, settings.repeats)
    costs, peak = [], describe_hardware(device).peak_flops
    for name, step in steps.items():
        gc.collect()
        speed, flops = step.tokens / statistics.median(times[name]), model_costs(step.config).flops_per_token
        costs.append(
            {
                "mixer": name,
                "tokens_per_second": speed,
                "flops_per_token": flops,
                "mfu": speed * flops / peak if peak else None,
                "peak_bytes": step.held_bytes() + peak_memory(step.run, device),
                "seconds": times[name],
            }
        )
    return costs


def bench(settings: Settings, errors: Errors) -> None:
    """Measure the mixers and print the table."""
    s = settings
    check_mixers(s.mixers.split(","), errors)
    device, dtype = s.start(errors)
    costs = compare_steps(s, device, dtype)
    title = f"depth {s.depth}, {s.micro_batches} × {s.batch} × {s.sequence_len} tokens"
    s.report(device, dtype, title, table(COLUMNS, costs), results=costs)
