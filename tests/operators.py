"""Measures of differentiable operators, and literal forms: of mixture attention and of torch's `varlen_attn`."""

import numpy as np
import torch

from nanogka.attention.mixture import FLOOR


def value_and_gradients(function, leaves, *arguments, **options):
    """Output of `function` and the gradients of the leaves (one that occurs twice has one), for a fixed direction."""
    y = function(*leaves, *arguments, **options)
    weight = torch.cos(torch.arange(y.numel(), device=y.device)).to(y).view_as(y)
    return [y.detach(), *torch.autograd.grad(y, list(dict.fromkeys(leaves)), weight)]


def peak_bytes(function):
    """Most memory held at once while `function` runs, above what was held before, and the largest allocation."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    sizes = [e.nbytes() for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    return np.cumsum(sizes).max(), max(sizes)


def literal_varlen(q, k, v, starts, starts_k, most, most_k, *, scale, window_size):
    """What torch documents of `varlen_attn`, with T×T matrices."""
    assert starts is starts_k
    assert window_size[1] == 0
    outputs = []
    for a, b in zip(starts[:-1].tolist(), starts[1:].tolist()):
        behind = torch.arange(b - a)[:, None] - torch.arange(b - a)
        hidden = (behind < 0) | ((behind > window_size[0]) if window_size[0] >= 0 else False)
        logits = scale * torch.einsum("ihd,jhd->hij", q[a:b], k[a:b])
        outputs.append(torch.einsum("hij,jhd->ihd", logits.masked_fill(hidden, -torch.inf).softmax(-1), v[a:b]))
    return torch.cat(outputs)


def literal_mixture(q, k, v, components):
    """Gaussian mixture attention by its formulas, with the T×T affinity."""
    routed = []
    for x in (q, k):
        difference = x[..., None, :] - components.means  # (B, T, H, K, d)
        exponent = -(components.log_precisions.exp() * difference.square()).sum(-1) / 2
        log_density = exponent + components.log_precisions.sum(-1) / 2 + components.log_weights
        routed.append(log_density.softmax(-1))
    affinity = torch.einsum("bihk,bjhk->bhij", routed[0], routed[1] + FLOOR).tril()
    return torch.einsum("bhij,bjhd->bihd", affinity / affinity.sum(-1, keepdim=True), v)
