"""Attention of one new token a stream over what a decode cache remembers: the two forms, and which code runs them.

*Keys and values kept*: softmax(scale · q kᵀ) v.

*One tensor kept*: the Gaussian kernel's query, key and value are functions of the features x_h, and the cache keeps
u_j = R_r x_j, R the rotary map and r the phase of slot j, its place in a block of b slots. In a block, j − r is one
number k, so that with one rotated query a block and one rotation back a phase

    logit_j = (R_{i−k} q) · u_j / (σ² rms(q) rms(u_j)),   y = Σ_r R_r⁻¹ (Σ_blocks a u),

and every byte kept is read once, as key and as value.

Position p of a layer with window W is in slot p mod (W + 1), of one without in slot p. Hence all filled slots are seen.

Our kernels are in Triton for CUDA (`triton_decode`) and in C++ for CPUs (`cpp_decode`). Whether they run is found out
by running them: on the device, in the dtype, on a small problem that the literal version solves in float64. Where they
do not, and on other devices, torch decodes.

Shapes: B streams, S slots, H heads, D features a head, N visits (blocks of slots), b = block.
"""

import functools
import logging
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from nanogka.attention.graphs import constant_in_graphs
from nanogka.attention.phase_tables import PhaseTables, phase_tables
from nanogka.problems import in_one_line

log = logging.getLogger(__name__)

BACKENDS = ("auto", "torch", "triton", "cpp")
BEST = {"cuda": "triton", "cpu": "cpp"}  # by device; torch on others
NORM_EPS = torch.finfo(torch.float32).eps


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The rotary map of features (…, D), in their dtype; cos and sin (…, D / 2)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos + second * sin, second * cos - first * sin], dim=-1)


