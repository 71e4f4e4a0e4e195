"""Gaussian kernel attention: the operator and nothing else. It knows no model.

`reference` is the paper's section 3.2 word for word, `gaussian` the public operator and its reduction to softmax
attention, `softmax` the masks (section 3.3) and torch's fused attention, `cached` the same over a decode cache.

Shapes: B batch, T positions, S cached positions, H heads, D features per head.
"""

from nanogka.attention.cached import (
    AttentionMetadata,
    gaussian_attention_cached,
    gaussian_decode,
    softmax_attention_cached,
)
from nanogka.attention.gaussian import BACKENDS, dot_product_attention, gaussian_attention
from nanogka.attention.reference import gaussian_reference
from nanogka.attention.softmax import softmax_attention, visible

__all__ = [
    "BACKENDS",
    "AttentionMetadata",
    "dot_product_attention",
    "gaussian_attention",
    "gaussian_attention_cached",
    "gaussian_decode",
    "gaussian_reference",
    "softmax_attention",
    "softmax_attention_cached",
    "visible",
]
