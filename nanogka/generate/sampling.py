"""From logits to the next token: penalties, temperature, top-k, top-p, min-p, in this order.

Each limit sees only the tokens that the one before kept, with their probabilities renormalized. Every sample draws one
number per token from a generator of its own, so that it does not depend on what else is in the batch.

Shapes: B samples, V vocabulary.
"""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from nanogka.generate.settings import SamplingSettings


def sample_generators(seed: int, samples: Sequence[int]) -> list[torch.Generator]:
    """One CPU generator per sample number, which depends on the seed and that number alone."""
    generators = []
    for sample in samples:
        # A hash and not seed + number: sample 1 of seed 0 would be sample 0 of seed 1.
        digest = hashlib.blake2b(f"{seed}/{sample}".encode(), digest_size=8).digest()
        generators.append(torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1))
    return generators


def next_token_probabilities(logits: Tensor, settings: SamplingSettings) -> Tensor:
    """The distribution to draw from, (B, V) float64, of penalized logits (B, V); greedy with temperature 0."""
    if settings.temperature == 0:
        chosen = logits.argmax(-1, keepdim=True)
        return torch.zeros_like(logits, dtype=torch.float64).scatter_(1, chosen, 1.0)
    # The largest logit is subtracted before dividing: a tiny temperature would overflow otherwise.
    wide = logits.double()
    probabilities = torch.softmax((wide - wide.amax(-1, keepdim=True)) / settings.temperature, dim=-1)
    limited = 0 < (settings.top_k or 0) < logits.shape[-1]
    if limited or settings.top_p < 1:
        probabilities = _most_likely(probabilities, settings.top_k if limited else None, settings.top_p)
    if settings.min_p > 0:
        # The bar moves with the model's confidence: high where one token is near certain, low where many are likely.
        enough = probabilities >= settings.min_p * probabilities.amax(-1, keepdim=True)
        probabilities = torch.where(enough, probabilities, 0)
    return probabilities / probabilities.sum(-1, keepdim=True)


def _most_likely(probabilities: Tensor, top_k: int | None, top_p: float) -> Tensor:
    """Probabilities (B, V) with all but the top-k (of equal ones the lower ids), then all but the top-p, set to 0."""
    ordered, order = (part[:, :top_k] for part in probabilities.sort(dim=-1, descending=True, stable=True))
    if top_p < 1:
        # A token stays if those likelier than it do not reach top_p yet: the first always does, and so does the one
        # that crosses the limit.
        before = ordered.cumsum(-1) - ordered
        ordered = torch.where(before < top_p * ordered.sum(-1, keepdim=True), ordered, 0)
    return torch.zeros_like(probabilities).scatter_(1, order, ordered)


def sample(
    logits: Tensor, settings: SamplingSettings, generators: Sequence[torch.Generator], past: Tensor | None = None
) -> Tensor:
    """The next token (B,) int64, from logits (B, V) and B generators on the CPU.

    `past` (B, 2, V), for penalties only: whether a token stands in the text so far, and how often in the reply.
    """
    if past is not None:
        seen, count = past.unbind(1)
        penalty = settings.repetition_penalty  # CTRL, section 4.1; the other two are OpenAI's
        logits = torch.where(seen > 0, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
        logits = logits - settings.presence_penalty * (count > 0) - settings.frequency_penalty * count
    if settings.temperature == 0:
        return logits.argmax(-1)
    # Inverse transform: a uniform number picks the token in whose stretch of the cumulative distribution it falls. The
    # generators are on the CPU, so that a seed gives the same text on every device.
    uniform = torch.cat([torch.rand(1, dtype=torch.float64, generator=g) for g in generators])
    cumulative = next_token_probabilities(logits, settings).cumsum(-1)
    # Scaled by the sum as rounded and kept off its end: the draw always meets a token that has some probability.
    threshold = uniform.to(logits.device)[:, None] * (1 - 1e-12) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, threshold, right=True).squeeze(1)