def literal_gaussian(
    x: Tensor, u: Tensor, bandwidth: Tensor, positions: Tensor, frequencies: Tensor, window: int | None, block: int
) -> Tensor:
    """The one-tensor form as the operator defines it: keys and values are made of all that is kept, in its dtype.

    Args:
        x: (B, H, D) features of the new tokens.
        u: (B, S, H, D) what is kept, theirs included.
        bandwidth: (H,) σ.
        positions: (B,) int64 of the new tokens.
        frequencies: (D / 2,) rotary angles a position.
        window, block: see the module.

    Returns:
        (B, H, D) in the dtype of x.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    slots = torch.arange(u.shape[1], device=u.device)
    last = positions[:, None]
    held = slots[None] if window is None else last - (last - slots) % (window + 1)
    seen = (held >= 0) & (held <= last)
    phase = slots[None] % block

    def turned(features: Tensor, by: Tensor) -> Tensor:
        angles = by.to(wide)[..., None, None] * frequencies.to(wide)
        return _rotated(features.to(wide), angles.cos(), angles.sin())

    def normed(features: Tensor) -> Tensor:
        return (features * torch.rsqrt(features.square().mean(-1, keepdim=True) + NORM_EPS)).to(x.dtype)

    q = normed(turned(x[:, None], last))[:, 0]
    k = normed(turned(u, held - phase))
    v = turned(u, -phase).to(x.dtype)
    q = (q.to(wide) / bandwidth.to(wide).square()[:, None]).to(x.dtype)
    return literal_softmax(q, k, v, seen, 1.0)


def literal_softmax(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float) -> Tensor:
    """softmax(scale · q kᵀ) v for one query a stream: q (B, H, D), k and v (B, S, H, D), seen (B, S) bool."""
    logits = scale * torch.einsum("bhd,bshd->bhs", q, k)
    weights = torch.softmax(logits.masked_fill(~seen[:, None], -torch.inf), dim=-1)
    # What is not seen may be anything: 0 · NaN would spread.
    return torch.einsum("bhs,bshd->bhd", weights, v.masked_fill(~seen[..., None, None], 0))


def _kernels(backend: str) -> ModuleType:
    """Our kernels; imported where they are called, as Triton is optional."""
    if backend == "triton":
        from nanogka.attention import triton_decode as kernels
    else:
        from nanogka.attention import cpp_decode as kernels
    return kernels


def decode_gaussian(
    x: Tensor, u: Tensor, bandwidth: Tensor, positions: Tensor, tables: PhaseTables, ring: int, *, backend: str
) -> Tensor:
    """The one-tensor form by our kernels of that back-end, `ring` slots (window + 1) or 0; see `literal_gaussian`."""
    return _kernels(backend).gaussian(x, u, bandwidth, positions, tables, ring, NORM_EPS)


def decode_softmax(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, scale: float, *, backend: str) -> Tensor:
    """softmax(scale · q kᵀ) v over the filled slots by our kernels.

    Args:
        q: (B, H, D) queries of the new tokens.
        k, v: (B, S, H, D) and (B, S, H, D_v), of any strides with contiguous features.
        positions: (B,) int64; slots 0 … positions are filled, or all S.
        scale: of the logits.
        backend: "triton" or "cpp".

    Returns:
        (B, H, D_v) in the dtype of q.
    """
    return _kernels(backend).softmax(q, k, v, positions, scale)


def rotate_heads(x: Tensor, cos: Tensor, sin: Tensor, *, backend: str, normed: bool = False) -> Tensor:
    """The rotary map of one position a stream: on a GPU by one kernel where torch takes nine, on a CPU by torch, whose
    operations take no longer there than a call of ours (docs/LOG.md).

    Args:
        x: (B, H, D) features.
        cos, sin: (B, D / 2) or (1, D / 2) float32.
        backend: "triton" or "cpp".
        normed: RMS-normed over the features afterwards.

    Returns:
        (B, H, D) in the dtype of x, computed in float32.
    """
    if backend == "triton":
        return _kernels(backend).rotate_op(x, cos, sin, normed, NORM_EPS)
    y = _rotated(x.float(), cos[:, None], sin[:, None])
    return (F.rms_norm(y, y.shape[-1:], eps=NORM_EPS) if normed else y).to(x.dtype)


@constant_in_graphs
def decode_backend(backend: str, device: torch.device, dtype: torch.dtype, head_dim: int) -> str:
    """What decodes on that device: one of our kernels or "torch"; `auto` is resolved. A graph holds its answer.

    Raises:
        ValueError: if `backend` is unknown, or our kernels and cannot run there (the text says why).
    """
    if backend not in BACKENDS:
        raise ValueError(f"decode backend: got {backend!r}, takes {', '.join(BACKENDS)}")
    kernels = BEST.get(device.type, "torch") if backend == "auto" else backend
    if kernels == "torch":
        return "torch"
    reason = why_not(kernels, device, dtype, head_dim)
    if reason and backend != "auto":
        raise ValueError(f"decode backend: {backend!r} cannot run on {device} in {dtype}: {reason}")
    return "torch" if reason else kernels


@functools.cache
def why_not(kernels: str, device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """Why those kernels cannot decode there, None if they can; logged the first time it is asked."""
    try:
        reason = _disagreement(kernels, device, dtype, head_dim)
    except Exception as error:  # compilers, drivers and argument checks fail in many types
        reason = in_one_line(error)
    chosen = f"torch ({kernels}: {reason})" if reason else f"{kernels} (agrees with the literal version)"
    log.info("decoding on %s, %s, D=%d: %s", device, str(dtype).removeprefix("torch."), head_dim, chosen)
    return reason


@torch.no_grad()
def _disagreement(kernels: str, device: torch.device, dtype: torch.dtype, head_dim: int) -> str | None:
    """Both forms on a ring that has gone round, and a rotation, against float64; None if the error is the dtype's."""
    B, H, window, block = 2, 3, 148, 64
    generator = torch.Generator().manual_seed(0)
    x, q = (torch.randn(B, H, head_dim, generator=generator).to(device, dtype) for _ in range(2))
    u, v = (torch.randn(B, window + 1, H, head_dim, generator=generator).to(device, dtype) for _ in range(2))
    bandwidth = torch.tensor([1.0, 2.0, 3.0], device=device)
    positions = torch.tensor([1000, 100], device=device)
    frequencies = torch.logspace(0, -4, head_dim // 2 + 1, device=device)[: head_dim // 2]
    seen = torch.arange(window + 1, device=device) <= positions[:, None]
    tables = phase_tables(positions, frequencies, window + 1, window, block, backend=kernels)
    cos, sin = (7 * frequencies[None]).cos(), (7 * frequencies[None]).sin()

    def literal(kind: torch.dtype) -> list[Tensor]:
        gaussian = literal_gaussian(x.to(kind), u.to(kind), bandwidth, positions, frequencies, window, block)
        rotated = _rotated(x.to(kind), cos, sin)
        normed = rotated * torch.rsqrt(rotated.square().mean(-1, keepdim=True) + NORM_EPS)
        return [gaussian, literal_softmax(q.to(kind), u.to(kind), v.to(kind), seen, 0.3), normed.to(kind)]

    ours = [
        decode_gaussian(x, u, bandwidth, positions, tables, window + 1, backend=kernels),
        decode_softmax(q, u, v, positions, 0.3, backend=kernels),
        rotate_heads(x, cos, sin, normed=True, backend=kernels),
    ]
    step = max(16 * torch.finfo(dtype).eps, 1e-4)  # angles in float32 are off by a few 1e-5 at position 1000
    names = ("one tensor", "keys and values", "rotation")
    for name, a, p, e in zip(names, ours, literal(dtype), literal(torch.float64)):
        error, budget = (a.double() - e).norm(), 4 * (p.double() - e).norm() + step * e.norm()
        if not error <= budget:
            return (
                f"disagrees with the literal version: {name} off by {error / e.norm():.1e}, "
                f"allowed {budget / e.norm():.1e}"
            )
    return None
