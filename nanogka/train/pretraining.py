"""Plan a run of a language model, then train it.

`plan_pretraining` checks the settings against machine, data and folder, before anything is created. `train_run` builds
model, optimizer and loader and calls the loop. Fine-tuning and reinforcement learning plan differently and use it too.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from nanogka import backends
from nanogka.checkpoint import load_weights
from nanogka.common.distributed import Ranks
from nanogka.common.files import base_dir
from nanogka.common.runtime import can_compile, describe_hardware, pick_device, pick_dtype
from nanogka.data import open_corpus
from nanogka.data.corpus import Corpus
from nanogka.data.hub_corpora import HUB_CORPORA, fetch_corpus
from nanogka.data.loader import PackingLoader, StreamSettings, validation_batches
from nanogka.model import GPT, GPTConfig
from nanogka.tokenizer import Tokenizer, tokenizer_folder
from nanogka.train.autobatch import fit_batch
from nanogka.train.budget import TrainingBudget, plan_budget
from nanogka.train.resume import check_folder, claim
from nanogka.train.run import MicroBatch, TrainingRun
from nanogka.train.run_dir import open_run_dir
from nanogka.train.settings import LoopSettings, TrainSettings
from nanogka.train.sharded_optimizer import ShardedOptimizer
from nanogka.train.trainer import Evaluation, Loader, reproducible_on_cpu, restore, train

MAX_DEVICE_ROWS = 32
# Compiling takes about a minute on a CPU; below this much work it does not pay.
COMPILE_WORTH_FLOPS = 2e13


# ---- from settings to a run ----


def plan_pretraining(settings: TrainSettings, ranks: Ranks) -> TrainingRun:
    """Check the settings against the machine, the data and the run's folder. Raises ValueError at the first problem."""
    lacks_tokenizer = settings.dry_run and not (tokenizer_folder(settings.tokenizer) / "tokenizer.json").is_file()
    tokenizer = None if lacks_tokenizer else load_tokenizer(settings.tokenizer)
    fetched = HUB_CORPORA.get(settings.data)
    if fetched and (settings.shards or 0) > fetched.training_shards:
        raise ValueError(f"--shards: got {settings.shards}, expected at most {fetched.training_shards}")
    corpus = None if fetched else open_corpus(settings.data)
    config = settings.config(tokenizer.vocab_size if tokenizer else GPTConfig.vocab_size)
    budget = build_budget(settings, config)
    # The number of steps and the batch now say how long the run is; two ways of asking for it are one run.
    settings = replace(settings, target_flops=None, target_param_data_ratio=None)
    name, facts = settings.run or f"d{settings.depth}-{settings.attention}", corpus_facts(corpus)
    run = plan_run(settings, ranks, name, config, tokenizer, budget, corpus, facts, config.sequence_len)
    if fetched and not settings.dry_run:  # last, so that nothing is fetched for a run that cannot start
        shards = settings.shards or fetched.shards_needed(budget.tokens)
        log = print if ranks.local_rank == 0 else lambda line: None  # one process of each node speaks
        fetch_corpus(fetched, shards, log=log)
        run.corpus = fetched.open(shards)
        run.data_facts |= corpus_facts(run.corpus)
    if run.corpus and tokenizer:  # make a row of validation text: a fault in it would otherwise show at the last step
        next(validation_batches(run.corpus, tokenizer, batch_size=1, sequence_len=config.sequence_len))
    return run


def plan_run(
    settings: LoopSettings,
    ranks: Ranks,
    name: str,
    config: GPTConfig,
    tokenizer: Tokenizer | None,
    budget: TrainingBudget,
    corpus: object,
    data_facts: dict,
    row_len: int,
    *,
    kind: str = "base",
    monitor: str = "val_bpb",
) -> TrainingRun:
    """The run called `name` on this machine. Raises ValueError if its folder holds one that it cannot continue."""
    device = ranks.device(pick_device(settings.device))
    dtype = pick_dtype(settings.dtype, device)
    # Everything that decides the losses, filled in however it was asked for: a resumed run is compared with it.
    decided = {"num_iterations": budget.num_iterations, "total_batch_size": budget.total_batch_size}
    settings = replace(settings, **decided, dtype=str(dtype).removeprefix("torch."))
    run = TrainingRun(
        kind=kind,
        monitor=monitor,
        folder=base_dir() / "runs" / name,
        settings=settings,
        corpus=corpus,
        tokenizer=tokenizer,
        config=config,
        budget=budget,
        batch=plan_batch(settings, budget, row_len, ranks.world_size),
        data_facts={"tokenizer": tokenizer and tokenizer.fingerprint, **data_facts},
        ranks=ranks,
        device=device,
        dtype=dtype,
        hardware=describe_hardware(device),
    )
    check_folder(run)
    if not settings.dry_run:
        run.compile, run.compile_reason = decide_compile(settings.compile, device, budget)
    return run


def corpus_facts(corpus: Corpus | None) -> dict[str, str]:
    """The fingerprints of a corpus for config.yaml."""
    return {"corpus": corpus.fingerprint, "footers": corpus.footers} if corpus else {}


def build_budget(settings: TrainSettings, config: GPTConfig) -> TrainingBudget:
    """The length and the batch that the settings ask for."""
    names = ("num_iterations", "target_flops", "target_param_data_ratio", "total_batch_size")
    return plan_budget(config, **{name: getattr(settings, name) for name in names})


