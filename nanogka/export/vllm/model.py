"""The network in vLLM: what `remote_code/modeling_nanogka.py` computes, for the tokens of all requests at once.

Shapes: N tokens of all requests, C width, V vocabulary.
"""

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import VllmConfig
from vllm.model_executor.layers.linear import ColumnParallelLinear, RowParallelLinear
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

from nanogka.export.remote_code.attention_nanogka import OLD_NAMES, norm, vector
from nanogka.export.vllm.layers import MIXERS, Fetch, Tokens


class MLP(nn.Module):
    """C → 4C → C with ReLU²."""

    def __init__(self, C: int, prefix: str) -> None:
        super().__init__()
        self.c_fc = ColumnParallelLinear(C, 4 * C, bias=False, prefix=f"{prefix}.c_fc")
        self.c_proj = RowParallelLinear(4 * C, C, bias=False, prefix=f"{prefix}.c_proj")

    def forward(self, x: Tensor) -> Tensor:
        """(N, C) to (N, C)."""
        return self.c_proj(F.relu(self.c_fc(x)[0]).square())[0]


class Block(nn.Module):
    """A token mixer and an MLP, both on the normalized residual stream."""

    def __init__(self, vllm_config: VllmConfig, layer: int, prefix: str) -> None:
        super().__init__()
        config = vllm_config.model_config.hf_config
        kind = config.mixers[layer]["kind"]
        if kind not in MIXERS:
            served = "gaussian, successor, dot_product and value_less"
            raise ValueError(f"layer {layer}: got the mixer {kind}, expected one that vLLM serves: {served}")
        self.mixer = MIXERS[kind](vllm_config, layer, f"{prefix}.mixer")
        self.mlp = MLP(config.hidden_size, f"{prefix}.mlp")

    def forward(self, x: Tensor, tokens: Tokens) -> Tensor:
        """(N, C) to (N, C)."""
        x = x + self.mixer(norm(x), tokens)
        return x + self.mlp(norm(x))


@support_torch_compile
class NanogkaModel(nn.Module):
    """The network without its head."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        self.config = config = vllm_config.model_config.hf_config
        layers = range(config.num_hidden_layers)
        self.embedding = VocabParallelEmbedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList(Block(vllm_config, layer, f"{prefix}.blocks.{layer}") for layer in layers)
        self.resid_lambdas, self.x0_lambdas = vector(len(layers)), vector(len(layers))
        gated = config.smear == "gated"
        self.smear = vector(config.hidden_size) if config.smear is True else None
        self.smear_gate = nn.Linear(24, 1, bias=False) if gated else None
        self.smear_lambda = vector(1) if gated else None
        self.backout_lambda = vector(1) if config.backout else None
        # Every rank fetches whole embeddings. The name needs the number of a layer, by which vLLM groups its caches.
        shape = (config.num_attention_heads, config.head_dim)
        self.fetch = Fetch(1, *shape, vllm_config, f"{prefix}.blocks.0.smear") if config.smear else None
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        frequencies = torch.exp(exponents * -math.log(config.rotary_base))
        self.register_buffer("frequencies", frequencies, persistent=False)

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """(N, C): the tables' rows of tokens (N,)."""
        return self.embedding(input_ids)

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: None = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """(N, C): the normalized end of the residual stream, for tokens and positions (N,).

        vLLM compiles this method. The annotations tell it which sizes vary, so they must stay.
        """
        angles = positions.float()[:, None, None] * self.frequencies
        tokens = Tokens(input_ids, positions, angles.cos(), angles.sin())
        x = norm(self.embedding(input_ids) if inputs_embeds is None else inputs_embeds)
        x = x0 = middle = x if self.fetch is None else self.smeared(x, positions)
        resid_lambdas, x0_lambdas = self.resid_lambdas.to(x.dtype), self.x0_lambdas.to(x.dtype)
        for layer, block in enumerate(self.blocks):
            x = block(resid_lambdas[layer] * x + x0_lambdas[layer] * x0, tokens)
            middle = x if layer <= len(self.blocks) // 2 else middle
        return norm(x if self.backout_lambda is None else x - self.backout_lambda.to(x.dtype) * middle)

    def smeared(self, x: Tensor, positions: Tensor) -> Tensor:
        """Normalized embeddings x (N, C), each with a share of the previous one."""
        heads = x.unflatten(1, (self.config.num_attention_heads, -1))
        before = self.fetch(heads, positions)[:, :, 0].flatten(1) * (positions > 0)[:, None]
        share = self.smear
        if self.smear_gate is not None:
            share = self.smear_lambda * self.smear_gate(x[:, :24]).sigmoid()
        return x + share.to(x.dtype) * before


class NanogkaForCausalLM(nn.Module):
    """The network with its head."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        if vllm_config.quant_config is not None:
            raise ValueError("quantization: got a quantized model, expected none")
        self.config = config = vllm_config.model_config.hf_config
        self.model = NanogkaModel(vllm_config=vllm_config, prefix=f"{prefix}.model".strip("."))
        head = f"{prefix}.lm_head".strip(".")
        self.lm_head = ParallelLMHead(config.vocab_size, config.hidden_size, prefix=head)
        self.logits_processor = LogitsProcessor(config.vocab_size)

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """(N, C): the table's rows of tokens (N,)."""
        return self.model.embed_input_ids(input_ids)

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None) -> Tensor:
        """(N, C): what `compute_logits` reads."""
        return self.model(input_ids, positions, intermediate_tensors, inputs_embeds)

    def compute_logits(self, hidden_states: Tensor) -> Tensor | None:
        """(N, V) float32, soft-capped in float32; None on a rank that does not sample."""
        logits = self.logits_processor(self.lm_head, hidden_states)
        cap = self.config.final_logit_softcapping
        return None if logits is None else cap * torch.tanh(logits.float() / cap)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        """Load an exported `model.safetensors`. Returns the loaded names: vLLM checks that no parameter is missing."""
        parameters, loaded = dict(self.named_parameters()), set()
        for name, weight in weights:
            for old, new in OLD_NAMES.items():
                name = name.replace(old, new)
            if name not in parameters:
                changes = "fewer layers through hf_overrides, or a runner other than generate"
                raise ValueError(f"model.safetensors: {name} has no place in this model ({changes})")
            loader = getattr(parameters[name], "weight_loader", default_weight_loader)
            loader(parameters[name], weight)
            loaded.add(name)
        return loaded
