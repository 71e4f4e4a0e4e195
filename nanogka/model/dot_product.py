"""The baseline: nanochat's causal self-attention of February 2026, with value embeddings on alternate layers."""

import torch
from torch import Tensor

from nanogka.attention import decode_softmax, rotate_heads, softmax_attention, softmax_attention_over
from nanogka.model.config import GPTConfig
from nanogka.model.layers import Embedding, Linear, norm, rotate
from nanogka.model.mixer import Mixer, Tokens, View

GATE_FEATURES = 32  # how many of the activations decide how much of the value embedding is let in


class DotProductMixer(Mixer):
    """softmax(q·k / √D) attention with learned W_Q, W_K, W_V, W_O; rotary, then RMS norm, on q and k.

    Layer i with i ≡ L − 1 (mod 2) adds a V × C table's row of its token to v, through a gate a head
    2 · sigmoid(W_g x[:32]).
    """

    remembered = 2  # k and v

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.c_q, self.c_k, self.c_v, self.c_proj = (Linear(config.n_embd, config.n_embd) for _ in range(4))
        self.scale = config.head_dim**-0.5
        self.value_embedding = None
        if layer % 2 == (config.n_layer - 1) % 2:
            self.value_embedding = Embedding(config.vocab_size, config.n_embd)
            self.value_gate = Linear(GATE_FEATURES, config.n_head)

    def _query(self, x: Tensor, tokens: Tokens) -> Tensor:
        return self._similarity(self.c_q(x), tokens)

    def _similarity(self, projected: Tensor, tokens: Tokens) -> Tensor:
        """(B, T, H, D) rotated and normalised heads of (B, T, C)."""
        heads = self.split_heads(projected)
        if kernels := self.decode_kernels(projected):
            cos, sin = (table.flatten(0, -2) for table in tokens.rotary)
            return rotate_heads(heads[:, 0], cos, sin, normed=True, backend=kernels)[:, None]
        return norm(rotate(heads, tokens.rotary)).to(projected.dtype)

    def _keys_and_values(self, x: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        k = self._similarity(self.c_k(x), tokens)
        v = self.split_heads(self.c_v(x))
        if self.value_embedding is not None:
            embedded = self.split_heads(self.value_embedding(tokens.ids).to(x.dtype))
            gate = 2 * torch.sigmoid(self.value_gate(x[..., :GATE_FEATURES]))
            v = v + gate[..., None] * embedded
        return k, v

    def forward(self, x: Tensor, tokens: Tokens) -> Tensor:
        k, v = self._keys_and_values(x, tokens)
        y = softmax_attention(self._query(x, tokens), k, v, scale=self.scale, window=self.window)
        return self.c_proj(y.flatten(2))

    def remember(self, x: Tensor, tokens: Tokens, view: View) -> tuple[Tensor, ...]:
        return self._keys_and_values(x, tokens)

    def recall(self, x: Tensor, tokens: Tokens, past: tuple[Tensor, ...], view: View) -> Tensor:
        q = self._query(x, tokens)
        if view.past is not None and (kernels := self.decode_kernels(x)):
            positions = view.positions[:, 0].expand(len(q))
            y = decode_softmax(q[:, 0], *past, positions, self.scale, backend=kernels)[:, None]
        elif view.mask is None:
            y = softmax_attention(q, *past, scale=self.scale, causal=x.shape[1] > 1, window=self.window)
        else:
            y = softmax_attention_over(q, *past, view.mask, scale=self.scale)
        return self.c_proj(y.flatten(2))
