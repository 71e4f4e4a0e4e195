"""Gaussian Kernel Attention (the paper's section 3): no query, key or value projection.

The heads of the normalised activations themselves are the values; rotated and normalised, they are query and key at
once. The only matrix is the output projection, the only other parameters one bandwidth a head.
"""

import torch
from torch import Tensor, nn

from nanogka.attention import (
    decode_gaussian,
    gaussian_attention,
    gaussian_attention_over,
    rotate_heads,
    softmax_attention,
)
from nanogka.model.config import GPTConfig
from nanogka.model.layers import Linear, Rotary, norm, rotate
from nanogka.model.mixer import Mixer, Tokens, View
from nanogka.model.phases import PhasePlan, attend_phased, kernel_tables, phases, unrotate


class GaussianMixer(Mixer):
    """y = W_O · concat_h(A_h x_h), A_h the causal Gaussian kernel of z = norm(rope(x_h)), rows summing to 1."""

    remembered = 1  # x_h alone (rotated by its phase): query, key and value are all functions of it

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.log_bandwidth = nn.Parameter(torch.empty(config.n_head))  # learned in log space: σ stays positive
        self.c_proj = Linear(config.n_embd, config.n_embd)

    @property
    def bandwidth(self) -> Tensor:
        return self.log_bandwidth.exp()

    def similarity(self, heads: Tensor, rotary: Rotary) -> Tensor:
        """z (B, T, H, D) of un-rotated features (B, T, H, D); all of norm √D."""
        return norm(rotate(heads, rotary)).to(heads.dtype)

    def forward(self, x: Tensor, tokens: Tokens) -> Tensor:
        heads = self.split_heads(x)
        z = self.similarity(heads, tokens.rotary)
        y = gaussian_attention(z, z, heads, self.bandwidth, window=self.window, equal_key_norms=True)
        return self.c_proj(y.flatten(2))

    def remember(self, x: Tensor, tokens: Tokens, view: View) -> tuple[Tensor, ...]:
        rotary = view.once("phase", lambda: view.rotary(phases(view.positions, self.window)))
        if kernels := self.decode_kernels(x):
            cos, sin = (table[:, 0, 0] for table in rotary)
            return (rotate_heads(self.split_heads(x)[:, 0], cos, sin, backend=kernels)[:, None],)
        return (rotate(self.split_heads(x), rotary).to(x.dtype),)

    def recall(self, x: Tensor, tokens: Tokens, past: tuple[Tensor, ...], view: View) -> Tensor:
        if view.past is None:
            return self.forward(x, tokens)
        heads = self.split_heads(x)
        if kernels := self.decode_kernels(x):
            y = self._recall_by(kernels, heads, past[0], view)
        elif x.shape[1] == 1 and x.device.type == "cpu" and not torch.compiler.is_compiling():
            y = self._recall_one(heads, past[0], view)
        else:
            y = self._recall_many(heads, tokens, past[0], view)
        return self.c_proj(y.flatten(2))

    def _recall_by(self, kernels: str, heads: Tensor, past: Tensor, view: View) -> Tensor:
        """(B, 1, H, D) of one new position a row, by our kernels."""
        positions = view.positions[:, 0]
        tables = view.once(
            "tables", lambda: kernel_tables(positions, self.window, past.shape[1], view.frequencies, kernels)
        )
        ring = 0 if self.window is None else self.window + 1
        positions = positions.expand(len(heads))
        y = decode_gaussian(heads[:, 0], past, self.bandwidth, positions, tables, ring, backend=kernels)
        return y[:, None]

    def _recall_one(self, heads: Tensor, past: Tensor, view: View) -> Tensor:
        """(B, 1, H, D) of one new position a row: all rows together if it is the same, else one by one."""
        plans = view.once("plans", lambda: self._plans(view))
        sizes = [len(heads)] if len(plans) == 1 else [1] * len(heads)
        parts = zip(plans, heads[:, 0].split(sizes), past.split(sizes))
        y = [attend_phased(new, old[:, : plan.slots], self.bandwidth, plan) for plan, new, old in parts]
        return torch.cat(y)[:, None].to(heads.dtype)

    def _plans(self, view: View) -> list[PhasePlan]:
        """One of each row, or of all rows if they agree. Padding gets an answer that nobody reads."""
        positions = view.positions[:, 0].clamp_min(0).tolist()
        return [PhasePlan.at(position, self.window, view.frequencies) for position in positions]

    def _recall_many(self, heads: Tensor, tokens: Tokens, past: Tensor, view: View) -> Tensor:
        """(B, T, H, D) by making keys and values of all that is remembered."""
        to_position, to_zero = view.once("past", lambda: self._past_rotary(view))
        q, k = self.similarity(heads, tokens.rotary), self.similarity(past, to_position)
        v = unrotate(past, to_zero).to(past.dtype)
        if view.mask is not None:
            return gaussian_attention_over(q, k, v, self.bandwidth, view.mask, equal_key_norms=True)
        scaled = (q.float() * self.bandwidth.float().square().reciprocal()[:, None]).to(q.dtype)
        return softmax_attention(scaled, k, v, scale=1.0, causal=False)

    def _past_rotary(self, view: View) -> tuple[Rotary, Rotary]:
        """Rotary tables from a phase on to the position, and of the phase."""
        positions = view.past.clamp_min(0)
        phase = phases(positions, self.window)
        return view.rotary(positions - phase), view.rotary(phase)
