"""Pretraining: its plan and its batches."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from nanogka.common.distributed import Ranks
from nanogka.common.formatting import printable
from nanogka.data import open_corpus
from nanogka.data.corpus import Corpus
from nanogka.data.hub_corpora import HUB_CORPORA, fetch_corpus
from nanogka.data.loader import PackingLoader, StreamSettings, validation_batches
from nanogka.evaluate.bpb import draw_samples
from nanogka.evaluate.bundle import open_core_tasks
from nanogka.evaluate.core import core_evaluation
from nanogka.evaluate.task import LoadedTask
from nanogka.evaluate.text import measure_text
from nanogka.model import GPT, GPTConfig
from nanogka.tokenizer import Tokenizer, tokenizer_folder
from nanogka.train.budget import TrainingBudget, plan_budget
from nanogka.train.plan import About, TrainPlan, make_plan
from nanogka.train.run import Recipe
from nanogka.train.settings import TrainSettings
from nanogka.train.trainer import Evaluation


def plan_pretraining(settings: TrainSettings, ranks: Ranks, core: Sequence[str]) -> tuple[TrainPlan, Recipe]:
    """Check the settings against the machine, the data and the run's folder, and return the plan and its recipe.

    Raises ValueError at the first problem. `core` names the tasks of CORE.
    """
    core_every, most = settings.core_every, settings.core_max_per_task
    tasks = open_core_tasks(settings.eval_bundle, core, most) if core_every > 0 else []
    lacks_tokenizer = settings.dry_run and not (tokenizer_folder(settings.tokenizer) / "tokenizer.json").is_file()
    tokenizer = None if lacks_tokenizer else load_tokenizer(settings.tokenizer)
    fetched = HUB_CORPORA.get(settings.data)
    if fetched and (settings.shards or 0) > fetched.training_shards:
        raise ValueError(f"shards: got {settings.shards}, expected at most {fetched.training_shards}")
    corpus = None if fetched else open_corpus(settings.data)
    config = settings.config(tokenizer.vocab_size if tokenizer else GPTConfig.vocab_size)
    budget = build_budget(settings, config)
    # The number of steps and the batch now say how long the run is; two ways of asking for it are one run.
    decided = {"num_iterations": budget.num_iterations, "total_batch_size": budget.total_batch_size}
    settings = replace(settings, **decided, target_flops=None, target_param_data_ratio=None)
    name = settings.run or f"d{settings.depth}-{settings.attention}"
    data = corpus.describe() if corpus else f"{settings.data}, to be fetched"
    data += "" if tokenizer else f"; no tokenizer yet, {config.vocab_size:,} ids assumed"
    about, row_len = About(facts=corpus_facts(corpus), data=data), config.sequence_len
    plan = make_plan(settings, config, tokenizer, budget, row_len, name, ranks, about, settings.compile, settings.fp8)
    if fetched and not settings.dry_run:  # last, so that nothing is fetched for a run that cannot start
        shards = settings.shards or fetched.shards_needed(budget.tokens)
        log = print if ranks.local_rank == 0 else lambda line: None  # one process per node prints
        fetch_corpus(fetched, shards, log=log)
        corpus = fetched.open(shards)
        facts = plan.about.facts | corpus_facts(corpus) | {"shards": shards}  # the documents' order depends on it
        plan = replace(plan, about=replace(plan.about, facts=facts, data=corpus.describe()))
    if corpus and tokenizer:  # make a row of validation text: a fault in it would otherwise show at the last step
        next(validation_batches(corpus, tokenizer, batch_size=1, sequence_len=config.sequence_len))
    assert corpus or settings.dry_run
    return plan, Pretraining(corpus, tasks, core)


def corpus_facts(corpus: Corpus | None) -> dict[str, str]:
    """The fingerprints of a corpus for config.yaml."""
    return {"corpus": corpus.fingerprint, "footers": corpus.footers} if corpus else {}


def build_budget(settings: TrainSettings, config: GPTConfig) -> TrainingBudget:
    """The length and the batch that the settings ask for."""
    names = ("num_iterations", "target_flops", "target_param_data_ratio", "total_batch_size")
    return plan_budget(config, **{name: getattr(settings, name) for name in names})


def load_tokenizer(name: str) -> Tokenizer:
    """A tokenizer by name or folder."""
    folder = tokenizer_folder(name)
    if not (folder / "tokenizer.json").is_file():
        raise ValueError(
            f"tokenizer: got {name!r}, but there is no {folder / 'tokenizer.json'}; train one with "
            f"`python -m scripts.tok_train`"
        )
    return Tokenizer.load(folder)


@dataclass(frozen=True)
class Pretraining(Recipe):
    """Learn from the text of a corpus."""

    corpus: Corpus | None  # None in a dry run that would fetch it
    tasks: Sequence[LoadedTask] = ()  # those of CORE that are measured during training
    core: Sequence[str] = ()  # the names of all tasks of CORE

    @property
    def own_corpus(self) -> Corpus:
        """The corpus of a run that trains."""
        assert self.corpus is not None, "only a dry run has no corpus"
        return self.corpus

    def loader(self, plan: TrainPlan[TrainSettings], model: GPT, state: dict | None) -> PackingLoader:
        rows = StreamSettings("train", plan.batch.row_len, plan.settings.packing, plan.settings.seed)
        return PackingLoader(self.own_corpus, plan.own_tokenizer, rows, plan.batch.rows, plan.machine.ranks, state)

    def evaluations(self, plan: TrainPlan[TrainSettings]) -> list[Evaluation]:
        settings, ranks, found = plan.settings, plan.machine.ranks, []
        if self.tasks:
            core = core_evaluation(self.tasks, self.core, plan.tokenizer, ranks, settings.core_max_per_task)
            found.append(Evaluation(settings.core_every, core))
        if settings.sample_every > 0:
            found.append(Evaluation(settings.sample_every, partial(sample, plan)))
        # Validation comes last, so that its line is the last of a step.
        return [*found, Evaluation(settings.eval_every, partial(validate, plan, self.own_corpus))]

    def next_steps(self, run: str) -> list[str]:
        return [f"evaluate: python -m scripts.base_eval --run {run}"]


def validate(plan: TrainPlan[TrainSettings], corpus: Corpus, model: GPT) -> dict[str, float]:
    """Measure bits per byte on the validation split, which the ranks share: value, standard error, number of tokens."""
    data = validation_batches(
        corpus,
        plan.own_tokenizer,
        batch_size=plan.batch.rows,
        sequence_len=plan.config.sequence_len,
        max_tokens=plan.settings.eval_tokens,
        packing=plan.settings.packing,
        ranks=plan.machine.ranks,
    )
    measured = measure_text(model, data, plan.own_tokenizer.token_bytes(), plan.machine.ranks)
    values = {"val_bpb": measured.total.value, "val_tokens": measured.total.tokens}
    error = measured.interval.error
    return values | ({"val_bpb_se": error} if math.isfinite(error) else {})


def sample(plan: TrainPlan, model: GPT) -> dict[str, list[str]]:
    """Let rank 0 continue a few prompts."""
    drawn = draw_samples(model, plan.own_tokenizer) if plan.machine.ranks.is_main else ()
    return {"samples": [printable(f"> {one['prompt']}{one['text']}") for one in drawn]}
