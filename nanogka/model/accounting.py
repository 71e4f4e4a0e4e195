"""Costs of a model: parameters, FLOPs, cache bytes. They are counted on a model on the meta device.

`measure` compares what mixers declare with what a small model of the same kind does.
"""

from dataclasses import dataclass

import torch

from nanogka.model.config import GPTConfig
from nanogka.model.gpt import GPT
from nanogka.model.layers import MATRIX, UNEMBEDDING


@dataclass(frozen=True)
class ModelCosts:
    """Costs of one configuration."""

    config: GPTConfig
    parameters: dict[str, int]  # by group, the largest first
    flops_per_token: int  # of training (forward and backward), see `model_costs`
    cache_bytes_per_token: int  # bytes that each token adds to a decode cache until a window is full
    scaling_parameters: int  # matrix and lm_head parameters; the training horizon is a multiple of them

    @property
    def total_parameters(self) -> int:
        """All parameters."""
        return sum(self.parameters.values())

    def cache_bytes(self, context: int, element_bytes: int = 2) -> int:
        """Bytes of a decode cache that holds one row of `context` tokens (`KVCache.bytes`)."""
        with torch.device("meta"):
            mixers = [block.mixer for block in GPT(self.config).blocks]
        last_embedding = self.config.n_embd * element_bytes if self.config.has_smear else 0
        return last_embedding + sum(mixer.cache_bytes(context, element_bytes) for mixer in mixers)


def model_costs(config: GPTConfig, element_bytes: int = 2) -> ModelCosts:
    """Count parameters, FLOPs and cache bytes of a configuration, without allocating its weights.

    FLOPs per token = 6 × (parameters that multiply a token: everything but tables and vectors) + what each mixer adds
    to its matrices, for attention 12 · H · D · min(window, T): the paper's Table 8.
    """
    # Where 6 comes from: a weight is one multiplication and one addition per token in the forward pass, and the same
    # twice in the backward pass, for the gradient of its input and for its own. Attention has two products, q·k and
    # A·v, of H · D multiply-adds per pair of positions: 2 products · 2 FLOPs · 3 = 12. As in the paper and in nanochat,
    # the pairs that the causal mask hides count.
    with torch.device("meta"):
        model = GPT(config)
    groups = {g: sum(p.numel() for p in members.values()) for g, members in model.parameter_groups().items()}
    multiplying = sum(size for group, size in groups.items() if group.is_matmul)
    mixers = [block.mixer for block in model.blocks]
    return ModelCosts(
        config=config,
        parameters=dict(sorted(((group.name, size) for group, size in groups.items()), key=lambda pair: -pair[1])),
        flops_per_token=6 * multiplying + sum(mixer.flops_per_token() for mixer in mixers),
        cache_bytes_per_token=sum(mixer.position_bytes(element_bytes) for mixer in mixers),
        scaling_parameters=sum(n for group, n in groups.items() if group in (MATRIX, UNEMBEDDING)),
    )


def activation_bytes(config: GPTConfig, positions: int, element_bytes: int, checkpointing: bool = False) -> int | None:
    """Bytes that a forward pass over `positions`, compiled for a GPU, keeps for the backward pass.

    None if a mixer does not declare `saved_activations`. With `checkpointing`: each layer's input, and one whole layer.
    """
    # Mostly q, k, v and y of attention, and the 4C activations of the MLP. A test compares them with a traced graph.
    kept = [tensors for mixer in config.mixers() if (tensors := mixer.saved_activations) is not None]
    if len(kept) < config.n_layer:
        return None
    tensors = len(kept) + max(kept) if checkpointing else sum(kept)
    return round(tensors * positions * config.n_embd * element_bytes)
