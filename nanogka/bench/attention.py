"""Time and memory of Gaussian kernel attention, forward and backward, beside softmax attention and the literal version.

    python -m scripts.bench attention --lengths 1024,2048,4096 --window 256

Shapes: B batch, T positions, H heads, D features per head. Always causal.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nanogka.attention import gaussian_attention, softmax_attention
from nanogka.attention.mixture import Components, mixture_attention
from nanogka.bench.common import BenchSettings, integers, peak_memory, seconds
from nanogka.common.cli import flag
from nanogka.common.errors import Errors, in_one_line
from nanogka.common.formatting import byte_size, markdown_table, number, si

CALLS_ON_CUDA = 10  # averaged in one timing: launching a kernel takes about as long as a short one runs
COMPONENTS, ROUTING_DIM = 64, 16  # K and d of Gaussian mixture attention: the model's defaults
BACKWARD_PRODUCTS = 5 / 2  # matrix products of backward over forward's: s, dP, dV, dQ, dK against s, y


def _gaussian(z: Tensor, v: Tensor, sigma: Tensor, window: int | None, backend: str) -> Tensor:
    return gaussian_attention(z, z, v, sigma, window=window, backend=backend, equal_key_norms=True)


def _mixture(z: Tensor, v: Tensor, window: int | None) -> Tensor:
    if window is not None:
        raise ValueError(f"window: got {window}, expected None: Gaussian mixture attention sees its whole past")
    heads, d = z.shape[2], min(ROUTING_DIM, z.shape[3])
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(heads, COMPONENTS, d, generator=generator).to(z.device)
    components = Components(means, torch.zeros_like(means) - math.log(d) / 2, torch.zeros_like(means[..., 0]))
    return mixture_attention(z[..., :d], z[..., -d:].clone(), v, components)[0]


# Each maps features z (B, T, H, D), values v (B, T, H, D), σ (H,) and the window to (B, T, H, D).
CONTESTANTS: dict[str, Callable[[Tensor, Tensor, Tensor, int | None], Tensor]] = {
    "softmax": lambda z, v, sigma, window: softmax_attention(z, z, v, scale=z.shape[-1] ** -0.5, window=window),
    "gaussian": lambda z, v, sigma, window: _gaussian(z, v, sigma, window, "auto"),  # as the model calls it
    "triton": lambda z, v, sigma, window: _gaussian(z, v, sigma, window, "triton"),  # our kernels, chosen or not
    "mixture": lambda z, v, sigma, window: _mixture(z, v, window),  # linear in T; knows no window
    "reference": lambda z, v, sigma, window: _gaussian(z, v, sigma, window, "reference"),  # holds T × T × D
}


@dataclass(frozen=True)
class Shape:
    """Inputs of a measurement."""

    batch: int
    length: int
    heads: int
    head_dim: int
    window: int | None  # None: full
    dtype: torch.dtype

    def forward_flops(self) -> float:
        """FLOPs of forward's two products over the visible pairs."""
        W = self.length - 1 if self.window is None else min(self.window, self.length - 1)
        pairs = (W + 1) * self.length - W * (W + 1) / 2
        return 4 * self.batch * self.heads * self.head_dim * pairs

    def reference_bytes(self) -> int:
        """Peak memory of the literal version, about: two (B, H, T, T, D) tensors and ten (B, H, T, T) ones."""
        return self.batch * self.heads * self.length**2 * (2 * self.head_dim + 10) * self.dtype.itemsize


