"""Carry out a plan: build model and optimizer, find the start, and train."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from nanogka import backends
from nanogka.checkpoint import check_finite, load_weights, read_weights
from nanogka.common.formatting import as_started
from nanogka.common.runtime import BFLOAT16_CAPABILITY
from nanogka.model import GPT, fp8
from nanogka.train.autobatch import fit_batch, largest_batch
from nanogka.train.costs import describe_plan, with_peak
from nanogka.train.optimizer import Schedule
from nanogka.train.plan import Machine, TrainPlan
from nanogka.train.resume import claim, restore
from nanogka.train.run_log import open_run_log
from nanogka.train.sharded_optimizer import ShardedOptimizer
from nanogka.train.trainer import Evaluation, Loader, reproducible_on_cpu, train


class Recipe(ABC):
    """Parts of training that differ between pretraining, fine-tuning and reinforcement learning."""

    loss: Callable[..., torch.Tensor] | None = None  # of (model, inputs, targets, …), instead of the model's own

    @property
    def base(self) -> Path | None:
        """The checkpoint whose weights are the first ones, if they are not random."""
        return None

    @abstractmethod
    def loader(self, plan: TrainPlan, model: GPT, state: dict | None) -> AbstractContextManager[Loader]:
        """The batches to learn from: from the start, or after `state`."""

    @abstractmethod
    def evaluations(self, plan: TrainPlan) -> list[Evaluation]:
        """Evaluations during training; the monitored one last."""

    def files(self) -> Mapping[str, str]:
        """Texts to write into the folder of a run that starts."""
        return {}

    def next_steps(self, run: str) -> Sequence[str]:
        """Lines to print at the end."""
        return ()


def train_run(plan: TrainPlan, recipe: Recipe) -> int:
    """Train, or say that the run is complete, or in a dry run what it would be. Returns the exit code of `train`.

    The recipe's loader and evaluations are made when the size of the micro-batch is known.
    """
    if plan.machine.ranks.is_main:  # it alone prints estimates and writes files
        plan = with_peak(plan)
    settings, machine = plan.settings, plan.machine
    device, ranks = machine.device, machine.ranks
    if settings.dry_run:
        if ranks.is_main:
            print(describe_plan(plan))
        choose_kernels(plan)  # a dry run on a GPU tells whether training would start there
        return 0
    with (
        ranks.process_group(device),
        claim(plan) as start,
        reproducible_on_cpu(device),
    ):
        if start.finished:
            if ranks.is_main:
                print(f"done already: {plan.folder} has all {plan.num_iterations:,} steps; --overwrite starts over")
            return 0
        if ranks.is_main:
            print(describe_plan(plan), flush=True)
        choose_kernels(plan)
        # Every rank draws the same initial weights from the seed, so they need not be sent.
        model = GPT(plan.config, seed=settings.seed, compute_dtype=machine.dtype).to(device)
        model.activation_checkpointing = settings.activation_checkpointing
        if machine.fp8:
            model.use_fp8()
        muon_dtype = torch.bfloat16 if machine.dtype == torch.bfloat16 else torch.float32
        optimizer = ShardedOptimizer(model, settings, plan.budget, muon_dtype, ranks)
        if recipe.base is not None and start.checkpoint is None:
            load_start(model, recipe.base)
        state = restore(start, plan, model, optimizer)
        # All batches have one shape, so the compiler may assume it.
        loss_fn = torch.compile(model, dynamic=False) if machine.compile else model
        if recipe.loss:
            loss_fn = partial(recipe.loss, model)
        else:
            fixed, batch = settings.device_batch_size is not None, plan.batch
            if device.type == "cuda" and machine.compile and not fixed:
                batch = largest_batch(plan, torch.cuda.get_device_properties(device).total_memory)
            batch = fit_batch(loss_fn, optimizer, batch, device, ranks, fixed=fixed, say_time=machine.compile)
            plan = replace(plan, batch=batch)
        schedule = Schedule.of(settings, plan.num_iterations, plan.config.network)
        with (
            open_run_log(plan, state, resumes=start.checkpoint is not None, files=recipe.files()) as log,
            recipe.loader(plan, model, state.loader) as loader,
        ):
            code = train(plan, model, optimizer, schedule, loader, loss_fn, log, recipe.evaluations(plan), state)
    if ranks.is_main and code == 0:
        print(as_started("\n".join([f"done: {plan.folder}", *recipe.next_steps(plan.folder.name)])))
    return code


def load_start(model: GPT, checkpoint: Path) -> None:
    """Load the weights to start from. Raises ValueError if they do not fit the model or are not finite."""
    weights, source = read_weights(checkpoint), f"base: {checkpoint}"
    check_finite(weights, source)
    load_weights(model, weights, source)


def choose_kernels(plan: TrainPlan) -> None:
    """Try the kernels of the device and print the choice, before torch.compile, which cannot try one while it traces.

    Raises ValueError if a kernel does not work on a GPU: training would take several times as long, and somebody may
    pay for the machine by the minute.
    """
    kernels = backends.select_kernels(plan.machine.device, plan.machine.dtype)
    if plan.machine.fp8:
        check_fp8(plan.machine, plan.batch.row_len, dry_run=plan.settings.dry_run)
        kernels["products"] = "FP8"
    if plan.machine.ranks.is_main and kernels:
        print("kernels    " + ", ".join(f"{name}: {choice}" for name, choice in kernels.items()), flush=True)
    fallen_back = {name: choice for name, choice in kernels.items() if choice.startswith("torch (")}
    if fallen_back and not plan.settings.allow_torch:
        reasons = "; ".join(f"{name}: {choice}" for name, choice in fallen_back.items())
        raise ValueError(
            f"allow_torch: got off, but a kernel does not work here ({reasons}); on trains more slowly"
            f"{too_old(plan.machine)}"
        )


def check_fp8(machine: Machine, row_len: int, *, dry_run: bool = False) -> None:
    """Raise ValueError where products in 8 bits do not work, or would take longer than in 16."""
    if row_len % fp8.MULTIPLE:
        raise ValueError(f"fp8: got True, expected False for rows of {row_len} tokens, no multiple of {fp8.MULTIPLE}")
    if (reason := fp8.product_fault(machine.device)) is not None:
        raise ValueError(f"fp8: got True, but products in 8 bits do not work here ({reason})")
    if machine.device.type == "cuda" and not machine.compile and not dry_run:
        raise ValueError("fp8: got True, expected False without torch.compile: the casts would take longer")


def too_old(machine: Machine) -> str:
    """A sentence for a GPU without bfloat16, empty for others."""
    device = machine.device
    if device.type != "cuda" or torch.cuda.get_device_capability(device) >= BFLOAT16_CAPABILITY:
        return ""
    name = machine.hardware.name
    return f". {name} has no bfloat16: the oldest supported GPUs are Ampere's, such as A100 and RTX 3090"
