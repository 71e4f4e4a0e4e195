"""Decoding on a CPU by `cpu.cpp`: attention that reads its cache once, and products of few rows with a matrix.

torch has no operation that reads a cache once: products, norms and weighted sums of a long cache each fetch it again.
Its products of one to four bfloat16 rows with a matrix take 1.6 to 2.5 times as long as ours (docs/research/log.md).

No function here knows autograd. `unsupported_reason` says whether they can be used at all.

Shapes: B rows, S slots, H heads, D features per head, C and N features before and after a matrix.
"""

import ctypes
import functools
import logging
from pathlib import Path

import torch
from torch import Tensor

from nanogka.common.errors import in_one_line
from nanogka.kernels import build

log = logging.getLogger(__name__)

SOURCE = Path(__file__).with_name("cpu.cpp")
DTYPES = (torch.float32, torch.bfloat16)
_POINTER, _INTEGER = ctypes.c_void_p, ctypes.c_int64
SIGNATURES = {
    "linear": [*3 * [_POINTER], *3 * [_INTEGER]],
    "decode_features": [ctypes.c_bool, *13 * [_POINTER], ctypes.c_float],
    "decode_softmax": [ctypes.c_bool, *7 * [_POINTER], ctypes.c_float],
}
MAX_ROWS = 8  # of `linear`; with more, as in float32 with any number, torch is as fast


def linear(x: Tensor, weight: Tensor) -> Tensor:
    """x Wᵀ (…, N) in bfloat16, summed in float32, of x (…, C) of 1 to MAX_ROWS rows and a contiguous (N, C)."""
    _check((torch.bfloat16,), x, weight)
    rows = x.shape[:-1].numel()
    if not 1 <= rows <= MAX_ROWS or weight.ndim != 2 or x.shape[-1] != weight.shape[1] or not weight.is_contiguous():
        takes = f"(…, C) of 1 to {MAX_ROWS} rows and (N, C), contiguous"
        raise ValueError(f"linear: got x {tuple(x.shape)} and weight {tuple(weight.shape)}, expected {takes}")
    x = x.contiguous()
    y = torch.empty((*x.shape[:-1], len(weight)), dtype=x.dtype)
    _call("linear", x, weight, y, rows, *weight.shape)
    return y