def measure(name: str, shape: Shape, device: torch.device, repeats: int, memory_limit: int) -> dict:
    """Costs of one contestant; None where it did not run, and `reason` says why: a failure is not raised.

    Seconds and FLOP/s of forward alone and of forward and backward (`total`), and the most bytes held at once during
    both, beyond the inputs. FLOPs are those of the visible pairs, also of the linear form, which does without most of
    them: there a measure of speed, not of work. Beyond `memory_limit` bytes the literal version is not run.
    """
    keys = ("forward_seconds", "total_seconds", "forward_flops", "total_flops", "peak_bytes")
    result = {"contestant": name, "length": shape.length, **dict.fromkeys(keys), "reason": ""}
    if name == "reference" and shape.reference_bytes() > memory_limit:
        return result | {"reason": f"would take {shape.reference_bytes() / 2**30:.1f} GiB"}
    leaves: list[Tensor] = []

    def forward() -> Tensor:
        return CONTESTANTS[name](*leaves, shape.window)

    def both() -> None:
        y = forward()
        torch.autograd.grad(y, leaves, torch.ones_like(y), allow_unused=True)  # ordinary attention has no σ

    def median_seconds(function: Callable[[], object]) -> float:
        calls = CALLS_ON_CUDA if device.type == "cuda" else 1
        times = [seconds(function, device, calls) for _ in range(repeats + 1)]
        return statistics.median(times[1:])  # the first one warms up

    try:
        generator = torch.Generator(device).manual_seed(0)
        size = (shape.batch, shape.length, shape.heads, shape.head_dim)
        z, v = (torch.randn(size, generator=generator, device=device) for _ in range(2))
        sigma = torch.full((shape.heads,), shape.head_dim**0.25, device=device)
        z, v = F.rms_norm(z, (shape.head_dim,)).to(shape.dtype), v.to(shape.dtype)
        leaves += [leaf.requires_grad_() for leaf in (z, v, sigma)]
        with torch.no_grad():
            result["forward_seconds"] = median_seconds(forward)
        result["total_seconds"] = median_seconds(both)
        result["peak_bytes"] = peak_memory(both, device)
    except Exception as error:  # out of memory, or a kernel that this device lacks: both have many types
        result["reason"] = in_one_line(error)
    for part, factor in (("forward", 1), ("total", 1 + BACKWARD_PRODUCTS)):
        if elapsed := result[f"{part}_seconds"]:
            result[f"{part}_flops"] = factor * shape.forward_flops() / elapsed
    return result


@dataclass(frozen=True)
class Settings(BenchSettings):
    """Settings."""

    lengths: str = flag("1024,2048,4096,8192", "T in positions, separated by commas")
    window: int | None = flag(None, "earlier positions that each one sees (default: all)", ge=0, le=2**24)
    batch: int = flag(1, "sequences", ge=1, le=2**16)
    heads: int = flag(4, "number of heads", ge=1, le=2**12)
    head_dim: int = flag(64, "features per head", ge=1, le=2**12)
    contestants: str = flag(
        "softmax,gaussian,reference", f"what is compared: some of {', '.join(CONTESTANTS)}, separated by commas"
    )
    repeats: int = flag(5, "timings, of which the median counts", ge=1, le=10**4)
    reference_gib: float = flag(
        4.0, "memory that the literal version may take; longer inputs leave it out", ge=0, le=10**6
    )


def bench(settings: Settings, errors: Errors) -> None:
    s = settings
    lengths, names = integers("--lengths", s.lengths, errors), s.contestants.split(",")
    known = set(names) <= set(CONTESTANTS)
    errors.require(known, "--contestants", s.contestants, f"some of {', '.join(CONTESTANTS)}, separated by commas")
    device, dtype = s.start(errors)
    measurements = []
    for length in lengths:
        shape = Shape(s.batch, length, s.heads, s.head_dim, s.window, dtype)
        measurements += [measure(name, shape, device, s.repeats, int(s.reference_gib * 2**30)) for name in names]
    title = f"B={s.batch} H={s.heads} D={s.head_dim}, window {'full' if s.window is None else s.window}"
    header = ["T", "contestant", "forward, ms", "both, ms", "forward, FLOP/s", "both, FLOP/s", "peak memory"]
    rows = []
    for m in measurements:
        times = [number(t and 1e3 * t, 2) for t in (m["forward_seconds"], m["total_seconds"])]
        name = f"{m['contestant']} ({m['reason']})" if m["reason"] else m["contestant"]
        speeds = [si(m["forward_flops"]), si(m["total_flops"])]
        rows.append([number(m["length"]), name, *times, *speeds, byte_size(m["peak_bytes"])])
    s.report(device, dtype, title, markdown_table(header, rows, left=2), measurements=measurements)
