"""The network of nanogka for the transformers library, with the three files next to it: see the model card.

Gaussian Kernel Attention (arXiv 2605.02144) has no query, key or value projection. The heads x_h of the normalized
activations are the values, z = norm(rope(x_h)) is query and key, and row i of the weights is softmax_j(z_i·z_j / σ²).
A decode cache therefore stores only x_h, half of what keys and values need.

Shapes: B rows, T new positions, C width, V tokens.
"""

import torch
import torch.nn.functional as F
from torch import nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.modeling_layers import GenericForSequenceClassification, GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils import can_return_tuple, logging

from .attention_nanogka import OLD_NAMES, Context, ValueEmbedding, as_layer_cache, norm, shift, vector
from .configuration_nanogka import NanogkaConfig
from .mixers_nanogka import MIXERS, check_attention

logger = logging.get_logger(__name__)
CACHE = "cache" if hasattr(BaseModelOutputWithPast, "cache") else "past_key_values"  # its name since transformers 5.24


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
    """Attributes that transformers expects of every model."""

    config_class, base_model_prefix = NanogkaConfig, "model"
    _input_embed_layer, _no_split_modules, _skip_keys_device_placement = "embedding", ["Block"], [CACHE]
    _supports_sdpa = _supports_attention_backend = supports_gradient_checkpointing = True

    @property
    def dtype(self):
        """The dtype of matrices and tables. σ and other vectors stay in float32."""
        return self.get_input_embeddings().weight.dtype

    def post_init(self):
        # The λ multiply the whole residual stream and σ all scores of a head: rounding them would change every output.
        others = (name for name, _ in self.named_parameters() if not name.endswith(".weight"))  # no matrices or tables
        self._keep_in_fp32_modules_strict = {name.split(".")[-1] for name in others}
        super().post_init()

    @classmethod
    def from_pretrained(cls, *args, **kwargs):
        """Load a folder, also one with `OLD_NAMES`."""
        return super().from_pretrained(*args, **{"key_mapping": OLD_NAMES} | kwargs)

    def resize_token_embeddings(self, *args, **kwargs):
        """Change the number of tokens of the embedding, the head and the value embeddings."""
        embedding = super().resize_token_embeddings(*args, **kwargs)
        for part in self.modules():
            if isinstance(part, ValueEmbedding) and part.table.num_embeddings != embedding.num_embeddings:
                part.resize(embedding.num_embeddings)
        return embedding


