"""What a model costs, before anything is trained: parameters, FLOPs, training horizon, decode cache.

    python -m scripts.model_info --depth 20 --attention gaussian

Prints a table, and as its last line the same as one JSON document. Nothing is allocated (the model is built on the
meta device), so depth 40 takes seconds and little memory.
"""

import argparse
import json
import math
import sys

from nanogka.model import GPTConfig, attention_name, count, mixer_pattern
from nanogka.plots.tables import byte_size, number, plain_table, scientific
from nanogka.cli import run_script
from nanogka.problems import Problems
from nanogka.train.horizon import plan_horizon

LONG_CONTEXT = 8192
WINDOW_LETTERS = set("SL")


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts.model_info", description=__doc__.splitlines()[0])
    parser.add_argument("--depth", type=int, default=20, help="layers; sets width and heads too")
    parser.add_argument("--attention", default="gaussian", help="gaussian, dot_product, or a pattern such as GGGD")
    parser.add_argument("--sequence-len", type=int, default=2048, help="training context in tokens")
    parser.add_argument("--window-pattern", default="SSSL", help="window of each layer: S half the context, L full")
    parser.add_argument("--vocab-size", type=int, default=32768)
    parser.add_argument("--target-param-data-ratio", type=float, help="tokens a matrix or head parameter")
    parser.add_argument("--total-batch-size", type=int, help="tokens a step (default: from the horizon)")
    return parser.parse_args(argv)


def build_config(arguments: argparse.Namespace) -> GPTConfig:
    """The configuration that the flags describe. Raises `SettingsError` naming every flag that is wrong."""
    problems = Problems()
    problems.check(arguments.depth >= 1, "--depth", arguments.depth, "an integer of at least 1")
    problems.check(arguments.sequence_len >= 2, "--sequence-len", arguments.sequence_len, "an integer of at least 2")
    problems.check(arguments.vocab_size >= 1, "--vocab-size", arguments.vocab_size, "an integer of at least 1")
    known = bool(arguments.window_pattern) and set(arguments.window_pattern) <= WINDOW_LETTERS
    takes = "one or more of S (half the context), L (full)"
    problems.check(known, "--window-pattern", arguments.window_pattern, takes)
    for flag in ("target_param_data_ratio", "total_batch_size"):
        value = getattr(arguments, flag)
        ok = value is None or 0 < value < math.inf
        problems.check(ok, f"--{flag.replace('_', '-')}", value, "a number above 0")
    try:
        mixer_pattern(arguments.attention)
    except ValueError as error:
        problems.collect(error)
    problems.raise_any()
    return GPTConfig.from_depth(
        arguments.depth,
        arguments.attention,
        sequence_len=arguments.sequence_len,
        vocab_size=arguments.vocab_size,
        window_pattern=arguments.window_pattern,
    )


def collect(config: GPTConfig, ratio: float | None = None, total_batch_size: int | None = None) -> dict:
    """Every cost of a configuration, as the JSON document that the script prints.

    Cache bytes are those of one stream in bfloat16; `cache_bytes_per_token` is what a token adds while no window is
    full, `cache_bytes` what is held after so many tokens.
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
    """The document as an aligned table; long numbers in every digit and once more to be read."""
    config, parameters = info["config"], info["parameters"]
    shape = f"{config['n_layer']} layers, {config['n_head']} heads, width {config['n_embd']}"
    context = f"{config['sequence_len']:,} tokens, windows {config['window_pattern']}"
    rows = [("model", f"{info['attention']}: {shape}", ""), ("context", context, "")]
    rows.append(("vocabulary", number(config["vocab_size"]), ""))
    for group, size in parameters.items():
        name = "parameters" if group == "total" else f"  {group}"
        rows.append((name, number(size), f"{size / 1e6:,.2f} M" if size >= 1e4 else ""))
    for name, key in (("FLOPs / token", "flops_per_token"), ("tokens", "tokens")):
        rows.append((name, number(info[key]), scientific(info[key])))
    rows.append(("steps", number(info["steps"]), f"{info['total_batch_size']:,} tokens each"))
    rows.append(("tokens / scaling parameter", f"{info['tokens_per_scaling_parameter']:.4f}", ""))
    rows.append(("training FLOPs", number(info["total_training_flops"]), scientific(info["total_training_flops"])))
    rows.append(("cache / token", f"{info['cache_bytes_per_token']:,} B", "bfloat16, no window full"))
    for length, held in info["cache_bytes"].items():
        rows.append((f"cache at {int(length):,} tokens", f"{held:,} B", byte_size(held)))
    head, numbers = rows[:2], rows[2:]  # the descriptions would push the numbers far to the right
    width = max(len(row[0]) for row in rows)
    lines = [f"{name.ljust(width)}  {text}" for name, text, _ in head]
    return "\n".join(lines) + "\n" + plain_table([(name.ljust(width), *rest) for name, *rest in numbers])


def main(argv: list[str] | None = None) -> int:
    """Print the accounting of one configuration."""
    arguments = parse_arguments(argv)

    def body() -> None:
        config = build_config(arguments)
        info = collect(config, arguments.target_param_data_ratio, arguments.total_batch_size)
        print(format_info(info))
        print(json.dumps(info))

    return run_script(body, "model_info")


if __name__ == "__main__":
    sys.exit(main())
