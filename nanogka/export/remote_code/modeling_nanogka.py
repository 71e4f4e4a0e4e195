"""The network of nanogka for the library transformers, with the two files beside it: see the model card.

Gaussian Kernel Attention (arXiv 2605.02144) has no query, key or value projection. The heads x_h of the normalized
activations are the values, z = norm(rope(x_h)) is query and key, and row i of the weights is softmax_j(z_i·z_j / σ²).
A decode cache therefore keeps x_h alone, half of what keys and values take.

Shapes: B rows, T new positions, S positions with those of the cache, H heads, D features per head, C = H · D, V tokens.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import can_return_tuple

from .attention_nanogka import (
    OWN_MASKS,
    ChannelAffine,
    Context,
    ShortConvolution,
    ValueEmbedding,
    before,
    eager_attention,
    norm,
    own_cache,
)
from .configuration_nanogka import NanogkaConfig

FLOOR = 1e-6  # of every key's responsibilities in mixture attention: a query that no key answers sees all alike


class Mixer(nn.Module):
    """Base of the token mixers: moves information between positions. `option` holds the layer's options."""

    is_causal = True
    lookback = 0  # positions before the window that later ones need
    needs_own_cache = False  # whether an attention function with a cache of its own (vLLM's) would see too little

    def __init__(self, config, layer_idx):
        super().__init__()
        self.config, self.layer_idx, self.option = config, layer_idx, config.mixers[layer_idx]
        self.n_head, self.window, C = config.num_attention_heads, self.option["window"], config.hidden_size
        self.c_proj = nn.Linear(C, C, bias=False)
        self.value_embedding = ValueEmbedding(config) if self.option.get("value_embeddings") else None
        self.affine_q, self.affine_k = (ChannelAffine(config) if self.option.get("qk_affine") else None for _ in "qk")

    @property
    def keep(self):
        """Positions before the next one that a cache keeps, None for all."""
        return None if self.window is None else self.window + self.lookback

    def heads(self, x):
        """(B, T, …) as (B, H, T, …)."""
        return x.unflatten(-1, (self.n_head, -1)).transpose(1, 2)

    def attend(self, q, k, v, context, scaling, **kwargs):
        """(B, T, C) and perhaps the weights: attention of q (B, H, T, D) over k and v (B, H, S, D), projected."""
        name = self.config._attn_implementation
        attention = eager_attention if name == "eager" else ALL_ATTENTION_FUNCTIONS[name]
        y, weights = attention(self, q, k, v, context.mask(k.shape[-2], self.window), scaling=scaling, **kwargs)
        return self.c_proj(y.reshape(len(q), context.length, -1)), weights


class GaussianMixer(Mixer):
    """Gaussian Kernel Attention: nanogka's mixers `gaussian` and, with the options, `successor`."""

    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        self.log_bandwidth = nn.Parameter(torch.full((self.n_head,), math.log(config.head_dim) / 4))  # of σ
        self.successor = self.needs_own_cache = bool(self.option.get("successor_keys"))
        self.lookback = int(self.successor)

    def forward(self, x, context, cache, **kwargs):
        heads = past = self.heads(x)
        ids = heads[..., :0] if self.value_embedding is None else context.ids[:, None, :, None].int()
        if cache is not None:
            past, ids = cache.update(heads, ids)
        positions = context.positions[:, -past.shape[-2] :]
        q = context.features(heads if self.affine_q is None else self.affine_q(heads))
        k = context.features(past if self.affine_k is None else self.affine_k(past))
        q = (q.float() / torch.exp(2 * self.log_bandwidth.float())[:, None, None]).to(x.dtype)  # z / σ²
        if self.successor:  # positions are found by what stood before them: values answer what followed
            k = torch.where((positions == 0)[:, None, :, None], k, before(k, 1, positions))
        v = past if self.value_embedding is None else past + self.value_embedding(ids[:, 0, :, 0], past)
        return self.attend(q, k, v, context, 1.0, **kwargs)


class SoftmaxMixer(Mixer):
    """softmax(q·k / √D) attention: nanogka's baseline `dot_product`, and `value_less`, which has no W_V."""

    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        self.c_q, self.c_k, self.c_v = (nn.Linear(config.hidden_size, config.hidden_size, bias=False) for _ in "qkv")
        if not self.option["value_matrix"]:
            self.c_v = None
        width = self.option["short_conv"]
        convolutions = (ShortConvolution(width, config.hidden_size) if width else None for _ in "qkv")
        self.conv_q, self.conv_k, self.conv_v = convolutions
        self.needs_own_cache = width > 1

    def projected(self, x, matrix, convolution, name, context, cache):
        y = self.heads(x if matrix is None else matrix(x))
        if convolution is None:
            return y
        return convolution(y if cache is None else cache.preceded(name, y, len(convolution.weight) - 1), context.new)

    def forward(self, x, context, cache, **kwargs):
        q = self.projected(x, self.c_q, self.conv_q, "query", context, cache)
        k = self.projected(x, self.c_k, self.conv_k, "key", context, cache)
        if self.affine_q is not None:
            q, k = self.affine_q(q), self.affine_k(k)
        q, k = context.features(q), context.features(k)
        v = self.projected(x, self.c_v, self.conv_v, "value", context, cache)
        if self.value_embedding is not None:
            v = v + self.value_embedding(context.ids, self.heads(x))
        if cache is not None:
            k, v = cache.update(k, v)
        return self.attend(q, k, v, context, self.config.qk_scale**2 * self.config.head_dim**-0.5, **kwargs)