class NanogkaModel(NanogkaPreTrainedModel):
    """The network without its head."""

    def __init__(self, config):
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.num_hidden_layers))
        self.resid_lambdas = vector(config.num_hidden_layers, value=1.0)
        self.x0_lambdas = vector(config.num_hidden_layers, value=0.1)
        gated = config.smear == "gated"
        self.smear = vector(config.hidden_size) if config.smear is True else None
        self.smear_gate = nn.Linear(24, 1, bias=False) if gated else None
        self.smear_lambda = vector(1) if gated else None
        self.backout_lambda = vector(1, value=0.2) if config.backout else None
        check_attention(config, self.mixers)
        self.post_init()

    @property
    def mixers(self):
        """The token mixer of each layer."""
        return [block.mixer for block in self.blocks]

    @can_return_tuple
    def forward(self, input_ids=None, attention_mask=None, position_ids=None, past_key_values=None, inputs_embeds=None,
                use_cache=None, output_hidden_states=None, output_attentions=None, cache=None, **kwargs):  # fmt: skip
        past_key_values = cache if past_key_values is None else past_key_values
        needs_ids = any(mixer.value_embeddings is not None for mixer in self.mixers)
        if (input_ids is None) == (inputs_embeds is None) or (needs_ids and input_ids is None):
            raise ValueError(f"inputs: expected input_ids{'' if needs_ids else ' or inputs_embeds'}")
        check_attention(self.config, self.mixers)
        output_attentions = output_attentions or self.config.output_attentions
        if output_attentions and self.config._attn_implementation != "eager":
            logger.warning_once("output_attentions: only attn_implementation='eager' returns weights")
        use_cache = getattr(self.config, "use_cache", True) and not self.training if use_cache is None else use_cache
        wants_cache = past_key_values is not None or use_cache
        wants_cache = wants_cache and not (self.training and self.blocks[0].gradient_checkpointing)
        windows = [mixer.cache_window for mixer in self.mixers]
        cache = as_layer_cache(past_key_values, windows) if wants_cache else None
        embeddings = self.embedding(input_ids) if inputs_embeds is None else inputs_embeds
        context = Context(self.config, input_ids, embeddings, attention_mask, position_ids, cache)
        if context.packed:
            if past_key_values is not None or any(option["kind"] == "mixture" for option in self.config.mixers):
                raise ValueError("position_ids: got packed rows, expected one text per row (mixture layers, caches)")
            cache = None
        x = self.smeared(norm(embeddings), context, cache)
        x0, middle, states, attentions = x, x, [], []
        for layer, block in enumerate(self.blocks):
            if output_hidden_states or self.config.output_hidden_states:
                states.append(x)
            x = self.resid_lambdas[layer].to(x.dtype) * x + self.x0_lambdas[layer].to(x.dtype) * x0
            x, weights = block(x, context, None if cache is None else cache.layers[layer], **kwargs)
            middle = x if layer <= len(self.blocks) // 2 else middle
            if output_attentions:
                attentions.append(weights)
        for layer in cache.layers if cache is not None else ():
            layer.length += context.length
        x = norm(x if self.backout_lambda is None else x - self.backout_lambda.to(x.dtype) * middle)
        return BaseModelOutputWithPast(x, cache, (*states, x) if states else None, tuple(attentions) or None)

    def smeared(self, x, context, cache):
        """Normalized embeddings x (B, T, C), each with a share of the previous one if the network has a smear."""
        if not self.config.smear:
            return x
        history = x[:, None] if cache is None else cache.layers[0].with_history("embedding", x[:, None], 1)
        share = self.smear
        if self.smear_gate is not None:
            share = self.smear_lambda * self.smear_gate(x[..., :24]).sigmoid()
        return x + share.to(x.dtype) * shift(history, 1, context.new)[:, 0]


class NanogkaForCausalLM(NanogkaPreTrainedModel, GenerationMixin):
    """The network with its head, which returns soft-capped logits in float32."""

    def __init__(self, config):
        super().__init__(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)  # first: its dtype is saved
        self.model = NanogkaModel(config)
        self.post_init()

    def init_continuous_batching(self, *args, **kwargs):
        """Refuse: the paged cache of transformers holds keys and values, and this model computes keys again."""
        raise ValueError("generate_batch: expected generate(), or vLLM for continuous batching (see nanogka's docs)")

    @can_return_tuple
    def forward(self, input_ids=None, attention_mask=None, position_ids=None, past_key_values=None, inputs_embeds=None,
                labels=None, use_cache=None, logits_to_keep=0, cache=None, **kwargs):  # fmt: skip
        past_key_values = cache if past_key_values is None else past_key_values
        outputs = self.model(input_ids, attention_mask, position_ids, past_key_values, inputs_embeds, use_cache,
                             **kwargs, return_dict=True)  # fmt: skip
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        # In float32: bfloat16 has three digits, and logits that differ by less would tie.
        cap = self.config.final_logit_softcapping
        logits = cap * torch.tanh(self.lm_head(outputs.last_hidden_state[:, kept]).float() / cap)
        loss = None
        if labels is not None:
            if attention_mask is not None:  # padding sees the whole row, so nothing may be predicted from it
                unseen = F.pad(attention_mask[:, -labels.shape[1] : -1] == 0, (1, 0))
                labels = labels.masked_fill(unseen.to(labels.device), -100)
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        rest = (getattr(outputs, CACHE), outputs.hidden_states, outputs.attentions)
        return CausalLMOutputWithPast(loss, logits, *rest)


class NanogkaForSequenceClassification(GenericForSequenceClassification, NanogkaPreTrainedModel):
    """The network with a linear classifier of the last token that is not padding."""

    accepts_loss_kwargs = False  # the library's loss ignores `num_items_in_batch`, and Trainer must divide instead

    def __init__(self, config):
        NanogkaPreTrainedModel.__init__(self, config)  # the library's would look the network up by its configuration
        self.num_labels, self.model = config.num_labels, NanogkaModel(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels, bias=False)
        self.post_init()
