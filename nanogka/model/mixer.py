"""What a token mixer is: the part of a block that moves information between positions.

A new mixer is one file beside this one and one line in `nanogka.model.mixers`. The network, the decode cache and the
trainer know mixers only through this class.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from nanogka.attention import decode_backend
from nanogka.model.config import GPTConfig
from nanogka.model.layers import Rotary, rotary_at


@dataclass
class Tokens:
    """What a mixer may know of the positions it works on, beside their activations.

    Attributes:
        ids: (B, T) token ids.
        rotary: cos and sin at those positions.
    """

    ids: Tensor
    rotary: Rotary


@dataclass
class View:
    """What the layers with one window may know of a decoding step, beside the tokens.

    Attributes:
        frequencies: of the rotary angles, for `rotary_at`.
        positions: (B, T), or (1, T) where all rows agree: of the new tokens, −1 for padding.
        past: (B, S) or (1, S): of the remembered ones, −1 where a slot is empty; `None` if the new are all there is.
        mask: (B, T, S) bool, true where a new position sees a remembered one. `None` in the two common cases: one new
            position that sees everything remembered (T = 1), or new positions that are all there is, each seeing itself
            and those before it in the window (T = S).
        memo: what mixers compute of these, once for all layers.
    """

    frequencies: Tensor
    positions: Tensor
    past: Tensor | None
    mask: Tensor | None
    memo: dict = field(default_factory=dict)

    def once(self, key: Hashable, compute: Callable[[], Any]) -> Any:
        """`compute()`, called for the first layer that asks for `key`."""
        if key not in self.memo:
            self.memo[key] = compute()
        return self.memo[key]

    def rotary(self, positions: Tensor) -> Rotary:
        """cos and sin at positions (B, T), as (B, T, 1, D / 2)."""
        return rotary_at(positions, self.frequencies)


class Mixer(nn.Module):
    """Base class of the token mixers.

    Subclasses give `c_proj`, the projection back into the residual stream (zero at the start), `forward`, and for
    decoding `remember` and `recall`.

    Attributes:
        window: how far back a position sees, see `nanogka.attention.masks`; None for all.
        remembered: how many (H, D) tensors `remember` keeps of a position.
        decode_backend: what decodes one new position: our kernels (`triton`, `cpp`), `torch`, or `auto`.
    """

    remembered: int
    decode_backend: str = "auto"

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__()
        self.n_head, self.head_dim = config.n_head, config.head_dim
        self.window = config.windows()[layer]

    @property
    def bandwidth(self) -> Tensor | None:
        """(H,) σ of each head, or None for a mixer without."""
        return None

    def split_heads(self, x: Tensor) -> Tensor:
        """(B, T, C) as (B, T, H, D), a view."""
        return x.unflatten(-1, (self.n_head, self.head_dim))

    def decode_kernels(self, x: Tensor) -> str | None:
        """Which of our kernels, if any, decode these activations (B, T, C): one new position a row, no backward."""
        if x.shape[1] > 1 or (torch.is_grad_enabled() and x.requires_grad):
            return None
        backend = decode_backend(self.decode_backend, x.device, x.dtype, self.head_dim)
        return None if backend == "torch" else backend

    def forward(self, x: Tensor, tokens: Tokens) -> Tensor:
        """Mix whole sequences.

        Args:
            x: (B, T, C) normalised activations.
            tokens: their ids and rotary tables.

        Returns:
            (B, T, C).
        """
        raise NotImplementedError

    def remember(self, x: Tensor, tokens: Tokens, view: View) -> tuple[Tensor, ...]:
        """What later positions need of these: `remembered` tensors (B, T, H, D)."""
        raise NotImplementedError

    def recall(self, x: Tensor, tokens: Tokens, past: tuple[Tensor, ...], view: View) -> Tensor:
        """Mix new positions with remembered ones, themselves included.

        Args:
            x: (B, T, C) normalised activations of the new positions.
            tokens: their ids and rotary tables.
            past: what `remember` gave, as (B, S, H, D) tensors. For one new position (T = 1) they are in the order of
                the cache's slots: slot s of a layer with window W holds a position p with p mod (W + 1) = s, of one
                without a window p = s.
            view: which of them each new position sees.

        Returns:
            (B, T, C).
        """
        raise NotImplementedError
