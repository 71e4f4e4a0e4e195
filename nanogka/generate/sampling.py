"""Choose the next token from logits: penalties, top-k, temperature, top-p, min-p, in this order.

Each limit sees only the tokens that the limit before it kept, with their probabilities renormalized. Every text draws
one number per token from its own generator, so a text does not depend on the other texts in the batch.

Shapes: B texts, V vocabulary, K candidates (the top k, or all V).
"""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from nanogka.generate.settings import SamplingParams


def sample_generators(seed: int, samples: Sequence[int]) -> list[torch.Generator]:
    """Make one CPU generator per sample number, which depends on the seed and that number alone."""
    generators = []
    for sample in samples:
        # A hash and not seed + number: sample 1 of seed 0 would be sample 0 of seed 1.
        digest = hashlib.blake2b(f"{seed}/{sample}".encode(), digest_size=8).digest()
        # Without the last of the 64 bits, so that the seed fits a signed integer.
        generators.append(torch.Generator().manual_seed(int.from_bytes(digest, "little") >> 1))
    return generators


def next_token_candidates(logits: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Return the candidates' probabilities (B, K) float64 and ids (B, K) int64, both on the CPU.

    `logits` are (B, V) after penalties, the temperature is above 0. A candidate that a limit dropped has probability 0.
    The others are not renormalized.
    """
    # Top-k comes first: the temperature does not change which tokens are the likeliest, and everything after it then
    # works on k numbers per text instead of the whole vocabulary.
    vocab_size = logits.shape[-1]
    top_k = params.top_k or 0
    if 0 < top_k < vocab_size:
        logits, ids = logits.topk(top_k, dim=-1)
    elif params.top_p < 1:
        logits, ids = logits.sort(dim=-1, descending=True)
    else:
        ids = torch.arange(vocab_size).expand_as(logits)

    # float64 keeps the tail of a large vocabulary exact. Apple's GPUs lack it, so the logits move to the CPU first.
    logits, ids = logits.cpu().double(), ids.cpu()
    # The largest logit is subtracted before the division, which would overflow at a tiny temperature.
    probabilities = torch.softmax((logits - logits.amax(-1, keepdim=True)) / params.temperature, dim=-1)

    if params.top_p < 1:
        # A token stays if the likelier tokens do not reach top_p without it. So the first token always stays, and so
        # does the token that crosses the limit.
        likelier = probabilities.cumsum(-1) - probabilities
        probabilities = torch.where(likelier < params.top_p, probabilities, 0)
    if params.min_p > 0:
        # The bar moves with the model's confidence: high where one token is near certain, low where many are likely.
        bar = params.min_p * probabilities.amax(-1, keepdim=True)
        probabilities = torch.where(probabilities >= bar, probabilities, 0)
    return probabilities, ids


def sample(
    logits: Tensor, params: SamplingParams, generators: Sequence[torch.Generator], token_counts: Tensor | None = None
) -> Tensor:
    """Choose the next token (B,) int64, on the device of `logits` (B, V); the B generators are on the CPU.

    `token_counts` (B, 2, V) is for penalties: 1 if prompt or reply has the token, and how often the reply has it.
    """
    if token_counts is not None:
        seen, count = token_counts.unbind(1)
        penalty = params.repetition_penalty  # CTRL, section 4.1; the other two are OpenAI's
        logits = torch.where(seen > 0, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
        logits = logits - params.presence_penalty * (count > 0) - params.frequency_penalty * count
    if params.temperature == 0:
        return logits.argmax(-1)

    # Inverse transform sampling: a uniform number picks the token in whose stretch of the cumulative distribution it
    # falls. The generators are on the CPU, so that a seed gives the same text on every device.
    probabilities, ids = next_token_candidates(logits, params)
    uniform = torch.cat([torch.rand(1, dtype=torch.float64, generator=g) for g in generators])
    cumulative = probabilities.cumsum(-1)
    # Scaling by the sum renormalizes. The factor keeps the draw off the end, so that it always meets a token that has
    # some probability.
    threshold = uniform[:, None] * (1 - 1e-12) * cumulative[:, -1:]
    chosen = torch.searchsorted(cumulative, threshold, right=True)
    return ids.gather(1, chosen).squeeze(1).to(logits.device)