def decode_features(
    x: Tensor,
    cached: Tensor,
    bandwidth: Tensor,
    positions: Tensor,
    frequencies: Tensor,
    ring: int,
    eps: float,
    successor: bool = False,
    key_affine: tuple[Tensor, Tensor] | None = None,
    embedded: tuple[Tensor, Tensor, Tensor] | None = None,
) -> Tensor:
    """The Gaussian mixer's attention (B, H, D) of one new token per row over a cache of un-rotated features.

        q = R_p x / rms(x),   k_s = a ∘ u_s + b,   y = Σ_s softmax_s(q · R_{p_s} k_s / (σ² rms(k_s))) u_s

    with R_p the rotation of `nanogka/attention/rotary.py` at position p, and rms(x) = √(mean x² + eps).

    Args:
        x: (B, H, D) features that queries are made of, D even.
        cached: (B, S, H, D) features u of all tokens, the new ones included; any strides with contiguous D.
        bandwidth: (H,) σ.
        positions: (B,) int64 p of the new tokens.
        frequencies: (D / 2,) rotary angles per position.
        ring: 0 if slot s holds position s; else it holds the last position p_s ≤ p with p_s mod ring = s, and ring is
            window + 1, or window + 2 with successor keys.
        eps: of the norm.
        successor: the logit of a position is that of the one before it; position 0 keeps its own.
        key_affine: a and b, (H, D) each; None for k_s = u_s.
        embedded: value embeddings, table (V, H · D) in the dtype of x, token ids (B, S) int32 of the slots, gates
            (B, S, H): u_s in the sum becomes u_s + gate · table[id].
    """
    _check(DTYPES, x, cached)
    B, H, D = x.shape
    S = cached.shape[1]
    if cached.shape != (B, S, H, D) or D % 2 or (ring and ring < S):
        got = f"x {tuple(x.shape)}, cached {tuple(cached.shape)} and ring {ring}"
        raise ValueError(f"decode_features: got {got}, expected (B, H, D), (B, S, H, D), D even, S at most ring")
    _check_shape("bandwidth", bandwidth, (H,))
    _check_shape("positions", positions, (B,), torch.int64)
    _check_shape("frequencies", frequencies, (D // 2,))
    cached = _contiguous_features(cached)
    y = torch.empty((B, H, D), dtype=x.dtype)
    bandwidth, frequencies = (t.float().contiguous() for t in (bandwidth, frequencies))
    if key_affine is not None:
        for name, part in zip(("key scale", "key shift"), key_affine):
            _check_shape(name, part, (H, D))
        key_affine = tuple(part.float().contiguous() for part in key_affine)
    table, ids, gates = embedded or (None, None, None)
    if embedded is not None:
        _check(DTYPES, x, table)
        _check_shape("table", table, (len(table), H * D))
        _check_shape("ids", ids, (B, S), torch.int32)
        _check_shape("gates", gates, (B, S, H))
        table, ids, gates = table.contiguous(), ids.contiguous(), gates.float().contiguous()
    inputs = x.contiguous(), cached, _integers(*cached.stride()[:3]), bandwidth, positions.contiguous(), frequencies
    inputs += (*(key_affine or (None, None)), table, ids, gates)
    _call("decode_features", x.dtype == torch.bfloat16, *inputs, y, _integers(B, S, H, D, ring, successor), eps)
    return y


def decode_softmax(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, scale: float) -> Tensor:
    """softmax(scale · q kᵀ) v (B, H, D_v) of one new token per row, q (B, H, D), over the filled slots.

    k (B, S, H, D) and v (B, S, H, D_v) are of all tokens, the new ones included, with any strides; slots
    0 … positions (B,) are filled, or all S.
    """
    _check(DTYPES, q, k, v)
    B, H, D = q.shape
    S, DV = k.shape[1], v.shape[-1]
    _check_shape("k", k, (B, S, H, D))
    _check_shape("v", v, (B, S, H, DV))
    _check_shape("positions", positions, (B,), torch.int64)
    k, v = _contiguous_features(k), _contiguous_features(v)
    y = torch.empty((B, H, DV), dtype=q.dtype)
    strides = _integers(*k.stride()[:3], *v.stride()[:3])
    inputs = q.contiguous(), k, v, strides, positions.contiguous()
    _call("decode_softmax", q.dtype == torch.bfloat16, *inputs, y, _integers(B, S, H, D, DV), scale)
    return y


@functools.cache
def unsupported_reason() -> str | None:
    """The reason why the functions above cannot be used here, None if they agree with float64 on small errors."""
    try:
        reason = _disagreement()
    except Exception as error:  # compilers and loaders fail in many types
        reason = in_one_line(error)
    log.info("C++ kernels for this CPU: %s", f"not used ({reason})" if reason else "agree with float64")
    return reason


@functools.cache
def _library() -> ctypes.CDLL:
    library = build.load(SOURCE)
    for name, arguments in SIGNATURES.items():
        getattr(library, name).argtypes = arguments
        getattr(library, name).restype = None
    return library


def _call(name: str, *arguments: object) -> None:
    getattr(_library(), name)(*[a.data_ptr() if isinstance(a, Tensor) else a for a in arguments])


def _integers(*values: int) -> ctypes.Array:
    return (ctypes.c_int64 * len(values))(*values)


def _check(dtypes: tuple[torch.dtype, ...], first: Tensor, *others: Tensor) -> None:
    """Refuse tensors that are not all of one of the dtypes, on the CPU."""
    for t in (first, *others):
        if t.dtype != first.dtype or t.dtype not in dtypes or not t.is_cpu:
            got = ", ".join(f"{t.dtype} on {t.device}" for t in (first, *others))
            raise ValueError(f"C++ kernels: got {got}, take {' or '.join(map(str, dtypes))} alike, on the CPU")


def _check_shape(name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> None:
    if tensor.shape != shape or not tensor.is_cpu or (dtype and tensor.dtype != dtype):
        got = f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"
        raise ValueError(f"{name}: got {got}, expected {dtype or 'a float dtype'} {shape} on the CPU")


def _contiguous_features(cached: Tensor) -> Tensor:
    return cached if cached.stride(-1) == 1 or cached.shape[-1] == 1 else cached.contiguous()


@torch.no_grad()
def _disagreement() -> str | None:
    """Compare each function with float64, None if the error is that of the dtype."""
    generator = torch.Generator().manual_seed(0)
    draw = functools.partial(torch.randn, generator=generator)
    bandwidth, positions, eps = torch.tensor([1.5, 3.0, 2.0]), torch.tensor([5, 148, 1000]), 1e-6
    for dtype in DTYPES:
        pairs = {}
        for rows in (1, 2, 3, 7) if dtype == torch.bfloat16 else ():
            x, weight = draw(rows, 70).to(dtype), draw(37, 70).to(dtype)
            pairs[f"linear, {rows} rows"] = linear(x, weight), x.double() @ weight.double().T
        for D in (12, 128):
            x, cached, v = draw(3, 3, D).to(dtype), draw(3, 149, 3, D).to(dtype), draw(3, 149, 3, D).to(dtype)
            frequencies = torch.logspace(0, -4, D // 2)
            key_affine = draw(3, D), draw(3, D)
            for ring, successor in ((0, False), (149, False), (0, True), (149, True)):
                at = positions if ring else positions.clamp_max(148)
                embedded = (
                    draw(5, 3 * D).to(dtype),
                    torch.arange(447, dtype=torch.int32).view(3, 149) % 5,
                    draw(3, 149, 3),
                )
                more = (key_affine, embedded) if successor else (None, None)
                case = x, cached, bandwidth, at, frequencies, ring, eps, successor, *more
                kind = f"decode_features, D = {D}, ring {ring}, successor {successor}"
                pairs[kind] = decode_features(*case), _literal_features(*case)
            exact = _literal_softmax(x, cached, v, 0.3, torch.arange(149) <= positions[:, None])
            pairs[f"decode_softmax, D = {D}"] = decode_softmax(x, cached, v, positions, 0.3), exact
        for name, (ours, exact) in pairs.items():
            error = ((ours - exact).norm() / exact.norm()).item()
            if not error <= max(4 * torch.finfo(dtype).eps, 1e-5):
                return f"{name} in {dtype} disagrees with float64: relative error {error:.1e}"
    return None


def _literal_features(
    x: Tensor,
    cached: Tensor,
    bandwidth: Tensor,
    positions: Tensor,
    frequencies: Tensor,
    ring: int,
    eps: float,
    successor: bool,
    key_affine: tuple[Tensor, Tensor] | None,
    embedded: tuple[Tensor, Tensor, Tensor] | None,
) -> Tensor:
    """`decode_features` as its docstring defines it, in float64."""
    x, cached, p = x.double(), cached.double(), positions[:, None]
    slots = torch.arange(cached.shape[1])
    held = p - (p - slots) % ring if ring else slots.expand(len(x), -1)

    def rotated_and_normed(u: Tensor, at: Tensor) -> Tensor:
        angles = at[..., None, None] * frequencies.double()
        first, second = u.chunk(2, -1)
        u = torch.cat([first * angles.cos() + second * angles.sin(), second * angles.cos() - first * angles.sin()], -1)
        return u / (u.square().mean(-1, keepdim=True) + eps).sqrt()

    q = rotated_and_normed(x[:, None], p)[:, 0] / bandwidth.double().square()[:, None]
    keys = cached if key_affine is None else cached * key_affine[0].double() + key_affine[1].double()
    keys, seen = rotated_and_normed(keys, held), (held >= 0) & (held <= p)
    if successor:
        seen &= held > p - ring + 1 if ring else seen
        keys = torch.where((held == 0)[..., None, None], keys, keys.roll(1, 1))
    if embedded is not None:
        table, ids, gates = embedded
        cached = cached + gates.double()[..., None] * table.double()[ids.long()].view(cached.shape)
    return _literal_softmax(q, keys, cached, 1.0, seen)


def _literal_softmax(q: Tensor, k: Tensor, v: Tensor, scale: float, filled: Tensor) -> Tensor:
    logits = scale * torch.einsum("bhd,bshd->bhs", q.double(), k.double())
    weights = logits.masked_fill(~filled[:, None], -torch.inf).softmax(-1)
    return torch.einsum("bhs,bshd->bhd", weights, v.double().masked_fill(~filled[:, :, None, None], 0))
