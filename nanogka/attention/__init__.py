"""Gaussian kernel attention: the operator and nothing else. It knows no model.

Shapes: B batch, T positions, H heads, D features a head.
"""

from nanogka.attention.decode import (
    decode_backend,
    decode_gaussian,
    decode_softmax,
    rotate_heads,
)
from nanogka.attention.gaussian import BACKENDS, gaussian_attention, gaussian_attention_over
from nanogka.attention.masks import visible
from nanogka.attention.phase_tables import PhaseTables, phase_tables
from nanogka.attention.softmax import softmax_attention, softmax_attention_over

__all__ = [
    "BACKENDS",
    "PhaseTables",
    "decode_backend",
    "decode_gaussian",
    "decode_softmax",
    "gaussian_attention",
    "gaussian_attention_over",
    "phase_tables",
    "rotate_heads",
    "softmax_attention",
    "softmax_attention_over",
    "visible",
]
