"""Supervised fine-tuning: data, defaults and validation. The loop is pretraining's."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nanogka.common.cli import flag
from nanogka.common.distributed import Ranks
from nanogka.common.errors import Errors
from nanogka.data.chat import ChatLoader, DataMixture, first_questions, validation_rows
from nanogka.data.chat_sources import ConversationSource
from nanogka.data.chat_tokens import Rejection, summarize, tokenize_source
from nanogka.data.conversation import ChatFormat
from nanogka.evaluate.bpb import measure_chat_loss
from nanogka.model import GPT
from nanogka.runs import EXAMPLES, SavedRun
from nanogka.train.base import BaseSettings, base_facts, examples_text, name_run, promise_facts
from nanogka.train.budget import plan_budget
from nanogka.train.plan import About, BatchSettings, TrainPlan, make_plan
from nanogka.train.run import Recipe
from nanogka.train.trainer import Evaluation

BAD_FILE = "bad_conversations.jsonl"
EXAMPLES_KEPT = 4
# Conversations are short if the longest fills at most this share of the base model's context.
SHORT_SHARE = 1 / 4
SHORT_TOKENS = 1152  # at least, of a step of short conversations


@dataclass(frozen=True)
class ChatSettings(BatchSettings, BaseSettings):
    """Conversations. None means: computed from the others."""

    data: str = flag(
        "embedded",
        "sources with weights (shares of the tokens), as in embedded:1,my.jsonl:2; a source is embedded, smoltalk, "
        "hub:OWNER/NAME or a .jsonl, .json or .parquet file or a folder of them",
        affects="losses",
        through="corpus",
    )
    bad_conversations: str = flag(
        "skip", "conversations that cannot be used: leave out and report, or stop", ("skip", "stop"), affects="output"
    )
    max_conversations: int | None = flag(
        None, "maximum number of conversations of each source (default: all)", ge=2, affects="losses", through="corpus"
    )
    sequence_len: int | None = flag(
        None,
        "tokens per row (default: the context of the base model, or the longest of short conversations)",
        ge=2,
        affects="losses",
    )
    run: str = flag("", "name of the run's folder (default: <base>-chat)", affects="output")
    num_iterations: int | None = flag(None, "number of steps (default: from --epochs)", ge=1, affects="losses")
    epochs: float = flag(
        1.0,
        "without --num-iterations: passes over as many tokens as all sources have together",
        gt=0,
        affects="losses",
        through="num_iterations",
    )
    total_batch_size: int | None = flag(
        None,
        "tokens per step over all devices (default: the base run's, or as many rows of short conversations)",
        ge=1,
        affects="losses",
    )
    lr_scale: float | None = flag(
        None, "factor of all learning rates (default: the base run's)", ge=0, affects="losses"
    )
    weight_decay: float = flag(
        0.0, "weight decay of the matrices, cautious, falling to 0 over the run", ge=0, affects="losses"
    )
    eval_tokens: int = flag(
        262_144, "maximum number of validation tokens of each source to measure", ge=1, affects="output"
    )
    seed: int = flag(1, "seed of the order of the conversations, and of the embedded ones", ge=0, affects="losses")


def plan_chat(
    settings: ChatSettings, base: SavedRun, mix: Sequence[tuple[ConversationSource, float]], ranks: Ranks
) -> tuple[TrainPlan[ChatSettings], Recipe]:
    """Check the settings against base model, conversations, machine and folder, before anything is created.

    Raises ValueError at the first problem, or naming every kind of bad conversation with `--bad-conversations stop`.
    """
    config, context = base.gpt_config, base.gpt_config.sequence_len
    if (settings.sequence_len or 0) > context:
        raise ValueError(f"sequence_len: got {settings.sequence_len}, expected at most the base model's {context}")
    mixture = tokenize_mixture(settings, base, mix, settings.sequence_len or context)
    settings = with_defaults(settings, base, context, mixture, ranks.world_size)
    row_len, batch = settings.sequence_len or context, settings.total_batch_size
    assert batch is not None, "`with_defaults` fills it in"
    steps = settings.num_iterations or max(1, round(settings.epochs * mixture.tokens / batch))
    budget = plan_budget(config, num_iterations=steps, total_batch_size=batch)
    settings, name = name_run(replace(settings, num_iterations=steps), base, "chat")
    about = About(
        kind="chat",
        monitor="val_loss",
        facts=mixture_facts(mixture, base) | promise_facts([source.promise for source, _ in mix]),
        data=mixture.describe(),
        notes=tuple(f"left out   {line}" for line in summarize(bad_conversations(mixture))),
    )
    plan = make_plan(
        settings, config, base.tokenizer, budget, row_len, name, ranks, about, settings.compile, settings.fp8
    )
    return plan, FineTuning(base, mixture)


def with_defaults(
    settings: ChatSettings, base: SavedRun, context: int, mixture: DataMixture, world_size: int
) -> ChatSettings:
    """The settings with batch, learning rates and, for short conversations, the row's length filled in.

    A row of the base model's context would hold many short conversations. Attention sees them all, and most of what it
    sees says nothing about the question. In a row of about the length of a conversation there is little else to see.
    A step of as many rows as the base run's then has fewer tokens, so that the data last for more updates. If the batch
    is given, rows are as much longer as they must be to divide it.
    """
    given = settings.total_batch_size
    batch = given or base.part("run").get("total_batch_size")
    longest = max(max(source.train.lengths.max(), source.val.lengths.max()) for source in mixture.sources)
    if settings.sequence_len is None and longest <= SHORT_SHARE * context:
        # A row has one token less than the conversation, whose last token is only a target. Rounded up to 16.
        lengths = range(16 * math.ceil((longest - 1) / 16), context + 1, 16)
        dividing = [length for length in lengths if given is None or given % (length * world_size) == 0]
        row_len = (dividing or lengths)[0]
        rows = max(math.ceil(SHORT_TOKENS / row_len), (batch or 0) // context)
        rows = world_size * math.ceil(rows / world_size)
        settings, batch = replace(settings, sequence_len=row_len), given or rows * row_len
    if batch is None:
        raise ValueError(f"total_batch_size: got None, expected a number: {base.folder} has none to use")
    scale = base.part("settings").get("lr_scale") if settings.lr_scale is None else settings.lr_scale
    return replace(settings, total_batch_size=batch, lr_scale=scale)


def tokenize_mixture(
    settings: ChatSettings, base: SavedRun, mix: Sequence[tuple[ConversationSource, float]], row_len: int
) -> DataMixture:
    """The sources as tokens. Raises ValueError naming every source that cannot be used."""
    template, sources, errors = ChatFormat(base.tokenizer), [], Errors()
    for source, _ in mix:
        try:
            # one token more than a row has inputs, so that the last input has a target
            sources.append(tokenize_source(source, template, row_len + 1, settings.max_conversations))
        except ValueError as error:
            errors.extend(error)
    if settings.bad_conversations == "stop":
        rejected = [one for source in sources for one in source.rejected]
        errors.lines.extend(f"data: {line}" for line in summarize(rejected))
    errors.raise_if_any()
    return DataMixture(sources, [weight for _, weight in mix])


def mixture_facts(mixture: DataMixture, base: SavedRun) -> dict[str, Any]:
    """Facts about base model and conversations for config.yaml."""
    sources = [
        {"name": source.name, "conversations": len(source.train), "tokens": source.train.n_tokens}
        | {"left_out": len(source.rejected), "share": round(float(share), 6)}
        for source, share in zip(mixture.sources, mixture.shares)
    ]
    return {"corpus": mixture.fingerprint, "base": base_facts(base), "sources": sources}


def bad_conversations(mixture: DataMixture) -> list[Rejection]:
    """Every conversation that was left out."""
    return [one for source in mixture.sources for one in source.rejected]


@dataclass(frozen=True)
class FineTuning(Recipe):
    """Learn from conversations."""

    start: SavedRun
    mixture: DataMixture

    @property
    def base(self) -> Path:
        return self.start.checkpoint_folder

    def loader(self, plan: TrainPlan[ChatSettings], model: GPT, state: dict | None) -> ChatLoader:
        return ChatLoader(
            self.mixture,
            plan.own_tokenizer.bos_id,
            batch_size=plan.batch.rows,
            sequence_len=plan.batch.row_len,
            seed=plan.settings.seed,
            ranks=plan.machine.ranks,
            accumulation=plan.batch.accumulation,
            state=state,
        )

    def evaluations(self, plan: TrainPlan[ChatSettings]) -> list[Evaluation]:
        return [Evaluation(plan.settings.eval_every, validation(plan, self.mixture))]

    def files(self) -> dict[str, str]:
        records = [rejection._asdict() for rejection in bad_conversations(self.mixture)]
        questions = first_questions(self.mixture, ChatFormat(self.start.tokenizer), EXAMPLES_KEPT)
        bad = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        return {BAD_FILE: bad, EXAMPLES: examples_text(questions)}

    def next_steps(self, run: str) -> list[str]:
        return [f"evaluate: python -m scripts.chat_eval --run {run}", f"talk: python -m scripts.chat_cli --run {run}"]


def validation(plan: TrainPlan[ChatSettings], mixture: DataMixture) -> Callable[[GPT], dict[str, float]]:
    """Return a function that measures nats per token of the assistant's turns. The ranks share the rows.

    It gives the loss of each source, their mean by the shares of the mixture (`val_loss`), and the number of tokens of
    all (`val_tokens`).
    """
    ranks, bos_id = plan.machine.ranks, plan.own_tokenizer.bos_id
    limit = max(1, plan.settings.eval_tokens // plan.batch.row_len)
    rows = [validation_rows(source.val, bos_id, plan.batch.row_len, limit) for source in mixture.sources]

    def evaluate(model: GPT) -> dict[str, float]:
        sums = []
        for own in rows:
            sums += measure_chat_loss(model, own[ranks.rank :: ranks.world_size], bos_id, plan.batch.rows)
        sums = ranks.sum(sums, plan.machine.device)
        losses = [nats / count for nats, count in zip(sums[::2], sums[1::2])]
        total = sum(share * loss for share, loss in zip(mixture.shares, losses))
        values = {"val_loss": float(total), "val_tokens": int(sum(sums[1::2]))}
        if len(losses) == 1:
            return values
        return values | {f"val_loss {source.name}": loss for source, loss in zip(mixture.sources, losses)}

    return evaluate
