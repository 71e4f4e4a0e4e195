"""Speed and memory of a whole training step: mixers, or losses, with the same settings, alternating.

    python -m scripts.bench train --depth 8 --sequence-len 1024
    python -m scripts.bench train --compare losses --vocab-size 32768     the chunked loss against all logits at once

Random tokens, but the real model, loss and optimisers. The contestants are token mixers, or the first mixer with the
chunked loss and with the plain one, which holds all logits. They take turns step by step, so that whatever else slows
the machine down slows all of them alike.
"""

import gc
import statistics
from dataclasses import dataclass

import torch
from torch import nn

from nanogka import dispatch
from nanogka.attention.rotary import norm
from nanogka.bench.common import BenchSettings, check_mixers, peak_memory, seconds
from nanogka.cli import flag
from nanogka.formatting import markdown_table
from nanogka.model import GPT, GPTConfig, count
from nanogka.model.loss import plain_cross_entropy
from nanogka.problems import Problems
from nanogka.train.horizon import plan_horizon
from nanogka.train.optimizer import Rates, build_optimizers

LOSSES = ("chunked", "plain")


@dataclass(frozen=True)
class Settings(BenchSettings):
    """The flags of `scripts.bench train`."""

    mixers: str = flag("gaussian,dot_product", "token mixers, or patterns of letters, separated by commas")
    depth: int = flag(4, "number of layers", least=1)
    sequence_len: int = flag(512, "context in tokens", least=2)
    batch: int = flag(4, "sequences per step", least=1)
    vocab_size: int = flag(4096, "tokens of the vocabulary", least=1)
    repeats: int = flag(5, "steps of each contestant, of which the median counts", least=1)
    compile: bool = flag(True, "through torch.compile, as in training")
    compare: str = flag("mixers", "the contestants: all mixers, or both losses of the first", ("mixers", "losses"))

    @property
    def contestants(self) -> dict[str, str]:
        """The mixer of each contestant, by its name."""
        names = self.mixers.split(",")
        return dict(zip(names, names)) if self.compare == "mixers" else dict.fromkeys(LOSSES, names[0])


class PlainLoss(nn.Module):
    """A model's mean loss with all logits held at once, forward and backward."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """A scalar, for (B, T) ids and targets."""
        hidden, weight = norm(self.model.hidden(ids)).flatten(0, 1), self.model.lm_head.weight
        return plain_cross_entropy(hidden, weight, targets.flatten(), cap=self.model.config.logit_cap)


class TrainingStep:
    """One contestant with its optimisers, ready to make training steps on one batch of random tokens."""

    def __init__(
        self, contestant: str, mixer: str, settings: Settings, device: torch.device, dtype: torch.dtype
    ) -> None:
        shape = {"sequence_len": settings.sequence_len, "vocab_size": settings.vocab_size}
        self.config = config = GPTConfig.from_depth(settings.depth, mixer, **shape)
        self.tokens = settings.batch * config.sequence_len
        self.model = GPT(config, compute_dtype=dtype).to(device)
        self.function = PlainLoss(self.model) if contestant == "plain" else self.model
        if settings.compile:
            self.function = torch.compile(self.function, dynamic=False)
        horizon = plan_horizon(config, num_iterations=1000, total_batch_size=self.tokens)
        muon_dtype = torch.bfloat16 if dtype == torch.bfloat16 else torch.float32
        self.optimizers = build_optimizers(self.model, Rates(), horizon, muon_dtype)
        generator = torch.Generator().manual_seed(0)
        ids = torch.randint(0, config.vocab_size, (settings.batch, config.sequence_len + 1), generator=generator)
        ids = ids.to(device)
        self.inputs, self.targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def run(self) -> None:
        """Forward, backward and update."""
        self.function(self.inputs, self.targets).backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def held_bytes(self) -> int:
        """Bytes that stay between steps: parameters, buffers, optimiser state."""
        state = [value for o in self.optimizers for s in o.state.values() for value in s.values()]
        tensors = [*self.model.parameters(), *self.model.buffers(), *(t for t in state if isinstance(t, torch.Tensor))]
        return sum(t.numel() * t.element_size() for t in tensors)


def compare_steps(settings: Settings, device: torch.device, dtype: torch.dtype) -> dict[str, dict]:
    """Seconds of the training steps of each contestant, the speed of their median, bytes held at once, FLOPs."""
    dispatch.prepare(device, dtype, training=True)
    steps = {name: TrainingStep(name, mixer, settings, device, dtype) for name, mixer in settings.contestants.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(settings.repeats + 1):  # the first round warms up and compiles
        for name, step in steps.items():
            times[name].append(seconds(step.run, device))
    costs = {}
    for name, step in steps.items():
        gc.collect()
        costs[name] = {
            "tokens_per_second": step.tokens / statistics.median(times[name][1:]),
            "seconds": times[name][1:],
            "peak_bytes": step.held_bytes() + peak_memory(step.run, device),
            "flops_per_token": count(step.config).flops_per_token,
        }
    return costs


def ratios(costs: dict[str, dict], baseline: str) -> dict[str, float]:
    """Ratios of the first contestant to `baseline`: tokens per second (median over pairs of steps), bytes, FLOPs.

    `kept_of_promise` is the tokens per second gained over what the FLOPs promise.
    """
    ours, other = next(iter(costs.values())), costs[baseline]
    values = {key: ours[key] / other[key] for key in ("peak_bytes", "flops_per_token")}
    # Of neighbours in time: whatever else the machine did slowed both alike.
    faster = statistics.median(b / a for a, b in zip(ours["seconds"], other["seconds"]))
    return values | {"tokens_per_second": faster, "kept_of_promise": faster * values["flops_per_token"]}


def table(costs: dict[str, dict]) -> str:
    """The costs, and the first contestant's ratio to each other one, as a Markdown table."""
    rows = []
    for name, cost in costs.items():
        speed, flops = cost["tokens_per_second"], cost["flops_per_token"]
        memory = f"{cost['peak_bytes'] / 2**20:,.0f} MiB"
        rows.append([name, f"{speed:,.0f}", f"{flops:.4g}", f"{speed * flops:.3g}", memory])
    first, *others = costs
    for other in others:
        r = ratios(costs, other)
        keys = ("tokens_per_second", "flops_per_token", "kept_of_promise", "peak_bytes")
        rows.append([f"{first} / {other}", *(f"{r[key]:.3f}" for key in keys)])
    return markdown_table(["", "tokens/s", "FLOPs per token", "FLOP/s", "peak memory"], rows)


def bench(settings: Settings, problems: Problems) -> None:
    """Measure every contestant and print the result."""
    s = settings
    check_mixers(s.mixers.split(","), problems)
    device, dtype = s.start(problems)
    costs = compare_steps(s, device, dtype)
    compared = {name: ratios(costs, name) for name in list(costs)[1:]}
    title = f"depth {s.depth}, {s.batch} × {s.sequence_len} tokens"
    s.report(device, dtype, title, table(costs), ratios=compared, results=costs)
