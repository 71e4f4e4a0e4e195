"""Gaussian kernel attention as an operator, independent of any model.

`reference` is a literal version of the paper's section 3.2. `gaussian` has the public operator and its reduction to
softmax attention. `softmax` has the masks (section 3.3) and torch's fused attention.

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
