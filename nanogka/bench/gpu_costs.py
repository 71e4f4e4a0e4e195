"""Speed, memory and price of a training run on GPUs that are not here."""

from dataclasses import asdict, dataclass

from nanogka.bench.published import comparison
from nanogka.common.cli import flag, json_flag, print_json
from nanogka.common.errors import Errors
from nanogka.common.formatting import duration, gigabytes, markdown_table, plain_table
from nanogka.common.runtime import GPUS, PCIE, Hardware, find_gpu
from nanogka.model import GPTConfig, activation_bytes
from nanogka.train.budget import TrainingBudget, plan_budget
from nanogka.train.estimate import SHARES, TimeEstimate, checkpoint_bytes, estimate_time, held_bytes

HEADER = ("mixer", "fused kernels", "launches", "GB moved", "GB kept")
HEADER += ("ms per step: products, fused, attention, loss, update, messages", "step, ms", "tokens/s", "MFU", "run")


@dataclass(frozen=True)
class Settings:
    """Settings."""

    depth: int = flag(20, "number of layers", ge=1)
    attention: str = flag("gaussian", "token mixers, or patterns of letters, separated by commas")
    network: str = flag("february", "nanochat's network: february or july")
    sequence_len: int = flag(2048, "context in tokens", ge=2)
    vocab_size: int = flag(32768, "size of the vocabulary", ge=1)
    rows: int = flag(32, "rows of a micro-batch", ge=1)
    hardware: str = flag("h100", f"GPU: {', '.join(GPUS)}")
    devices: int = flag(8, "number of GPUs", ge=1)
    price: float = flag(3.0, "price per device and hour", ge=0)
    fp8: bool = flag(False, "compute the blocks' matrix products in 8 bits, as training does with --fp8")
    markdown: bool = flag(False, "print a row of a Markdown table for each mixer")
    compare: bool = flag(False, "print published runs with their computed times, and plan nothing")
    json: bool = json_flag()


@dataclass(frozen=True)
class Counted:
    """Kernels and bytes that the compiler plans for a micro-batch."""

    fused: int  # kernels that the compiler writes
    launches: int  # kernels of both passes, without the loss's
    moved: float  # bytes that the fused kernels read and write
    kept: float  # bytes that the forward pass keeps for the backward pass


@dataclass(frozen=True)
class GpuPlan:
    """A run of one mixer on `devices` GPUs."""

    mixer: str
    config: GPTConfig
    budget: TrainingBudget
    hardware: Hardware
    devices: int
    price: float  # of the run
    counted: Counted
    time: TimeEstimate

    def row(self) -> tuple[str, ...]:
        """The cells of the Markdown table."""
        step, counted = self.time.step, self.counted
        parts = ", ".join(f"{1e3 * value:,.0f}" for value in asdict(step).values())
        moved, kept = f"{counted.moved / 1e9:,.1f}", f"{counted.kept / 1e9:,.1f}"
        speed = f"{self.budget.total_batch_size / step.total / 1e6:.2f} M"
        run = f"{self.time.seconds / 60:,.1f} min, ${self.price:,.2f}"
        counts = (self.mixer, f"{counted.fused:,}", f"{counted.launches:,}", moved, kept)
        return (*counts, parts, f"{1e3 * step.total:,.0f}", speed, f"{self.time.mfu:.0%}", run)

    def describe(self, rows: int) -> str:
        """The plan as a table for a terminal."""
        step, tokens = self.time.step, self.budget.total_batch_size
        kept = activation_bytes(self.config, rows * self.config.sequence_len, 2)
        lines = [
            ("kernels that the compiler writes, per micro-batch", f"{self.counted.fused:,}"),
            ("launches per micro-batch, without the loss's", f"{self.counted.launches:,}"),
            ("bytes that those kernels move", f"{self.counted.moved / 1e9:,.1f} GB"),
            ("bytes kept for the backward pass", f"{self.counted.kept / 1e9:,.1f} GB"),
            ("activations that training expects", gigabytes(kept) if kept else "unknown"),
            ("weights, gradients and optimizer state, per GPU", gigabytes(held_bytes(self.config, self.devices))),
            ("checkpoint", gigabytes(checkpoint_bytes(self.config))),
            *((f"{kind}, per step", f"{1e3 * value:,.0f} ms") for kind, value in asdict(step).items()),
            (f"step of {tokens:,} tokens on {self.devices} × {self.hardware.name}", f"{1e3 * step.total:,.0f} ms"),
            ("tokens per second", f"{tokens / step.total:,.0f}"),
            ("MFU", f"{self.time.mfu:.0%}"),
            (f"run of {self.budget.num_iterations:,} steps", f"{duration(self.time.seconds)}, ${self.price:,.2f}"),
        ]
        if self.devices > 1 and self.hardware.link == PCIE:
            lines.append(("messages over PCIe", f"{step.messages / step.total:.0%} of the step, if nothing is faster"))
        return plain_table(lines)

    def document(self) -> dict:
        """The plan for --json."""
        counted = {"fused": self.counted.fused, "launches": self.counted.launches}
        counted |= {"moved_bytes": self.counted.moved, "kept_bytes": self.counted.kept}
        times = {"seconds": asdict(self.time.step), "mfu": self.time.mfu, "run_seconds": self.time.seconds}
        return {"mixer": self.mixer} | counted | times | {"price": self.price}


