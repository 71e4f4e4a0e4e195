"""Attention with projections: nanochat's causal self-attention, the baseline, with value embeddings on alternate
layers; and the paper's value-less transformer (VLT), between the baseline and GKA."""

from dataclasses import replace

import torch
from torch import Tensor, nn

from nanogka.attention.rotary import rotary_norm
from nanogka.model.config import GPTConfig
from nanogka.model.kv_cache import LayerCache
from nanogka.model.layers import (
    BANDWIDTH,
    AttentionInputs,
    ChannelAffine,
    Initializer,
    Linear,
    Mixer,
    ParameterGroup,
    ShortConvolution,
    TokenContext,
    ValueEmbedding,
    shift_with_history,
)
from nanogka.model.spec import Option


class DotProductMixer(Mixer):
    """softmax(q·k / √D) attention with learned W_Q, W_K, W_V, W_O; rotary, then RMS norm, on q and k (July: × 1.2).

    Options: convolutions after W_Q, W_K and W_V, then scales and biases per channel of q and k; a learned temperature
    per head; and successor keys. All but successor keys start as the identity. With the options that `successor` has
    (scales, biases, temperature, successor keys), the two mixers differ in the projections alone.
    """

    name, letter = "dot_product", "D"
    label, color = "baseline (dot product)", "#D55E00"
    saved_activations = 15.8
    exported = "softmax"
    options = {
        "value_embeddings": Option(True, "add a second embedding to the values of alternate layers"),  # nanochat's
        "qk_affine": Option(False, "scale and bias queries and keys per channel"),
        "short_conv": Option(0, "width of depthwise causal convolutions of q, k and v; 0: none", ge=0, le=64),
        "successor_keys": Option(False, "compute the key of a position from the position before it"),
        "learned_temperature": Option(False, "learn the temperature τ of softmax(q·k / τ) per head"),
    }
    value_matrix = True  # W_V, which the value-less mixer does without

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.c_q, self.c_k, self.c_v, self.c_proj = (Linear(config.n_embd, config.n_embd) for _ in range(4))
        if not self.value_matrix:
            self.c_v = None
        self.value_embedding = ValueEmbedding.of_layer(config, layer, self.option("value_embeddings"))
        # Products of D random numbers have standard deviation √D: divided by it, the logits start near N(0, 1).
        self.scale = config.snapshot.qk_scale**2 * self.head_dim**-0.5
        self.affine_q, self.affine_k = (ChannelAffine(config) if self.option("qk_affine") else None for _ in "qk")
        width = self.option("short_conv")
        self.conv_q, self.conv_k, self.conv_v = (ShortConvolution(config, width) if width else None for _ in "qkv")
        self.successor_keys = self.option("successor_keys")
        # As in `BandwidthMixer`: τ = σ², and the optimizer sees log σ.
        self.log_bandwidth = nn.Parameter(torch.empty(config.n_head)) if self.option("learned_temperature") else None

    def init_weights(self, init: Initializer) -> None:
        bound = (3 / self.config.n_embd) ** 0.5  # standard deviation 1 / √C
        for matrix in (self.c_q, self.c_k, self.c_v):
            if matrix is not None:
                init.uniform(matrix.weight, bound)
        self.c_proj.weight.zero_()
        if self.value_embedding is not None:
            self.value_embedding.init_weights(init)
        for part in (*self.convolutions, self.affine_q, self.affine_k):
            if part is not None:
                part.init_weights()
        if self.log_bandwidth is not None:
            self.log_bandwidth.fill_(self.scale**-0.5).log_()

    def parameter_group(self, name: str, parameter: Tensor) -> ParameterGroup:
        return BANDWIDTH if name == "log_bandwidth" else super().parameter_group(name, parameter)

    @property
    def bandwidth(self) -> Tensor | None:
        return None if self.log_bandwidth is None else self.log_bandwidth.exp()

    @property
    def convolutions(self) -> list[ShortConvolution]:
        """The convolutions that this layer has."""
        return [c for c in (self.conv_q, self.conv_k, self.conv_v) if c is not None]

    def flops_per_token(self) -> int:
        return super().flops_per_token() + 6 * sum(c.weight.numel() for c in self.convolutions)

    def state_bytes(self, element_bytes: int) -> int:
        inputs = sum(c.weight.numel() - self.config.n_embd for c in self.convolutions)  # width − 1 positions of each
        inputs += self.config.n_embd if self.successor_keys else 0  # the last position's key
        return inputs * element_bytes

    def exported_options(self) -> dict[str, object]:
        own = {"value_embeddings": self.value_embedding is not None, "value_matrix": self.value_matrix}
        return super().exported_options() | own

    def attention_inputs(self, x: Tensor, context: TokenContext, cache: LayerCache | None = None) -> AttentionInputs:
        def projected(matrix: Linear | None, convolution: ShortConvolution | None, name: str) -> Tensor:
            y = self.split_heads(x if matrix is None else matrix(x))
            return y if convolution is None else convolution(y, context, cache, name)

        q, k = projected(self.c_q, self.conv_q, "query"), projected(self.c_k, self.conv_k, "key")
        if self.affine_q is not None and self.affine_k is not None:
            q, k = self.affine_q(q), self.affine_k(k)
        # The norm bounds q·k by D, whatever the matrices: no head can become so sharp that it stops learning.
        q, k = rotary_norm(q, context.cos_sin), rotary_norm(k, context.cos_sin)
        if self.successor_keys:  # after the rotation, as in `successor`
            k = shift_with_history(k, context, cache, "successor key", initial=k[:, :1])
        v = projected(self.c_v, self.conv_v, "value")
        if self.value_embedding is not None:
            v = v + self.value_embedding(context.ids, x)
        if self.log_bandwidth is not None:
            return AttentionInputs(q, k, v, self.bandwidth, window=self.window)
        return AttentionInputs(q, k, v, scale=self.scale, window=self.window)


class ValueLessMixer(DotProductMixer):
    """The baseline without W_V and value embeddings: its values are the heads of the activations themselves."""

    name, letter = "value_less", "V"
    label, color = "value-less (VLT)", "#999933"
    saved_activations = 14.3
    exported = "softmax"
    value_matrix = False
    options = DotProductMixer.options | {
        "value_embeddings": replace(DotProductMixer.options["value_embeddings"], default=False)
    }
