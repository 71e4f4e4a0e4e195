"""Speed and memory of a whole training step: mixers with the same settings, alternating.

    python -m scripts.bench train --depth 8 --sequence-len 1024

Random tokens, but the real model, loss and optimizers. The mixers take turns step by step, so that whatever else slows
the machine down slows all of them alike.
"""

import gc
import statistics
from dataclasses import dataclass

import torch

from nanogka import dispatch
from nanogka.bench.common import BenchSettings, check_mixers, peak_memory, take_turns
from nanogka.common.cli import flag
from nanogka.common.errors import Errors
from nanogka.common.formatting import markdown_table
from nanogka.model import GPT, GPTConfig, count
from nanogka.train.horizon import plan_horizon
from nanogka.train.optimizer import Rates, build_optimizers


@dataclass(frozen=True)
class Settings(BenchSettings):
    """Settings."""

    mixers: str = flag("gaussian,dot_product", "token mixers, or patterns of letters, separated by commas")
    depth: int = flag(4, "number of layers", ge=1, le=1000)
    sequence_len: int = flag(512, "context in tokens", ge=2, le=2**24)
    batch: int = flag(4, "sequences per step", ge=1, le=2**16)
    vocab_size: int = flag(4096, "tokens of the vocabulary", ge=1, le=2**20)
    repeats: int = flag(5, "steps of each mixer, of which the median counts", ge=1, le=10**4)
    compile: bool = flag(True, "through torch.compile, as in training")


class TrainingStep:
    """A model with its optimizers, ready to make training steps on one batch of random tokens."""

    def __init__(self, mixer: str, settings: Settings, device: torch.device, dtype: torch.dtype) -> None:
        shape = {"sequence_len": settings.sequence_len, "vocab_size": settings.vocab_size}
        self.config = config = GPTConfig.from_depth(settings.depth, mixer, **shape)
        self.tokens = settings.batch * config.sequence_len
        self.model = GPT(config, compute_dtype=dtype).to(device)
        self.function = torch.compile(self.model, dynamic=False) if settings.compile else self.model
        horizon = plan_horizon(config, num_iterations=1000, total_batch_size=self.tokens)
        muon_dtype = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32
        self.optimizers = build_optimizers(self.model, Rates(), horizon, muon_dtype)
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(0, config.vocab_size, (settings.batch, config.sequence_len + 1), generator=generator)
        ids = ids.to(device)
        self.inputs, self.targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def run(self) -> None:
        self.function(self.inputs, self.targets).backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def held_bytes(self) -> int:
        """Bytes that stay between steps: parameters, buffers, optimizer state."""
        state = [value for o in self.optimizers for s in o.state.values() for value in s.values()]
        tensors = [*self.model.parameters(), *self.model.buffers(), *(t for t in state if isinstance(t, torch.Tensor))]
        return sum(t.numel() * t.element_size() for t in tensors)


def compare_steps(settings: Settings, device: torch.device, dtype: torch.dtype) -> dict[str, dict]:
    """Seconds of the training steps of each mixer, the speed of their median, bytes held at once, FLOPs."""
    dispatch.prepare(device, dtype, training=True)
    steps = {mixer: TrainingStep(mixer, settings, device, dtype) for mixer in settings.mixers.split(",")}
    times = take_turns({name: step.run for name, step in steps.items()}, device, settings.repeats)
    costs = {}
    for name, step in steps.items():
        gc.collect()
        costs[name] = {
            "tokens_per_second": step.tokens / statistics.median(times[name]),
            "seconds": times[name],
            "peak_bytes": step.held_bytes() + peak_memory(step.run, device),
            "flops_per_token": count(step.config).flops_per_token,
        }
    return costs


def ratios(costs: dict[str, dict], baseline: str) -> dict[str, float]:
    """Ratios of the first mixer to `baseline`; `kept_of_promise`: the speed gained over what FLOPs promise."""
    ours, other = next(iter(costs.values())), costs[baseline]
    values = {key: ours[key] / other[key] for key in ("peak_bytes", "flops_per_token")}
    # Of neighbors in time: whatever else the machine did slowed both alike.
    faster = statistics.median(b / a for a, b in zip(ours["seconds"], other["seconds"]))
    return values | {"tokens_per_second": faster, "kept_of_promise": faster * values["flops_per_token"]}


def bench(settings: Settings, errors: Errors) -> None:
    s = settings
    check_mixers(s.mixers.split(","), errors)
    device, dtype = s.start(errors)
    costs = compare_steps(s, device, dtype)
    compared, rows = {name: ratios(costs, name) for name in list(costs)[1:]}, []
    for name, cost in costs.items():
        speed, flops = cost["tokens_per_second"], cost["flops_per_token"]
        memory = f"{cost['peak_bytes'] / 2**20:,.0f} MiB"
        rows.append([name, f"{speed:,.0f}", f"{flops:.4g}", f"{speed * flops:.3g}", memory])
    for other, r in compared.items():
        keys = ("tokens_per_second", "flops_per_token", "kept_of_promise", "peak_bytes")
        rows.append([f"{next(iter(costs))} / {other}", *(f"{r[key]:.3f}" for key in keys)])
    title = f"depth {s.depth}, {s.batch} × {s.sequence_len} tokens"
    table = markdown_table(["", "tokens/s", "FLOPs per token", "FLOP/s", "peak memory"], rows)
    s.report(device, dtype, title, table, ratios=compared, results=costs)
