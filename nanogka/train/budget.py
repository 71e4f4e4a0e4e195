"""Compute the length and the batch of a run, from the model's parameters, from FLOPs or from a number of steps.

A model is trained on ratio × (matrix + lm_head parameters) tokens. Other parameters do not count: to look up a row of a
table costs no FLOPs, and vectors are few. The batch grows with the tokens as B ∝ tokens^0.383 (arXiv 2505.13738), from
the reference, depth 12 at 2^19 tokens, and is rounded to a power of two.
"""

import math
from dataclasses import dataclass, replace

from nanogka.model import GPTConfig, model_costs

REFERENCE_DEPTH = 12
REFERENCE_BATCH = 2**19
# The critical batch, beyond which more tokens per step no longer save steps, grows with the length of the training.
# Late gradients are small, and their noise must be averaged over more tokens. The exponent is the paper's fit.
BATCH_EXPONENT = 0.383


@dataclass(frozen=True)
class TrainingBudget:
    """The length of a training run."""

    total_batch_size: int  # tokens per step
    num_iterations: int
    tokens: int  # their product
    flops: int  # of all tokens, forward and backward
    ratio: float  # tokens per scaling parameter
    size: float  # scaling parameters, as a multiple of the reference's


def plan_budget(
    config: GPTConfig,
    *,
    num_iterations: int | None = None,
    target_flops: float | None = None,
    target_param_data_ratio: float | None = None,
    total_batch_size: int | None = None,
) -> TrainingBudget:
    """Plan the training of one configuration; ValueError if it is shorter than one step.

    Give at most one of `num_iterations`, `target_flops` and `target_param_data_ratio`. If none is given, the ratio of
    the network or the mixer applies. The batch follows from the ratio's tokens unless it is given.
    """
    costs = model_costs(config)
    usual = config.snapshot.tokens_per_parameter or max(mixer.tokens_per_parameter for mixer in config.mixers())
    ratio = target_param_data_ratio or usual
    tokens = ratio * costs.scaling_parameters
    shape = GPTConfig.from_depth(REFERENCE_DEPTH, config.mixer_pattern)
    reference = replace(config, n_layer=shape.n_layer, n_head=shape.n_head, n_embd=shape.n_embd)
    reference_tokens = ratio * model_costs(reference).scaling_parameters
    size = tokens / reference_tokens
    if total_batch_size is None:
        wanted = REFERENCE_BATCH * size**BATCH_EXPONENT
        total_batch_size = 2 ** round(math.log2(wanted))  # divides evenly among devices and micro-batches
    if num_iterations is not None:
        steps = num_iterations
    elif target_flops is not None:
        steps = round(target_flops / (costs.flops_per_token * total_batch_size))
    else:
        steps = int(tokens) // total_batch_size
    if steps < 1 and target_flops is not None:
        least = costs.flops_per_token * total_batch_size
        step = f"{least:.3g}, one step of {total_batch_size:,} tokens"
        raise ValueError(f"target_flops: got {target_flops:g}, expected at least {step}")
    if steps < 1:
        raise ValueError(
            f"total_batch_size: got {total_batch_size} tokens per step, expected at most the run's budget "
            f"({tokens:,.0f} tokens); lower it or lengthen the run"
        )
    tokens = steps * total_batch_size
    flops, ratio = tokens * costs.flops_per_token, tokens / costs.scaling_parameters
    return TrainingBudget(total_batch_size, steps, tokens, flops, ratio, size)
