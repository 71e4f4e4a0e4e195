"""What a model costs: parameters, FLOPs, cache bytes. Counted on the model itself, on the meta device if need be."""

from dataclasses import dataclass

import torch

from nanogka.model.config import GPTConfig
from nanogka.model.gpt import GPT

MULTIPLYING_GROUPS = ("lm_head", "matrix")  # every other parameter is looked up or scales a vector


@dataclass(frozen=True)
class Accounting:
    """Costs of one configuration.

    Attributes:
        parameters: how many, by group.
        flops_per_token: of training (forward and backward), see `count`.
        cache_bytes_per_token: what one more token adds to a decode cache while no window is full.
        scaling_parameters: matrix and lm_head parameters, what the training horizon is a multiple of.
    """

    config: GPTConfig
    parameters: dict[str, int]
    flops_per_token: int
    cache_bytes_per_token: int
    scaling_parameters: int

    @property
    def total_parameters(self) -> int:
        """All parameters."""
        return sum(self.parameters.values())

    def cache_bytes(self, context: int, element_bytes: int = 2) -> int:
        """Bytes of a decode cache that holds `context` tokens of one stream.

        A windowed layer keeps its last W + 1 positions.
        """
        with torch.device("meta"):
            mixers = [block.mixer for block in GPT(self.config).blocks]
        kept = (m.remembered * (context if m.window is None else min(context, m.window + 1)) for m in mixers)
        return sum(kept) * self.config.n_embd * element_bytes


def count(config: GPTConfig, element_bytes: int = 2) -> Accounting:
    """Count parameters, FLOPs and cache bytes of a configuration, without allocating its weights.

    FLOPs per token = 6 × (parameters that multiply a token) + Σ_layers 12 · H · D · min(window, T), the guide's
    section 3; cache bytes are of `element_bytes` an element (2: bfloat16).
    """
    with torch.device("meta"):
        model = GPT(config)
    groups = {name: sum(p.numel() for p in group.values()) for name, group in model.parameter_groups().items()}
    multiplying = sum(groups[name] for name in MULTIPLYING_GROUPS)
    T = config.sequence_len
    attention = sum(12 * config.n_embd * (T if window is None else min(window, T)) for window in config.windows())
    remembered = sum(block.mixer.remembered for block in model.blocks)
    return Accounting(
        config=config,
        parameters=groups,
        flops_per_token=6 * multiplying + attention,
        cache_bytes_per_token=remembered * config.n_embd * element_bytes,
        scaling_parameters=multiplying,
    )
