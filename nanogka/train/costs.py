"""Costs of a configuration before anything is trained: parameters, FLOPs, horizon, decode cache."""

from nanogka.common.formatting import byte_size, number, plain_table, scientific
from nanogka.model import GPTConfig, attention_name, count
from nanogka.train.horizon import plan_horizon

LONG_CONTEXT = 8192


def describe_costs(config: GPTConfig, ratio: float | None = None, total_batch_size: int | None = None) -> dict:
    """Every cost of a configuration, as the JSON document that `scripts.model_info` prints.

    Cache bytes are those of one sequence in bfloat16; `cache_bytes_per_token` is the growth per token while no window
    is full, `cache_bytes` the size at so many tokens.
    """
    accounting = count(config)
    horizon = plan_horizon(config, target_param_data_ratio=ratio, total_batch_size=total_batch_size)
    contexts = sorted({config.sequence_len, LONG_CONTEXT})
    return {
        "attention": attention_name(config.mixer_pattern),
        "parameters": {"total": accounting.total_parameters, **accounting.parameters},
        "flops_per_token": accounting.flops_per_token,
        "tokens": horizon.tokens,
        "steps": horizon.num_iterations,
        "total_batch_size": horizon.total_batch_size,
        "tokens_per_scaling_parameter": horizon.ratio,
        "total_training_flops": horizon.flops,
        "cache_bytes_per_token": accounting.cache_bytes_per_token,
        "cache_bytes": {str(context): accounting.cache_bytes(context) for context in contexts},
        "config": config.to_dict(),
    }


def format_costs(costs: dict) -> str:
    """The costs as lines of text: the shape, then a table with every digit and a rounded value of long numbers."""
    config, flops = costs["config"], costs["total_training_flops"]
    rows = [("vocabulary", number(config["vocab_size"]), "")]
    for group, size in costs["parameters"].items():
        name = "parameters" if group == "total" else f"  {group}"
        rows.append((name, number(size), f"{size / 1e6:,.2f} M" if size >= 1e4 else ""))
    rows += [
        ("FLOPs / token", number(costs["flops_per_token"]), scientific(costs["flops_per_token"])),
        ("tokens", number(costs["tokens"]), scientific(costs["tokens"])),
        ("steps", number(costs["steps"]), f"{costs['total_batch_size']:,} tokens each"),
        ("tokens / scaling parameter", number(costs["tokens_per_scaling_parameter"]), ""),
        ("training FLOPs", number(flops), scientific(flops)),
        ("cache / token", f"{costs['cache_bytes_per_token']:,} B", "bfloat16, no window full"),
    ]
    for length, held in costs["cache_bytes"].items():
        rows.append((f"cache at {int(length):,} tokens", f"{held:,} B", byte_size(held)))
    shape = f"{costs['attention']}: {config['n_layer']} layers, {config['n_head']} heads, width {config['n_embd']}"
    context = f"context {config['sequence_len']:,} tokens, windows {config['window_pattern']}"
    return f"{shape}, {context}\n{plain_table(rows)}"
