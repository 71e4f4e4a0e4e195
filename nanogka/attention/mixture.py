"""Gaussian mixture attention (arXiv 2606.18283): queries match keys through K Gaussian components, not pair by pair.

Routing features of queries and keys live in one space of d dimensions per head, in which K components with means μ_k,
diagonal precisions λ_k and weights π_k are learned. A feature's responsibilities are the posterior of the components,

    r(s)_k = π_k N(s; μ_k, 1 / λ_k) / Σ_l π_l N(s; μ_l, 1 / λ_l),

the affinity of i and j is a_ij = Σ_k r(q_i)_k r(k_j)_k, and y_i = Σ_j a_ij v_j / Σ_j a_ij over the visible j. Since the
affinity is a product of two thin matrices, no T×T matrix is needed: values are written into a memory of K slots
S_k = Σ_j r(k_j)_k [v_j, 1] and read from it, y_i ∝ Σ_k r(q_i)_k S_k. The last column of the memory is the normalizer.

Causal: positions come in chunks of c. Within a chunk the affinity is a small masked c × c matrix; between chunks the
memory is a running sum. For the backward pass only features and values are kept, and the rest is computed again.

Only the paper's abstract was available. docs/research/mixture.md lists the choices made where it is silent.

Shapes: B batch, T positions, H heads, D features of a value, d routing features, K components.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# Added to every responsibility of a key: a query whose components no key has used yet sees all keys alike, where the
# quotient would be 0 / 0.
FLOOR = 1e-6


class Components(NamedTuple):
    """The Gaussian components of every head."""

    means: Tensor  # (H, K, d) μ
    log_precisions: Tensor  # (H, K, d) log λ, so that λ > 0
    log_weights: Tensor  # (H, K) log π, up to a constant per head


def mixture_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    components: Components,
    memory: Tensor | None = None,
    valid: Tensor | None = None,
    chunk: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Causal Gaussian mixture attention, in time and memory linear in T, of positions that may continue a sequence.

    Args:
        q, k: (B, T, H, d) routing features of queries and keys, any float dtype; one tensor is routed once.
        v: (B, T, H, D) values.
        components: of the heads.
        memory: (B, H, K, D + 1) that the positions before these have written, float32; None for the start.
        valid: (B, T) bool, false for positions that write nothing; None where all do.
        chunk: positions per chunk; None for `chunk_size(K)`. The result differs by rounding only.

    Returns:
        (B, T, H, D) in the dtype of `v`, computed in float32 (float64 if the features are), differentiable in
        everything; and the memory (B, H, K, D + 1) after these positions. Its last column is the number of positions
        that each component has collected (and `FLOOR` for each).
    """
    chunk = chunk or chunk_size(components.means.shape[1])
    # None for k that is q: what is kept for the backward pass would come back as two tensors.
    arguments = (q, None if k is q else k, v, components, memory, valid, chunk)
    if not torch.is_grad_enabled():
        return _by_chunks(*arguments)
    return checkpoint(_by_chunks, *arguments, use_reentrant=False, preserve_rng_state=False)


def chunk_size(components: int) -> int:
    """Positions per chunk: at least as many as components where that is not too many.

    A chunk has a memory of K × (D + 1). With at least K positions, it costs no more than one value per position.
    """
    return max(64, min(components, 256))


def responsibilities(x: Tensor, components: Components) -> Tensor:
    """Posterior probabilities (B, T, H, K) of the components, given x (B, T, H, d); float32, or float64 if x is."""
    # Expand the exponent: two matrix products instead of T × K × d differences.
    wide = torch.promote_types(x.dtype, torch.float32)
    means, log_precisions, log_weights = (t.to(wide) for t in components)
    precisions = log_precisions.exp()
    slopes = torch.cat([-precisions / 2, precisions * means], -1)  # (H, K, 2d), of s² and s
    constants = log_weights + (log_precisions - precisions * means.square()).sum(-1) / 2
    x = x.to(wide).transpose(1, 2)
    return (torch.cat([x.square(), x], -1) @ slopes.mT + constants[:, None]).softmax(-1).transpose(1, 2)


def _by_chunks(
    q: Tensor,
    k: Tensor | None,
    v: Tensor,
    components: Components,
    memory: Tensor | None,
    valid: Tensor | None,
    chunk: int,
) -> tuple[Tensor, Tensor]:
    read = responsibilities(q, components)
    written = (read if k is None else responsibilities(k, components)) + FLOOR
    if valid is not None:
        written = torch.where(valid[:, :, None, None], written, 0)
    values = F.pad(v.transpose(1, 2).to(read.dtype), (0, 1), value=1.0)  # the column of ones sums up the weights
    length = v.shape[1]
    chunk = min(chunk, length)
    parts = read.transpose(1, 2), written.transpose(1, 2), values
    if missing := -length % chunk:  # what is padded writes nothing, and nobody reads what is computed of it
        parts = (F.pad(t, (0, 0, 0, missing)) for t in parts)
    read, written, values = (t.unflatten(2, (-1, chunk)) for t in parts)  # (B, H, chunks, c, …)
    # Products of whole chunks: the (K, D + 1) memory is kept per chunk, not per position, and matrix units stay busy.
    writes = written.mT @ values  # (B, H, chunks, K, D + 1)
    first = torch.zeros_like(writes[:, :, 0]) if memory is None else memory
    memories = torch.cat([first[:, :, None], writes], 2).cumsum(2)  # before each chunk, and after the last
    sums = (read @ written.mT).tril() @ values + read @ memories[:, :, :-1]
    sums = sums.flatten(2, 3)[:, :, :length].transpose(1, 2)
    return (sums[..., :-1] / sums[..., -1:]).to(v.dtype), memories[:, :, -1]
