"""Costs before anything is trained: of a configuration (scripts.model_info), and of a run (`--dry-run`)."""

import math
import time
from dataclasses import asdict, replace

import torch

from nanogka.common.files import free_bytes
from nanogka.common.formatting import byte_size, duration, gigabytes, number, plain_table, scientific
from nanogka.model import GPTConfig, activation_bytes, attention_name, model_costs
from nanogka.model.measure import measure_mixers
from nanogka.train.budget import TrainingBudget, plan_budget
from nanogka.train.estimate import checkpoint_bytes, checkpoints_at_once, estimate_time, held_bytes
from nanogka.train.plan import TrainPlan

LONG_CONTEXT = 8192

# ---- of a configuration ----


def describe_costs(config: GPTConfig, ratio: float | None = None, total_batch_size: int | None = None) -> dict:
    """Every cost of a configuration, as the JSON document that `scripts.model_info` prints.

    Cache bytes are those of one sequence in bfloat16; `cache_bytes_per_token` is the growth per token while no window
    is full, `cache_bytes` the size at so many tokens.
    """
    per_token = model_costs(config)
    budget = plan_budget(config, target_param_data_ratio=ratio, total_batch_size=total_batch_size)
    contexts = sorted({config.sequence_len, LONG_CONTEXT})
    return {
        "attention": attention_name(config.mixer_pattern),
        "parameters": {"total": per_token.total_parameters, **per_token.parameters},
        "flops_per_token": per_token.flops_per_token,
        "tokens": budget.tokens,
        "steps": budget.num_iterations,
        "total_batch_size": budget.total_batch_size,
        "tokens_per_scaling_parameter": budget.ratio,
        "total_training_flops": budget.flops,
        "cache_bytes_per_token": per_token.cache_bytes_per_token,
        "cache_bytes": {str(context): per_token.cache_bytes(context) for context in contexts},
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
    text = f"{shape}, {context}\n{plain_table(rows)}"
    return f"{text}\n\n{format_measured(costs['measured'])}" if "measured" in costs else text


def describe_measured(config: GPTConfig) -> list[dict]:
    """Return what `measure_mixers` finds, as a part of the JSON document."""
    return [asdict(one) | {"deviation": one.deviation} for one in measure_mixers(config)]


def format_measured(measured: list[dict]) -> str:
    """Declared and measured costs of small layers as a table."""
    rows = [("mixer", "FLOPs/token declared", "counted", "", "saved tensors declared", "eager")]
    for one in measured:
        declared = "" if one["declared_saved"] is None else f"{one['declared_saved']:.1f}"
        flops = f"{one['declared_flops']:,}", f"{one['flops']:,.0f}", f"{one['deviation']:+.1%}"
        rows.append((one["mixer"], *flops, declared, f"{one['saved']:.1f}"))
    note = (
        "FLOPs: mixers of small layers without windows. Saved: (B, T, C) tensors of a layer, declared for a compiler."
    )
    return f"{plain_table(rows)}\n{note}"


# ---- of a run ----


def describe_plan(plan: TrainPlan) -> str:
    """The run and its cost in a few lines, for people."""
    per_token, config, batch, machine = plan.costs, plan.config, plan.batch, plan.machine
    lines = [
        f"model      depth {config.n_layer}, {attention_name(config.mixer_pattern)}{config.variant}, "
        f"width {config.n_embd}, {config.n_head} heads, {per_token.total_parameters:,} parameters, "
        f"{per_token.flops_per_token:.4g} FLOPs per token",
        f"horizon    {plan.about.horizon or describe_horizon(plan.budget)}",
        f"batch      {machine.ranks.world_size} device(s) × {batch.accumulation} micro-batches × {batch.rows} rows × "
        f"{batch.row_len} tokens",
        f"data       {plan.about.data}",
        f"machine    {machine.hardware.name}, {str(machine.dtype).removeprefix('torch.')}, compile "
        f"{'on' if machine.compile else 'off'} ({machine.compile_reason})",
        f"cost       {describe_plan_cost(plan)}",
        f"folder     {plan.folder}",
        *plan.about.notes,
    ]
    return "\n".join(lines)


def describe_horizon(budget: TrainingBudget) -> str:
    """The length of a run of full rows, for people."""
    return (
        f"{budget.num_iterations:,} steps × {budget.total_batch_size:,} tokens = {budget.tokens:,} "
        f"tokens ({budget.ratio:.2f} per parameter of matrices and head), {budget.flops:.3g} FLOPs"
    )


def describe_plan_cost(plan: TrainPlan) -> str:
    """The expected time, memory and disk of the whole run in one line."""
    machine = plan.machine
    held, saved = held_bytes(plan.config, machine.ranks.world_size), checkpoint_bytes(plan.config)
    memory = f"weights, gradients and optimizer state {gigabytes(held)} per device"
    if machine.device.type == "cuda" and machine.compile:
        positions, checkpointing = plan.batch.rows * plan.batch.row_len, plan.settings.activation_checkpointing
        activations = activation_bytes(plan.config, positions, machine.dtype.itemsize, checkpointing)
        memory += f", activations about {gigabytes(activations)}" if activations else ""
    disk = f"checkpoints {checkpoints_at_once(plan)} × {gigabytes(saved)} on a disk with "
    free = free_bytes(plan.folder)
    disk += f"{gigabytes(free)} free" if free < math.inf else "unknown free space"
    return f"{describe_time(plan)}; {memory}; {disk}"


def describe_time(plan: TrainPlan) -> str:
    """The expected time of the steps of a run, without evaluations."""
    if not plan.about.fixed_tokens:
        return "the time depends on the length of the replies"
    machine = plan.machine
    estimate = estimate_time(plan.config, plan.budget, machine.hardware, machine.ranks.world_size, fp8=machine.fp8)
    peak = machine.hardware.peak_flops
    return f"about {duration(estimate.seconds)} of training at {estimate.mfu:.0%} of {peak:.2g} FLOP/s per device"


def with_peak(plan: TrainPlan) -> TrainPlan:
    """The plan with the peak of its hardware: a measured one if the table has none and the time is to be estimated."""
    machine = plan.machine
    if machine.hardware.peak_flops or not plan.about.fixed_tokens:
        return plan
    peak = measure_matmul(machine.device, machine.dtype)
    hardware = replace(machine.hardware, peak_flops=peak, measured=True)
    return replace(plan, machine=replace(machine, hardware=hardware))


def measure_matmul(device: torch.device, dtype: torch.dtype) -> float:
    """FLOP/s of a square matrix product, the best of a few: the peak of hardware that is not in our table."""
    size = 1024
    a = torch.ones(size, size, device=device).to(dtype)
    best = math.inf
    for _ in range(6):
        began = time.perf_counter()
        (a @ a).float().sum().item()
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best
