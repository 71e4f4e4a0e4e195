"""Measure time and memory of Gaussian kernel attention, softmax attention and the literal version.

    python -m scripts.bench attention --lengths 1024,2048,4096 --window 256
    python -m scripts.bench attention --contestants gaussian,FA2,FA4     on a GPU

Forward and backward are measured, always causal. Shapes: B batch, T positions, H heads, D features per head.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import attention as torch_attention

from nanogka import backends
from nanogka.attention import gaussian_attention, softmax_attention
from nanogka.attention.mixture import Components, mixture_attention
from nanogka.bench.common import BenchSettings, integers, peak_memory, table, take_turns
from nanogka.common.cli import flag
from nanogka.common.errors import Errors, in_one_line
from nanogka.common.formatting import byte_size, number, si

CALLS_ON_CUDA = 10  # averaged in one timing, because launching a kernel takes about as long as a short one runs
COMPONENTS, ROUTING_DIM = 64, 16  # K and d of Gaussian mixture attention: the model's defaults
BACKWARD_PRODUCTS = 5 / 2  # matrix products of backward (s, dP, dV, dQ, dK) over those of forward (s, y)
FLASH_VERSIONS = ("FA2", "FA3", "FA4")

Attention = Callable[[Tensor, Tensor, Tensor, "int | None"], Tensor]


def gaussian_by(backend: str) -> Attention:
    """Gaussian kernel attention by one of its back-ends."""
    return lambda z, v, sigma, window: gaussian_attention(
        z, z, v, sigma, window=window, backend=backend, equal_key_norms=True
    )


def mixture(z: Tensor, v: Tensor, sigma: Tensor, window: int | None) -> Tensor:
    """Gaussian mixture attention, which is linear in T."""
    if window is not None:
        raise ValueError(f"window: got {window}, expected None: Gaussian mixture attention sees its whole past")
    heads, d = z.shape[2], min(ROUTING_DIM, z.shape[3])
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(heads, COMPONENTS, d, generator=generator).to(z.device)
    components = Components(means, torch.zeros_like(means) - math.log(d) / 2, torch.zeros_like(means[..., 0]))
    return mixture_attention(z[..., :d], z[..., -d:].clone(), v, components)[0]


# Each maps features z (B, T, H, D), values v (B, T, H, D), σ (H,) and the window to (B, T, H, D).
CONTESTANTS: dict[str, Attention] = {
    "softmax": lambda z, v, sigma, window: softmax_attention(z, z, v, scale=z.shape[-1] ** -0.5, window=window),
    "gaussian": gaussian_by("auto"),  # as the model calls it
    "mixture": mixture,
    "reference": gaussian_by("reference"),  # holds (B, H, T, T, D): 2 GB at T = 1,024 with the default sizes
    **dict.fromkeys(FLASH_VERSIONS, gaussian_by("auto")),  # on CUDA in 16 bits, see `contestant`
}


def contestant(name: str, device: torch.device, dtype: torch.dtype) -> Attention:
    """One of `CONTESTANTS`, with the FlashAttention that it needs. Raises if that is not installed."""
    if name in FLASH_VERSIONS and (device.type != "cuda" or dtype == torch.float32):
        raise ValueError(f"{name}: got {device.type} and {dtype}, expected cuda and 16 bits")
    if torch_attention.current_flash_attention_impl() is not None:
        torch_attention.restore_flash_attention_impl()  # torch's own, FA2
    if name in FLASH_VERSIONS and name != "FA2":
        torch_attention.activate_flash_attention_impl(name)
    elif name == "gaussian":
        backends.select_kernels(device, dtype)  # the model's choice
    return CONTESTANTS[name]


def attention_inputs(shape: "Shape", device: torch.device) -> list[Tensor]:
    """z of equal norms, v (B, T, H, D) and σ (H,), all with gradients."""
    generator = torch.Generator(device).manual_seed(0)
    size = (shape.batch, shape.length, shape.heads, shape.head_dim)
    z, v = (torch.randn(size, generator=generator, device=device) for _ in range(2))
    sigma = torch.full((shape.heads,), shape.head_dim**0.25, device=device)
    leaves = F.rms_norm(z, (shape.head_dim,)).to(shape.dtype), v.to(shape.dtype), sigma
    return [leaf.requires_grad_() for leaf in leaves]


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


def measure(name: str, shape: Shape, device: torch.device, repeats: int) -> dict:
    """Costs of one contestant; None where it did not run, with the `reason`. A failure is not raised.

    Seconds and FLOP/s of forward alone and of forward and backward (`total`), and the peak bytes of both beyond the
    inputs. FLOPs are those of the visible pairs. The mixture needs fewer, so its FLOP/s measure speed, not work.
    """
    keys = ("forward_seconds", "total_seconds", "forward_flops", "total_flops", "peak_bytes")
    result = {"contestant": name, "length": shape.length, **dict.fromkeys(keys), "reason": ""}
    try:
        function, leaves = contestant(name, device, shape.dtype), attention_inputs(shape, device)

        def forward() -> Tensor:
            with torch.no_grad():
                return function(*leaves, shape.window)

        def total() -> None:
            y = function(*leaves, shape.window)
            torch.autograd.grad(y, leaves, torch.ones_like(y), allow_unused=True)  # softmax attention has no σ

        calls = CALLS_ON_CUDA if device.type == "cuda" else 1
        times = take_turns({"forward": forward, "total": total}, device, repeats, calls)
        for (part, measured), products in zip(times.items(), (1, 1 + BACKWARD_PRODUCTS)):
            result[f"{part}_seconds"] = elapsed = statistics.median(measured)
            result[f"{part}_flops"] = products * shape.forward_flops() / elapsed
        result["peak_bytes"] = peak_memory(total, device)
    except Exception as error:  # out of memory, or a kernel or package that is missing: many types
        result |= dict.fromkeys(keys) | {"reason": in_one_line(error)}
    return result


COLUMNS = {
    "T": lambda m: number(m["length"]),
    "contestant": lambda m: f"{m['contestant']} ({m['reason']})" if m["reason"] else m["contestant"],
    "forward, ms": lambda m: number(m["forward_seconds"] and 1e3 * m["forward_seconds"], 2),
    "both, ms": lambda m: number(m["total_seconds"] and 1e3 * m["total_seconds"], 2),
    "forward, FLOP/s": lambda m: si(m["forward_flops"]),
    "both, FLOP/s": lambda m: si(m["total_flops"]),
    "peak memory": lambda m: byte_size(m["peak_bytes"]),
}


@dataclass(frozen=True)
class Settings(BenchSettings):
    """Settings."""

    lengths: str = flag("1024,2048,4096,8192", "sequence lengths in tokens, separated by commas")
    window: int | None = flag(None, "window: number of earlier positions that each position sees (default: all)", ge=0)
    batch: int = flag(1, "sequences", ge=1)
    heads: int = flag(4, "number of heads", ge=1)
    head_dim: int = flag(64, "features per head", ge=1)
    contestants: str = flag("softmax,gaussian", f"what to compare, separated by commas: {', '.join(CONTESTANTS)}")
    repeats: int = flag(5, "number of timings; the median is reported", ge=1)


def bench(settings: Settings, errors: Errors) -> None:
    """Measure the contestants at every length and print the table."""
    s = settings
    lengths, names = integers("--lengths", s.lengths, errors), s.contestants.split(",")
    known = set(names) <= set(CONTESTANTS)
    errors.require(known, "contestants", s.contestants, f"some of {', '.join(CONTESTANTS)}, separated by commas")
    device, dtype = s.start(errors)
    measurements = []
    for length in lengths:
        shape = Shape(s.batch, length, s.heads, s.head_dim, s.window, dtype)
        measurements += [measure(name, shape, device, s.repeats) for name in names]
    title = f"B={s.batch} H={s.heads} D={s.head_dim}, window {'full' if s.window is None else s.window}"
    s.report(device, dtype, title, table(COLUMNS, measurements, left=2), measurements=measurements)
