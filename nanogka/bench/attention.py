"""Measure time and memory of Gaussian kernel attention, softmax attention and the literal version.

    python -m scripts.bench attention --lengths 1024,2048,4096 --window 256
    python -m scripts.bench attention --contestants gaussian,triton,FA2,FA4     on a GPU

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
from torch.nn.attention.varlen import varlen_attn

from nanogka import backends
from nanogka.attention import gaussian_attention, softmax_attention
from nanogka.attention.mixture import Components, mixture_attention
from nanogka.bench.common import BenchSettings, integers, peak_memory, take_turns
from nanogka.common.cli import flag
from nanogka.common.errors import Errors, in_one_line
from nanogka.common.formatting import byte_size, markdown_table, number, si

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


def flash_attention(z: Tensor, v: Tensor, sigma: Tensor, window: int | None) -> Tensor:
    """Gaussian attention of features of equal norm as torch's variable-length attention, all rows of one length."""
    B, T = z.shape[:2]
    bounds = torch.arange(0, (B + 1) * T, T, dtype=torch.int32, device=z.device)
    q = (z.float() / sigma[:, None]).to(z.dtype)  # σ divides q and k once each, so q·k is the exponent
    packed = (t.flatten(0, 1) for t in (q, q, v))
    past = (-1 if window is None else window, 0)
    return varlen_attn(*packed, bounds, bounds, T, T, scale=1.0, window_size=past).unflatten(0, (B, T))


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
    "triton": gaussian_by("triton"),  # our kernels
    "mixture": mixture,
    "reference": gaussian_by("reference"),  # holds T × T × D
    **dict.fromkeys(FLASH_VERSIONS, flash_attention),  # on CUDA
}


def contestant(name: str, device: torch.device, dtype: torch.dtype) -> Attention:
    """One of `CONTESTANTS`, with the FlashAttention that it needs. Raises if that is not installed."""
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

    def reference_bytes(self) -> int:
        """Peak memory of the literal version, about: two (B, H, T, T, D) tensors and ten (B, H, T, T) ones."""
        return self.batch * self.heads * self.length**2 * (2 * self.head_dim + 10) * self.dtype.itemsize


def measure(name: str, shape: Shape, device: torch.device, repeats: int, memory_limit: float = math.inf) -> dict:
    """Costs of one contestant; None where it did not run, with the `reason`. A failure is not raised.

    Seconds and FLOP/s of forward alone and of forward and backward (`total`), and the peak bytes of both beyond the
    inputs. FLOPs are those of the visible pairs. The mixture needs fewer, so its FLOP/s measure speed, not work. The
    literal version is skipped if it needs more than `memory_limit` bytes.
    """
    keys = ("forward_seconds", "total_seconds", "forward_flops", "total_flops", "peak_bytes")
    result = {"contestant": name, "length": shape.length, **dict.fromkeys(keys), "reason": ""}
    if name == "reference" and shape.reference_bytes() > memory_limit:
        return result | {"reason": f"would need {shape.reference_bytes() / 2**30:.1f} GiB"}
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


@dataclass(frozen=True)
class Settings(BenchSettings):
    """Settings."""

    lengths: str = flag("1024,2048,4096,8192", "T in positions, separated by commas")
    window: int | None = flag(None, "earlier positions that each one sees (default: all)", ge=0, le=2**24)
    batch: int = flag(1, "sequences", ge=1, le=2**16)
    heads: int = flag(4, "number of heads", ge=1, le=2**12)
    head_dim: int = flag(64, "features per head", ge=1, le=2**12)
    contestants: str = flag(
        "softmax,gaussian,reference", f"what to compare, of {', '.join(CONTESTANTS)}, separated by commas"
    )
    repeats: int = flag(5, "timings; the result is their median", ge=1, le=10**4)
    reference_gib: float = flag(4.0, "maximum memory of the literal version; longer inputs skip it", ge=0, le=10**6)


def bench(settings: Settings, errors: Errors) -> None:
    """Measure the contestants at every length and print the table."""
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
