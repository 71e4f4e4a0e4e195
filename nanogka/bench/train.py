"""Speed and memory of a whole training step: mixers, or losses, with the same settings, alternating.

Random tokens, real model, loss and optimisers. The contestants are token mixers, or the first of them with the chunked
loss and with the plain one, which holds all logits. They take turns step by step, so that whatever else slows
the machine down slows all of them.
"""

import gc
import statistics
import time
from dataclasses import asdict, dataclass

import torch
from torch import nn

from nanogka.attention.rotary import norm
from nanogka.bench.attention import peak_memory
from nanogka.cli import flag, flag_name
from nanogka.model import GPT, GPTConfig, count, mixer_pattern
from nanogka.model.loss import plain_cross_entropy
from nanogka.problems import Problems
from nanogka.train.horizon import plan_horizon
from nanogka.train.optimizer import Rates, build_optimizers

LOSSES = ("chunked", "plain")


@dataclass(frozen=True)
class StepSettings:
    """Settings of `scripts.bench_train`."""

    mixers: str = flag("gaussian,dot_product", "token mixers, or patterns of letters, with commas")
    depth: int = flag(4, "number of layers")
    sequence_len: int = flag(512, "context in tokens")
    batch: int = flag(4, "sequences per step")
    vocab_size: int = flag(4096, "tokens of the vocabulary")
    repeats: int = flag(5, "steps of each whose median counts, after one that warms up")
    compile: bool = flag(True, "through torch.compile, as in training")
    compare: str = flag("mixers", "the contestants; of the losses with the first mixer", ("mixers", "losses"))
    dtype: str = flag("auto", "auto, float32, bfloat16 or float16")
    device: str = flag("auto", "auto, cpu, cuda, cuda:N or mps")

    def check(self, problems: Problems) -> None:
        """Record every value that is out of range."""
        for name, least in {"depth": 1, "sequence_len": 2, "batch": 1, "vocab_size": 1, "repeats": 1}.items():
            value = getattr(self, name)
            problems.check(value >= least, flag_name(name), value, f"an integer of at least {least}")
        check_mixers(self.mixers.split(","), problems)

    @property
    def contestants(self) -> dict[str, str]:
        """The mixer of each contestant, by its name."""
        names = self.mixers.split(",")
        return dict(zip(names, names)) if self.compare == "mixers" else dict.fromkeys(LOSSES, names[0])


def check_mixers(names: list[str], problems: Problems) -> None:
    """Record every name that is neither a mixer nor a pattern of letters."""
    for name in names:
        try:
            mixer_pattern(name)
        except ValueError as error:
            problems.lines.append(str(error).replace("--attention", "--mixers"))


@dataclass(frozen=True)
class StepCost:
    """One model's training step: tokens per second (median), seconds of each, bytes held at once, FLOPs per token."""

    tokens_per_second: float
    seconds: list[float]
    peak_bytes: int
    flops_per_token: float


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
        self, contestant: str, mixer: str, settings: StepSettings, device: torch.device, dtype: torch.dtype
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

    def run(self) -> float:
        """Make a step; returns its seconds."""
        device = self.inputs.device
        _wait(device)
        start = time.perf_counter()
        self.function(self.inputs, self.targets).backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        _wait(device)
        return time.perf_counter() - start

    def held_bytes(self) -> int:
        """Bytes that stay between steps: parameters, buffers, optimiser state."""
        state = [value for o in self.optimizers for s in o.state.values() for value in s.values()]
        tensors = [*self.model.parameters(), *self.model.buffers(), *(t for t in state if isinstance(t, torch.Tensor))]
        return sum(t.numel() * t.element_size() for t in tensors)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def compare_steps(settings: StepSettings, device: torch.device, dtype: torch.dtype) -> dict[str, StepCost]:
    """The cost of a training step of each contestant."""
    steps = {name: TrainingStep(name, mixer, settings, device, dtype) for name, mixer in settings.contestants.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(settings.repeats + 1):
        for name, step in steps.items():
            seconds[name].append(step.run())
    costs = {}
    for name, step in steps.items():
        gc.collect()
        costs[name] = StepCost(
            tokens_per_second=step.tokens / statistics.median(seconds[name][1:]),
            seconds=seconds[name][1:],
            peak_bytes=step.held_bytes() + peak_memory(step.run, device),
            flops_per_token=count(step.config).flops_per_token,
        )
    return costs


def ratios(costs: dict[str, StepCost], baseline: str) -> dict[str, float]:
    """Ratios of the first contestant to `baseline`: tokens per second (median over pairs of steps), bytes, FLOPs.

    `kept_of_promise` is the tokens per second gained over what the FLOPs promise.
    """
    ours, other = asdict(next(iter(costs.values()))), asdict(costs[baseline])
    values = {key: ours[key] / other[key] for key in ("peak_bytes", "flops_per_token")}
    # Of neighbours in time, which whatever else the machine does has slowed alike.
    faster = statistics.median(b / a for a, b in zip(ours["seconds"], other["seconds"]))
    return values | {"tokens_per_second": faster, "kept_of_promise": faster * values["flops_per_token"]}


def table(costs: dict[str, StepCost]) -> list[str]:
    """The costs, and the first contestant's ratio to each other one, as lines of a Markdown table."""
    lines = ["| | tokens/s | FLOPs per token | FLOP/s | peak memory |", "|---|---:|---:|---:|---:|"]
    for name, cost in costs.items():
        achieved = cost.tokens_per_second * cost.flops_per_token
        cells = f"{cost.tokens_per_second:,.0f} | {cost.flops_per_token:.4g} | {achieved:.3g}"
        lines.append(f"| {name} | {cells} | {cost.peak_bytes / 2**20:,.0f} MiB |")
    first, *others = costs
    for other in others:
        r = ratios(costs, other)
        cells = f"{r['tokens_per_second']:.3f} | {r['flops_per_token']:.3f} | {r['kept_of_promise']:.3f}"
        lines.append(f"| {first} / {other} | {cells} | {r['peak_bytes']:.3f} |")
    return lines