class MixtureMixer(Mixer):
    """Gaussian Mixture Attention (arXiv 2606.18283): positions write into K slots and read from them."""

    needs_own_cache = True

    def __init__(self, config, layer_idx):
        super().__init__(config, layer_idx)
        K, self.routing, d = (self.option[f"mixture_{name}"] for name in ("components", "routing", "routing_dim"))
        self.means, self.log_precisions = (nn.Parameter(torch.zeros(self.n_head, K, d)) for _ in range(2))
        self.log_weights = nn.Parameter(torch.zeros(self.n_head, K))
        if self.routing == "projected":
            sizes = (self.n_head * d, self.n_head * d, config.hidden_size)
            self.c_q, self.c_k, self.c_v = (nn.Linear(config.hidden_size, size, bias=False) for size in sizes)

    def responsibilities(self, x):
        """(B, H, T, K): the posterior of the components of x (B, H, T, d), float32."""
        x, means, precisions = x.float(), self.means.float(), self.log_precisions.float().exp()
        slopes = torch.cat([-precisions / 2, precisions * means], -1)  # of x² and x
        constants = (self.log_precisions.float() - precisions * means.square()).sum(-1) / 2 + self.log_weights.float()
        return (torch.cat([x.square(), x], -1) @ slopes.mT + constants[:, None]).softmax(-1)

    def forward(self, x, context, cache, **kwargs):
        if self.routing == "projected":
            q, k, v = norm(self.heads(self.c_q(x))), norm(self.heads(self.c_k(x))), self.heads(self.c_v(x))
        else:
            v = self.heads(x)
            q = k = norm(v[..., : self.means.shape[-1]])
        if self.routing == "successor":
            k = before(k if cache is None else cache.preceded("before", k, 1), 1, context.new)
        read = self.responsibilities(q)
        written = (self.responsibilities(k) + FLOOR) * (context.new >= 0)[:, None, :, None]
        values = F.pad(v.float(), (0, 1), value=1.0)  # the last column counts
        memory = values.new_zeros(*self.log_weights.shape, values.shape[-1])  # (H, K, D + 1)
        if cache is not None:
            memory = cache.states.get("memory", memory)
        sums = []
        for r, w, u in zip(*(t.split(max(64, min(read.shape[-1], 256)), dim=-2) for t in (read, written, values))):
            sums.append((r @ w.mT).tril() @ u + r @ memory)
            memory = memory + w.mT @ u
        if cache is not None:
            cache.states["memory"] = memory
        sums = torch.cat(sums, -2)
        y = (sums[..., :-1] / sums[..., -1:].clamp_min(torch.finfo(torch.float32).tiny)).to(x.dtype)
        return self.c_proj(y.transpose(1, 2).flatten(2)), None


MIXERS = {"gaussian": GaussianMixer, "softmax": SoftmaxMixer, "mixture": MixtureMixer}


class MLP(nn.Module):
    """C → 4C → C with ReLU²."""

    def __init__(self, config):
        super().__init__()
        self.c_fc = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.c_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x):
        return self.c_proj(F.relu(self.c_fc(x)).square())


class Block(GradientCheckpointingLayer):
    """A token mixer and an MLP, both on the normalized residual stream."""

    def __init__(self, config, layer_idx):
        super().__init__()
        self.mixer, self.mlp = MIXERS[config.mixers[layer_idx]["kind"]](config, layer_idx), MLP(config)

    def forward(self, x, context, cache, **kwargs):
        y, weights = self.mixer(norm(x), context, cache, **kwargs)
        x = x + y
        return x + self.mlp(norm(x)), weights


class NanogkaPreTrainedModel(PreTrainedModel):
    """Attributes that transformers asks of both models."""

    config_class, base_model_prefix = NanogkaConfig, "model"
    _input_embed_layer, _no_split_modules, _skip_keys_device_placement = "embedding", ["Block"], ["past_key_values"]
    _supports_sdpa = _supports_attention_backend = supports_gradient_checkpointing = True

    @property
    def dtype(self):
        """That of matrices and tables; σ and other vectors stay in float32."""
        return self.get_input_embeddings().weight.dtype

    def post_init(self):
        others = (name for name, _ in self.named_parameters() if not name.endswith(".weight"))  # no matrices or tables
        self._keep_in_fp32_modules_strict = {name.split(".")[-1] for name in others}
        super().post_init()