def plan_on_gpus(
    mixer: str,
    config: GPTConfig,
    rows: int,
    hardware: Hardware,
    devices: int,
    price: float,
    counted: Counted,
    *,
    fp8: bool = False,
) -> GpuPlan:
    """Time and price of the default horizon. `price` is that of one device and hour; `rows` are those of `counted`."""
    budget = plan_budget(config)
    moved = counted.moved * budget.total_batch_size / devices / (rows * config.sequence_len)
    time = estimate_time(config, budget, hardware, devices, moved=moved, fp8=fp8)
    return GpuPlan(mixer, config, budget, hardware, devices, time.price(price, devices), counted, time)


def count_kernels(config: GPTConfig, rows: int, fp8: bool = False) -> Counted:
    """Plan a micro-batch's kernels, which takes 20 to 40 CPU seconds."""
    from nanogka.bench.gpu_plan import plan_kernels  # imports Inductor

    plan = plan_kernels(config, rows, fp8)
    return Counted(plan.fused, plan.launches, plan.moved, plan.kept)


def plan_gpu(settings: Settings, errors: Errors) -> None:
    """Plan the kernels, compute the times, print both."""
    if settings.compare:
        errors.raise_if_any()
        print(comparison())
        return
    s, gpu = settings, find_gpu(settings.hardware)
    errors.require(gpu is not None, "hardware", s.hardware, ", ".join(GPUS))
    if gpu is not None:
        errors.require(gpu.family in SHARES, "hardware", s.hardware, "Ampere or newer, which computes in bfloat16")
        errors.require(gpu.fp8 or not s.fp8, "fp8", s.fp8, f"false: {gpu.name} has no products in 8 bits")
    shape = {"sequence_len": s.sequence_len, "vocab_size": s.vocab_size, "network": s.network}
    configs = {
        mixer: errors.capture(lambda m=mixer: GPTConfig.from_depth(s.depth, m, **shape))
        for mixer in s.attention.split(",")
    }
    errors.raise_if_any()
    plans = [
        plan_on_gpus(mixer, config, s.rows, gpu, s.devices, s.price, count_kernels(config, s.rows, s.fp8), fp8=s.fp8)
        for mixer, config in configs.items()
    ]
    if s.markdown:
        print(markdown_table(HEADER, [plan.row() for plan in plans]))
    else:
        print("\n\n".join(f"{plan.mixer}\n{plan.describe(s.rows)}" for plan in plans))
    print_json({"plans": [plan.document() for plan in plans]}, s.json)
