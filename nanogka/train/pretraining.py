"""Pretraining: its plan and its batches."""

from dataclasses import replace

from nanogka.common.distributed import Ranks
from nanogka.data import open_corpus
from nanogka.data.corpus import Corpus
from nanogka.data.hub_corpora import HUB_CORPORA, fetch_corpus
from nanogka.data.loader import PackingLoader, StreamSettings, validation_batches
from nanogka.model import GPT, GPTConfig
from nanogka.tokenizer import Tokenizer, tokenizer_folder
from nanogka.train.budget import TrainingBudget, plan_budget
from nanogka.train.plan import TrainPlan, make_plan
from nanogka.train.settings import TrainSettings


def plan_pretraining(settings: TrainSettings, ranks: Ranks) -> tuple[TrainPlan, Corpus | None]:
    """Check the settings against the machine, the data and the run's folder, and return the plan and the text.

    The text is None in a dry run for which it would be fetched. Raises ValueError at the first problem.
    """
    lacks_tokenizer = settings.dry_run and not (tokenizer_folder(settings.tokenizer) / "tokenizer.json").is_file()
    tokenizer = None if lacks_tokenizer else load_tokenizer(settings.tokenizer)
    fetched = HUB_CORPORA.get(settings.data)
    if fetched and (settings.shards or 0) > fetched.training_shards:
        raise ValueError(f"shards: got {settings.shards}, expected at most {fetched.training_shards}")
    corpus = None if fetched else open_corpus(settings.data)
    config = settings.config(tokenizer.vocab_size if tokenizer else GPTConfig.vocab_size)
    budget = build_budget(settings, config)
    # The number of steps and the batch now say how long the run is; two ways of asking for it are one run.
    settings = replace(settings, target_flops=None, target_param_data_ratio=None)
    name = settings.run or f"d{settings.depth}-{settings.attention}"
    data = corpus.describe() if corpus else f"{settings.data}, to be fetched"
    data += "" if tokenizer else f"; no tokenizer yet, {config.vocab_size:,} ids assumed"
    facts, row_len = corpus_facts(corpus), config.sequence_len
    plan = make_plan(settings, ranks, name, config, tokenizer, budget, row_len, facts=facts, data=data)
    if fetched and not settings.dry_run:  # last, so that nothing is fetched for a run that cannot start
        shards = settings.shards or fetched.shards_needed(budget.tokens)
        log = print if ranks.local_rank == 0 else lambda line: None  # one process per node prints
        fetch_corpus(fetched, shards, log=log)
        corpus = fetched.open(shards)
        plan = replace(plan, facts=plan.facts | corpus_facts(corpus), data=corpus.describe())
    if corpus and tokenizer:  # make a row of validation text: a fault in it would otherwise show at the last step
        next(validation_batches(corpus, tokenizer, batch_size=1, sequence_len=config.sequence_len))
    return plan, corpus


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


def pretraining_loader(corpus: Corpus, plan: TrainPlan[TrainSettings], model: GPT, state: dict | None) -> PackingLoader:
    """The batches that pretraining learns from: from the start, or after `state`."""
    rows = StreamSettings("train", plan.batch.row_len, plan.settings.packing, plan.settings.seed)
    return PackingLoader(corpus, plan.own_tokenizer, rows, plan.batch.rows, plan.ranks, state)
