"""Gaussian kernel attention: the operator and nothing else. It knows no model.

Shapes: B batch, T positions, H heads, D features a head.
"""

from nanogka.attention.gaussian import BACKENDS, gaussian_attention, gaussian_attention_over
from nanogka.attention.softmax import softmax_attention, softmax_attention_over
from nanogka.attention.windows import visible

__all__ = [
    "BACKENDS",
    "gaussian_attention",
    "gaussian_attention_over",
    "softmax_attention",
    "softmax_attention_over",
    "visible",
]
