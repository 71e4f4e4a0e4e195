"""The projection-free mixer that this project recommends: GKA that answers with what followed (docs/research/study.md).

Kernel regression, read as a predictor, answers with what *followed* a similar case. The paper's mixer returns the
similar case itself, mainly the present position, which resembles itself most. This mixer differs from `gaussian.py` in:

    q_i = norm(rope(a ∘ x_h,i + b))                 scales and biases per channel, a and b of queries, c and d of keys:
    k_j = norm(rope(c ∘ x_h,j−1 + d)),  k_0 from 0  a channel can be left out of the search, and rotary turns b and d
                                                    with the position, so that a logit depends on the distance too
    v_j = x_h,j + gate_h,j · E[token_j]             the baseline's value embeddings, on alternate layers

Successor keys are a key shift (KV shifting attention, arXiv 2411.19574) with fixed weights: the key of position j is
computed from the position before it, and its value stays j's. So the head looks for positions whose predecessor
resembles the present one, and reads what came next: induction without a second layer. The network adds a smear of the
embeddings. None of these is a projection.
"""

from torch import Tensor

from nanogka.attention.rotary import rotary_norm
from nanogka.model.config import GPTConfig
from nanogka.model.kv_cache import LayerCache
from nanogka.model.layers import (
    AttentionInputs,
    BandwidthMixer,
    ChannelAffine,
    Initializer,
    TokenContext,
    ValueEmbedding,
    shift_with_history,
)
from nanogka.model.spec import Option


class SuccessorMixer(BandwidthMixer):
    """Gaussian Kernel Attention with successor keys, scales and biases of queries and keys, and value embeddings."""

    name, letter = "successor", "S"
    label, color = "successor", "#009E73"
    tokens_per_parameter = 8.25  # as GKA
    saved_activations = 15.2
    exported = "gaussian"
    has_smear = True
    options = {
        "successor_keys": Option(True, "compute the key of a position from the position before it"),
        "qk_affine": Option(True, "scale and bias queries and keys per channel"),
        "value_embeddings": Option(True, "add a second embedding to the values of alternate layers"),
    }

    def __init__(self, config: GPTConfig, layer: int) -> None:
        super().__init__(config, layer)
        self.successor_keys = self.option("successor_keys")
        self.affine_q, self.affine_k = (ChannelAffine(config) if self.option("qk_affine") else None for _ in "qk")
        self.value_embedding = ValueEmbedding.of_layer(config, layer, self.option("value_embeddings"))

    def init_weights(self, init: Initializer) -> None:
        super().init_weights(init)
        for affine in (self.affine_q, self.affine_k):
            if affine is not None:
                affine.init_weights()
        if self.value_embedding is not None:
            self.value_embedding.init_weights(init)

    def state_bytes(self, element_bytes: int) -> int:
        return self.config.n_embd * element_bytes if self.successor_keys else 0  # the last position's features as a key

    def exported_options(self) -> dict[str, object]:
        return super().exported_options() | {"value_embeddings": self.value_embedding is not None}

    def attention_inputs(self, x: Tensor, context: TokenContext, cache: LayerCache | None = None) -> AttentionInputs:
        v = heads = self.split_heads(x)
        if self.affine_q is None or self.affine_k is None:
            q = k = rotary_norm(heads, context.cos_sin)
        else:
            q, k = (rotary_norm(affine(heads), context.cos_sin) for affine in (self.affine_q, self.affine_k))
        # Shifted after the rotation: the key of j carries the position j − 1 of its features, so that the distance in a
        # logit is that between the compared features. Nothing comes before position 0: it keeps its own key.
        if self.successor_keys:
            k = shift_with_history(k, context, cache, "key", initial=k[:, :1])
        if self.value_embedding is not None:
            v = heads + self.value_embedding(context.ids, heads.flatten(2))
        return AttentionInputs(q, k, v, self.bandwidth, window=self.window)
