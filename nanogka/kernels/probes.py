"""Probes: whether a kernel computes correctly on a device, found by running it on a small problem.

Each returns why it does not, or None, and may raise whatever compilers and drivers raise. `nanogka.dispatch` asks.
"""

from collections.abc import Callable
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor


def _literal_attention(
    q: Tensor, k: Tensor, v: Tensor, bandwidth: Tensor, *, causal: bool, window: int | None, equal_key_norms: bool
) -> Tensor:
    """The operator with T×T matrices, as `nanogka.attention.reference`, computed in the dtype of its inputs."""
    distance = (q[:, :, None] - k[:, None]).square().sum(-1)  # (B, T, T, H)
    steps = torch.arange(q.shape[1], device=q.device)
    behind = steps[:, None] - steps[None]
    seen = (behind >= 0) & (behind <= (q.shape[1] if window is None else window))
    logits = (-distance / (2 * bandwidth.to(q.dtype).square())).masked_fill(~seen[..., None], -torch.inf)
    return torch.einsum("bijh,bjhd->bihd", logits.softmax(2), v)


def probe_attention(device: torch.device, dtype: torch.dtype) -> str | None:
    """Forward and backward, dense and windowed, keys of equal norms and any, against the float64 reference."""
    if device.type == "cuda" and dtype == torch.float32:  # docs/RESULTS.md
        return "in float32, without tensor cores, its tiles spill"
    from nanogka.kernels.triton_attention import triton_attention

    B, T, H, D = 1, 80, 4, 128
    generator = torch.Generator().manual_seed(0)
    q, k, v, dy = (torch.randn(B, T, H, D, generator=generator).to(dtype) for _ in range(4))
    q, k = (F.rms_norm(t.float(), (D,)).to(dtype) for t in (q, k))
    sigma = torch.tensor([2.0, 3.0, 4.0, 6.0])

    def results(
        function: Callable, kind: torch.dtype, where: torch.device, window: int | None, equal: bool
    ) -> list[Tensor]:
        # σ's gradient is left out: in 16 bits it is a small difference of large sums, of which only the size is sure.
        leaves = [t.to(where, kind).requires_grad_() for t in (q, k, v)]
        bandwidth = sigma.to(where, torch.promote_types(kind, torch.float32)).requires_grad_()
        y = function(*leaves, bandwidth, causal=True, window=window, equal_key_norms=equal)
        dq, dk, dv = torch.autograd.grad(y, leaves, dy.to(where, kind))
        if equal:  # the gradient of k is then without its component along k
            k64, dk = leaves[1].detach().double(), dk.double()
            dk = dk - k64 * (dk * k64).sum(-1, keepdim=True) / k64.square().sum(-1, keepdim=True)
        return [t.detach().cpu().double() for t in (y, dq, dk, dv)]

    for window, equal in product((None, 17), (True, False)):
        exact = results(_literal_attention, torch.float64, torch.device("cpu"), window, equal)
        literal = results(_literal_attention, dtype, device, window, equal)
        ours = results(triton_attention, dtype, device, window, equal)
        step = 16 * torch.finfo(dtype).eps
        for name, a, p, e in zip(("y", "∂q", "∂k", "∂v"), ours, literal, exact):
            if not (a - e).norm() <= 4 * (p - e).norm() + step * e.norm():
                norms = "equal" if equal else "any"
                return f"{name} with window {window}, keys of {norms} norms, is off by {(a - e).norm() / e.norm():.1e}"
    return None


def probe_loss(device: torch.device, dtype: torch.dtype) -> str | None:
    """Loss and gradient of a chunk of logits against autograd in float64."""
    from nanogka.kernels.triton_loss import score

    rows, vocabulary, cap = 5, 700, 15.0
    generator = torch.Generator().manual_seed(0)
    logits = (9 * torch.randn(rows, vocabulary, generator=generator)).to(dtype)
    targets = torch.tensor([3, 699, -1, 0, 41])
    wide = logits.double().requires_grad_()
    exact = F.cross_entropy(cap * torch.tanh(wide / cap), targets, ignore_index=-1, reduction="none")
    (gradient,) = torch.autograd.grad(exact.sum(), wide)
    ours, losses = logits.to(device, copy=True), torch.empty(rows, device=device)
    weights = (targets >= 0).float().to(device)
    score(ours, targets.to(device), cap, losses, weights)
    for name, a, e in (("losses", losses, exact.detach()), ("gradient", ours, gradient)):
        if not (a.cpu().double() - e).norm() <= max(8 * torch.finfo(dtype).eps, 1e-5) * e.norm():
            return f"{name} disagree with float64"
    return None


PROBES = {"attention": probe_attention, "loss": probe_loss}
