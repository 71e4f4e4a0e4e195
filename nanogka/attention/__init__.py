"""Gaussian kernel attention: the operator and nothing else. It knows no model.

`reference` is the paper's section 3.2 word for word, `gaussian` the public operator and its reduction to softmax
attention, `softmax` the masks (section 3.3) and torch's fused attention.

Shapes: B batch, T positions, H heads, D features per head.
"""

from nanogka.attention.gaussian import BACKENDS, gaussian_attention
from nanogka.attention.reference import gaussian_reference
from nanogka.attention.softmax import attention_mask, softmax_attention

__all__ = [
    "BACKENDS",
    "attention_mask",
    "gaussian_attention",
    "gaussian_reference",
    "softmax_attention",
]