def plan_batch(settings: LoopSettings, budget: TrainingBudget, row_len: int, world_size: int) -> MicroBatch:
    """The micro-batch: as set, or the most rows up to 32 that divide those of a step on each device."""
    total = budget.total_batch_size
    if total % (row_len * world_size):
        raise ValueError(
            f"--total-batch-size: got {total:,} tokens, expected a multiple of sequence length × devices = "
            f"{row_len} × {world_size} = {row_len * world_size:,}"
        )
    rows_per_step = total // (row_len * world_size)
    rows = settings.device_batch_size
    if rows is None:
        rows = max(n for n in range(1, min(MAX_DEVICE_ROWS, rows_per_step) + 1) if rows_per_step % n == 0)
    if rows_per_step % rows:
        raise ValueError(
            f"--device-batch-size: got {rows}, expected a divisor of {rows_per_step}, the rows that "
            f"--total-batch-size {total:,} gives each device"
        )
    return MicroBatch(rows, rows_per_step, row_len)


def load_tokenizer(name: str) -> Tokenizer:
    """A tokenizer by name or folder."""
    folder = tokenizer_folder(name)
    if not (folder / "tokenizer.json").is_file():
        raise ValueError(
            f"--tokenizer: got {name!r}, but there is no {folder / 'tokenizer.json'}; train one with "
            f"`python -m scripts.tok_train`"
        )
    return Tokenizer.load(folder)


def decide_compile(wanted: str, device: torch.device, budget: TrainingBudget) -> tuple[bool, str]:
    """Decide whether to compile, and say why. Raises ValueError for `on` where compiling is impossible."""
    if wanted == "off":
        return False, "--compile off"
    if wanted == "auto" and device.type == "cpu" and budget.flops < COMPILE_WORTH_FLOPS:
        return False, "the run is too short for it to pay"
    able, reason = can_compile(device)
    if wanted == "on" and not able:
        raise ValueError(f"--compile: got 'on', but {reason}")
    return able, reason


# ---- from a run to its training ----


def train_run(
    run: TrainingRun,
    open_loader: Callable[[TrainingRun, GPT, dict | None], AbstractContextManager[Loader]],
    evaluations: Callable[[TrainingRun], list[Evaluation]],
    *,
    initial_weights: Callable[[], dict[str, torch.Tensor]] | None = None,
    loss: Callable[[GPT, torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    add_files: Callable[[Path], None] = lambda folder: None,
) -> int:
    """Build model and optimizer, and train. Returns the exit code of `train`.

    `open_loader(run, model, state)` and `evaluations(run)` are called when the size of the micro-batch is known.
    `initial_weights` are those to begin with, if they are not random. `loss(model, inputs, targets)` replaces the
    model's own loss.
    """
    settings, device, ranks = run.settings, run.device, run.ranks
    with (
        ranks.process_group(device, settings.rank_timeout),
        claim(run) as start,
        reproducible_on_cpu(device),
    ):
        if start.finished:
            return 0
        choose_kernels(run)
        # Every rank draws the same initial weights from the seed, so they need not be sent.
        model = GPT(run.config, seed=settings.seed, compute_dtype=run.dtype).to(device)
        model.activation_checkpointing = settings.activation_checkpointing
        muon_dtype = torch.bfloat16 if run.dtype == torch.bfloat16 else torch.float32
        optimizer = ShardedOptimizer(model, settings.rates, run.budget, muon_dtype, ranks)
        if initial_weights and start.checkpoint is None:
            load_weights(model, initial_weights(), "the model to start from")
        state = restore(start, model, optimizer)
        # All batches have one shape, so the compiler may assume it.
        loss_fn = torch.compile(model, dynamic=False) if run.compile else model
        if loss:
            loss_fn = partial(loss, model)
        else:
            fixed = settings.device_batch_size is not None
            run.batch = fit_batch(loss_fn, optimizer, run.batch, device, ranks, fixed=fixed, say_time=run.compile)
        schedule = settings.schedule(run.num_iterations, run.config.network)
        found = {"device_batch_size": run.batch.rows, "compile": "on" if run.compile else "off"}
        resumed_from = state.step if start.checkpoint else None
        with (
            open_run_dir(run, resumed_from, found, add_files) as run_dir,
            open_loader(run, model, state.loader) as loader,
        ):
            return train(model, optimizer, schedule, loader, loss_fn, run_dir, evaluations(run), state)


def choose_kernels(run: TrainingRun) -> None:
    """Try the kernels of the device and print the choice, before torch.compile, which cannot try one while it traces.

    Raises ValueError if a kernel does not work on a GPU: training would take several times as long, and somebody may
    pay for the machine by the minute.
    """
    kernels = backends.select_kernels(run.device, run.dtype)
    if run.ranks.is_main and kernels:
        print("kernels    " + ", ".join(f"{name}: {choice}" for name, choice in kernels.items()), flush=True)
    fallen_back = {name: choice for name, choice in kernels.items() if choice.startswith("torch (")}
    if fallen_back and not run.settings.allow_torch:
        reasons = "; ".join(f"{name}: {choice}" for name, choice in fallen_back.items())
        raise ValueError(f"--allow-torch: got off, but a kernel does not work here ({reasons}); on trains more slowly")


def pretraining_loader(run: TrainingRun, model: GPT, state: dict | None) -> PackingLoader:
    """The batches that pretraining learns from: from the start, or after `state`."""
    rows = StreamSettings("train", run.batch.row_len, run.settings.packing, run.settings.seed)
    return PackingLoader(run.corpus, run.tokenizer, rows, run.batch.rows, run.ranks, state)
