"""Time and memory of the operator beside the literal version and ordinary attention, at the same shapes.

Contestants: `ours` (the operator as the model calls it, by the back-end chosen for it), `triton` (the operator by our
own kernels, chosen or not), `reference` (the operator, literally), `sdpa` (ordinary attention by torch's fused kernel;
dense, whatever the window) and `flex` (ordinary attention by FlexAttention, which skips what the window hides).
"""

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nanogka.attention.backends import run
from nanogka.attention.flex import flex_attention
from nanogka.attention.gaussian import gaussian_attention
from nanogka.attention.softmax import softmax_attention

CONTESTANTS = ("ours", "triton", "reference", "sdpa", "flex")
CUDA_CALLS = 10  # calls that a timing on CUDA averages: launching one takes about as long as a short kernel runs
BACKWARD_PRODUCTS = 5 / 2  # matrix products of backward over forward's: s, dP, dV, dQ, dK against s, y


@dataclass(frozen=True)
class Shape:
    """What is measured: (B, T, H, D), the window (None: full) and the dtype, always causal."""

    batch: int
    length: int
    heads: int
    head_dim: int
    window: int | None
    dtype: torch.dtype

    def forward_flops(self, dense: bool = False) -> float:
        """FLOPs of the two products over the pairs that are seen."""
        W = self.length - 1 if self.window is None or dense else min(self.window, self.length - 1)
        pairs = (W + 1) * self.length - W * (W + 1) / 2
        return 4 * self.batch * self.heads * self.head_dim * pairs


@dataclass
class Measurement:
    """One contestant at one shape; seconds, FLOP/s and bytes are None where it did not run, and `reason` says why.

    Attributes:
        forward_seconds, total_seconds: medians of forward alone and of forward and backward.
        forward_flops, total_flops: achieved FLOP/s, counting the pairs that are seen.
        peak_bytes: most memory held at once during forward and backward, beyond the inputs.
    """

    contestant: str
    length: int
    window: int | None
    forward_seconds: float | None = None
    total_seconds: float | None = None
    forward_flops: float | None = None
    total_flops: float | None = None
    peak_bytes: int | None = None
    reason: str = ""

    def to_dict(self) -> dict:
        """All fields, for JSON."""
        return asdict(self)


def contestant(name: str, window: int | None) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The function (z, v, σ) → y of that name."""
    if name in ("ours", "triton"):
        options = {"backend": "auto" if name == "ours" else "triton", "window": window, "equal_key_norms": True}
        return lambda z, v, sigma: gaussian_attention(z, z, v, sigma, **options)
    if name == "reference":
        options = {"causal": True, "window": window, "equal_key_norms": False}
        return lambda z, v, sigma: run("reference", z, z, v, sigma, **options)
    if name == "sdpa":
        return lambda z, v, sigma: softmax_attention(z, z, v, scale=z.shape[-1] ** -0.5)
    return lambda z, v, sigma: flex_attention(z * z.shape[-1] ** -0.5, z, v, causal=True, window=window)


def measure(name: str, shape: Shape, device: torch.device, repeats: int, memory_limit: int) -> Measurement:
    """Time and memory of one contestant. A failure is recorded, not raised.

    Args:
        name: one of `CONTESTANTS`.
        shape: of the inputs.
        device: where to run.
        repeats: timings whose median counts, after one that warms up.
        memory_limit: bytes that the literal version may take; beyond, it is not run.
    """
    result = Measurement(name, shape.length, shape.window)
    need = reference_bytes(shape)
    if name == "reference" and need > memory_limit:
        result.reason = f"would take {need / 2**30:.0f} GiB"
        return result
    leaves = _inputs(shape, device)
    function = contestant(name, shape.window)
    try:
        with torch.no_grad():
            result.forward_seconds = _median(lambda: function(*leaves), device, repeats)
        result.forward_flops = shape.forward_flops(dense=name == "sdpa") / result.forward_seconds
        gradient = torch.ones_like(leaves[1])
        wanted = leaves[:2] if name in ("sdpa", "flex") else leaves  # ordinary attention has no σ

        def both() -> None:
            torch.autograd.grad(function(*leaves), wanted, gradient)

        result.total_seconds = _median(both, device, repeats)
        flops = shape.forward_flops(dense=name == "sdpa") * (1 + BACKWARD_PRODUCTS)
        result.total_flops = flops / result.total_seconds
        result.peak_bytes = peak_memory(both, device)
    except Exception as error:  # out of memory, or a kernel that this device lacks: both have many types
        result.reason = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    return result


def reference_bytes(shape: Shape) -> int:
    """What the literal version holds at its peak, about: two (B, H, T, T, D) tensors and ten (B, H, T, T) ones."""
    pairs = shape.batch * shape.heads * shape.length**2
    return pairs * (2 * shape.head_dim + 10) * shape.dtype.itemsize


def peak_memory(function: Callable[[], object], device: torch.device) -> int:
    """Most bytes held at once while `function` runs, beyond what was held before."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        function()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    held = most = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def table(measurements: list[Measurement]) -> list[str]:
    """The measurements as lines of a Markdown table."""
    lines = [
        "| T | window | what | forward | forward + backward | forward FLOP/s | both FLOP/s | peak memory |",
        "|---:|---:|---|---:|---:|---:|---:|---:|",
    ]

    def text(value: float | None, scale: float, unit: str) -> str:
        return "—" if value is None else f"{value * scale:.2f} {unit}"

    for m in measurements:
        cells = [
            text(m.forward_seconds, 1e3, "ms"),
            text(m.total_seconds, 1e3, "ms"),
            text(m.forward_flops, 1e-12, "T"),
            text(m.total_flops, 1e-12, "T"),
            text(m.peak_bytes, 2**-20, "MiB"),
        ]
        reason = f" ({m.reason})" if m.reason else ""
        window = "full" if m.window is None else m.window
        lines.append(f"| {m.length} | {window} | {m.contestant}{reason} | {' | '.join(cells)} |")
    return lines


def _inputs(shape: Shape, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator(device).manual_seed(0)
    size = (shape.batch, shape.length, shape.heads, shape.head_dim)
    z, v = (torch.randn(size, generator=generator, device=device) for _ in range(2))
    z = F.rms_norm(z, (shape.head_dim,))
    sigma = torch.full((shape.heads,), math.sqrt(math.sqrt(shape.head_dim)), device=device)
    return z.to(shape.dtype).requires_grad_(), v.to(shape.dtype).requires_grad_(), sigma.requires_grad_()


def _median(function: Callable[[], object], device: torch.device, repeats: int) -> float:
    """Median seconds of a call, after a round that warms up; on CUDA of `CUDA_CALLS` in a row, launched ahead."""
    calls = CUDA_CALLS if device.type == "cuda" else 1
    times = []
    for _ in range(repeats + 1):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        for _ in range(calls):
            function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append((time.perf_counter() - start) / calls)
    return statistics.median(times[1:])