class NanogkaModel(NanogkaPreTrainedModel):
    """The network without its head."""

    def __init__(self, config):
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.resid_lambdas = nn.Parameter(torch.ones(config.num_hidden_layers))
        self.x0_lambdas = nn.Parameter(torch.full((config.num_hidden_layers,), 0.1))
        self.smear = nn.Parameter(torch.zeros(config.hidden_size)) if config.smear is True else None
        self.smear_gate = nn.Linear(24, 1, bias=False) if config.smear == "gated" else None
        self.smear_lambda = nn.Parameter(torch.zeros(1)) if config.smear == "gated" else None
        self.backout_lambda = nn.Parameter(torch.full((1,), 0.2)) if config.backout else None
        self.post_init()

    @can_return_tuple
    def forward(self, input_ids=None, attention_mask=None, position_ids=None, past_key_values=None, inputs_embeds=None,
                use_cache=None, output_hidden_states=None, output_attentions=None, **kwargs):  # fmt: skip
        mixers, name = [block.mixer for block in self.blocks], self.config._attn_implementation
        needs_ids = any(mixer.value_embedding is not None for mixer in mixers)
        if (input_ids is None) == (inputs_embeds is None) or (needs_ids and input_ids is None):
            raise ValueError(f"Takes input_ids{'' if needs_ids else ' or inputs_embeds'}")
        if name not in OWN_MASKS and (self.config.smear or any(mixer.needs_own_cache for mixer in mixers)):
            raise ValueError(f"attn_implementation: got {name}, expected {' or '.join(OWN_MASKS)}")
        use_cache = getattr(self.config, "use_cache", True) and not self.training if use_cache is None else use_cache
        wants_cache = past_key_values is not None or use_cache
        wants_cache = wants_cache and not (self.training and self.blocks[0].gradient_checkpointing)
        cache = own_cache(past_key_values, [mixer.keep for mixer in mixers]) if wants_cache else None
        embeddings = self.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        context = Context(self.config, input_ids, embeddings, attention_mask, position_ids, cache)
        if context.packed:
            if past_key_values is not None or any(option["kind"] == "mixture" for option in self.config.mixers):
                raise ValueError("position_ids: got packed rows, expected one text per row (mixture layers, caches)")
            cache = None
        x = norm(embeddings)
        if self.config.smear:
            joined = x[:, None] if cache is None else cache.layers[0].preceded("embedding", x[:, None], 1)
            gate = self.smear_gate
            share = self.smear if gate is None else self.smear_lambda * gate(x[..., :24]).sigmoid()
            x = x + share.to(x.dtype) * before(joined, 1, context.new)[:, 0]
        x0, middle, states, attentions = x, x, [], []
        for layer, block in enumerate(self.blocks):
            if output_hidden_states or self.config.output_hidden_states:
                states.append(x)
            x = self.resid_lambdas[layer].to(x.dtype) * x + self.x0_lambdas[layer].to(x.dtype) * x0
            x, weights = block(x, context, None if cache is None else cache.layers[layer], **kwargs)
            middle = x if layer <= len(self.blocks) // 2 else middle
            if output_attentions or self.config.output_attentions:
                attentions.append(weights)
        for layer in cache.layers if cache is not None else ():
            layer.length += context.length
        x = norm(x if self.backout_lambda is None else x - self.backout_lambda.to(x.dtype) * middle)
        return BaseModelOutputWithPast(x, cache, (*states, x) if states else None, tuple(attentions) or None)


class NanogkaForCausalLM(NanogkaPreTrainedModel, GenerationMixin):
    """The network with its head: softly capped logits in float32."""

    def __init__(self, config):
        super().__init__(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)  # first: its dtype is saved
        self.model = NanogkaModel(config)
        self.post_init()

    @can_return_tuple
    def forward(self, input_ids=None, attention_mask=None, position_ids=None, past_key_values=None, inputs_embeds=None,
                labels=None, use_cache=None, logits_to_keep=0, **kwargs):  # fmt: skip
        outputs = self.model(input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache,
                             **kwargs, return_dict=True)  # fmt: skip
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        cap = self.config.final_logit_softcapping
        logits = cap * torch.tanh(self.lm_head(outputs.last_hidden_state[:, kept]).float() / cap)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        rest = (outputs.past_key_values, outputs.hidden_states, outputs.attentions)
        return CausalLMOutputWithPast(loss, logits, *rest)
