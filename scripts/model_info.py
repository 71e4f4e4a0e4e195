"""Costs of a model before anything is trained: parameters, FLOPs, training horizon, decode cache.

    python -m scripts.model_info --depth 20 --attention gaussian

Prints a table, and as its last line the same as one JSON document. Nothing is allocated (the model is built on the
meta device), so depth 40 takes seconds and little memory.
"""

import json
import math
import sys
from dataclasses import dataclass

from nanogka.cli import flag, run
from nanogka.formatting import byte_size, number, plain_table, scientific
from nanogka.model import GPTConfig, attention_name, count
from nanogka.problems import Problems
from nanogka.train.horizon import plan_horizon
from nanogka.train.settings import ModelSettings

LONG_CONTEXT = 8192


@dataclass(frozen=True)
class Settings(ModelSettings):
    """The flags."""

    vocab_size: int = flag(32768, "number of token ids")
    target_param_data_ratio: float | None = flag(None, "tokens per matrix or lm_head parameter (default: the mixer's)")
    total_batch_size: int | None = flag(None, "tokens per step (default: from the horizon)")


def collect(config: GPTConfig, ratio: float | None = None, total_batch_size: int | None = None) -> dict:
    """Every cost of a configuration, as the JSON document that the script prints.

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


def format_info(info: dict) -> str:
    """The document as lines of text: the shape, then a table with every digit and a rounded value of long numbers."""
    config, flops = info["config"], info["total_training_flops"]
    rows = [("vocabulary", number(config["vocab_size"]), "")]
    for group, size in info["parameters"].items():
        name = "parameters" if group == "total" else f"  {group}"
        rows.append((name, number(size), f"{size / 1e6:,.2f} M" if size >= 1e4 else ""))
    rows += [
        ("FLOPs / token", number(info["flops_per_token"]), scientific(info["flops_per_token"])),
        ("tokens", number(info["tokens"]), scientific(info["tokens"])),
        ("steps", number(info["steps"]), f"{info['total_batch_size']:,} tokens each"),
        ("tokens / scaling parameter", number(info["tokens_per_scaling_parameter"]), ""),
        ("training FLOPs", number(flops), scientific(flops)),
        ("cache / token", f"{info['cache_bytes_per_token']:,} B", "bfloat16, no window full"),
    ]
    for length, held in info["cache_bytes"].items():
        rows.append((f"cache at {int(length):,} tokens", f"{held:,} B", byte_size(held)))
    shape = f"{info['attention']}: {config['n_layer']} layers, {config['n_head']} heads, width {config['n_embd']}"
    context = f"context {config['sequence_len']:,} tokens, windows {config['window_pattern']}"
    return f"{shape}, {context}\n{plain_table(rows)}"


def body(settings: Settings, problems: Problems) -> None:
    """Print the costs of one configuration."""
    ratio, batch = settings.target_param_data_ratio, settings.total_batch_size
    problems.check(ratio is None or 0 < ratio < math.inf, "--target-param-data-ratio", ratio, "a number above 0")
    problems.check(batch is None or batch >= 1, "--total-batch-size", batch, "an integer of at least 1")
    config = problems.attempt(lambda: settings.config(settings.vocab_size))
    problems.raise_any()
    info = collect(config, ratio, batch)
    print(format_info(info))
    print(json.dumps(info))


def main(argv: list[str] | None = None) -> int:
    """Print the costs of one configuration."""
    return run(Settings, body, "model_info", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
