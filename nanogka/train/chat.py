"""Fine-tuning on conversations: the differences from pretraining. The loop is the same."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from nanogka.checkpoint import read_weights, step_of
from nanogka.common.cli import flag
from nanogka.common.distributed import Ranks
from nanogka.common.errors import Errors
from nanogka.common.files import atomic_write, base_dir
from nanogka.data.chat import (
    ChatLoader,
    ConversationSource,
    Mixture,
    TokenizedSource,
    report,
    tokenize_source,
    validation_rows,
)
from nanogka.data.conversation import ChatFormat
from nanogka.model import GPT
from nanogka.runs import find_checkpoint, find_run, load_tokenizer_of, model_config, open_latest, read_config
from nanogka.tokenizer import Tokenizer
from nanogka.train.horizon import plan_horizon
from nanogka.train.settings import LARGEST_BATCH, LoopSettings, rate
from nanogka.train.setup import Material, TextRun, prepare_text

BAD_FILE = "bad_conversations.jsonl"

Mix = list[tuple[ConversationSource, float]]  # sources and their weights


@dataclass(frozen=True)
class ChatSettings(LoopSettings):
    """Conversations. None means: computed from the others."""

    base: str = flag("", "run to start from: a tag or folder (default: the base run trained last)")
    base_step: int | None = flag(None, "step of the base run's checkpoint (default: the newest valid one)")
    data: str = flag(
        "embedded",
        "sources with weights (shares of the tokens), as in embedded:1,my.jsonl:2; a source is embedded, smoltalk, "
        "hub:OWNER/NAME or a .jsonl file or folder",
    )
    bad_conversations: str = flag(
        "skip", "conversations that cannot be used: leave out and report, or stop", ("skip", "stop")
    )
    max_conversations: int | None = flag(None, "most conversations of each source (default: all)", ge=2)
    sequence_len: int | None = flag(None, "tokens per row (default: the context of the base model)", ge=2)
    run: str = flag("", "name of the run's folder (default: <base>-chat)")
    num_iterations: int | None = flag(None, "number of steps (default: from --epochs)", ge=1)
    epochs: float = flag(1.0, "without --num-iterations: passes over as many tokens as all sources have together", gt=0)
    total_batch_size: int | None = flag(
        None, "tokens per step over all devices (default: the base run's)", ge=1, le=LARGEST_BATCH
    )
    weight_decay: float = rate(0.0, "weight decay of the matrices, cautious, falling to 0 over the run")
    eval_tokens: int = flag(262_144, "most validation tokens of each source to measure", ge=1)
    seed: int = flag(1, "seed of the order of the conversations, and of the embedded ones", ge=0)


@dataclass(frozen=True)
class BaseModel:
    """The trained model to start from: its run, and one checkpoint of it."""

    folder: Path
    config: dict
    checkpoint: Path
    tokenizer: Tokenizer

    @property
    def step(self) -> int:
        """The step of the checkpoint."""
        return step_of(self.checkpoint)

    @property
    def data(self) -> str | None:
        """The text that the model was pretrained on; a chat model has it from its own base."""
        base = (self.config.get("run") or {}).get("base")
        return base.get("data") if base else self.config["settings"].get("data")


def open_base(settings: ChatSettings) -> BaseModel:
    """The model that the settings name."""

    def read(folder: Path) -> BaseModel:
        config = read_config(folder)
        checkpoint = find_checkpoint(folder, settings.base_step)
        return BaseModel(folder, config, checkpoint, load_tokenizer_of(folder, config))

    try:
        if settings.base or settings.base_step is not None:
            return read(find_run(settings.base or None, kind=None if settings.base else "base"))
        return open_latest(read, "base")
    except ValueError as error:
        raise ValueError(str(error).replace("--run:", "--base:").replace("--step:", "--base-step:")) from error


@dataclass(kw_only=True)
class ChatRun(TextRun):
    """A fine-tuning run that can start; its `corpus` is a `Mixture`."""

    base: BaseModel
    kind = "chat"
    score = "val_loss"

    def loader(self, state: dict | None, step: int) -> ChatLoader:
        return ChatLoader(
            self.corpus,
            self.tokenizer.bos_id,
            batch_size=self.device_batch_size,
            sequence_len=self.row_len,
            seed=self.settings.seed,
            ranks=self.ranks,
            steps_batches=self.accumulation,
            state=state,
        )

    def merge_states(self, states: list[dict]) -> dict:
        return states[0]  # every rank goes through the same rows

    def locate(self, document: int) -> str:
        return self.corpus.locate(document)

    def initial_weights(self) -> dict[str, torch.Tensor]:
        return read_weights(self.base.checkpoint)

    def data_facts(self) -> dict:
        sources = [
            {"name": source.name, "conversations": len(source.train), "tokens": source.train.n_tokens}
            | {"left_out": len(source.bad), "share": round(float(share), 6)}
            for source, share in zip(self.corpus.sources, self.corpus.shares)
        ]
        base = {"run": self.base.folder.name, "step": self.base.step, "data": self.base.data}
        return {"corpus": self.corpus.fingerprint, "base": base, "sources": sources}

    def add_files(self, folder: Path) -> None:
        super().add_files(folder)
        bad = [one for source in self.corpus.sources for one in source.bad]
        records = [{"place": place, "kind": error.kind, "text": str(error)} for place, error in bad]
        atomic_write(folder / BAD_FILE, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))


def prepare_chat(
    settings: ChatSettings, open_sources: Callable[[Errors], Mix], ranks: Ranks, errors: Errors
) -> ChatRun:
    """Open the base model, read the conversations, and check everything against the machine and the run's folder.

    `open_sources` opens the sources that the settings name and records what is wrong with them.
    """
    settings.check(errors)
    base = errors.capture(lambda: open_base(settings))
    mix = open_sources(errors)
    errors.raise_if_any()
    config = model_config(base.config, base.folder)
    row_len = settings.sequence_len or config.sequence_len
    limit = config.sequence_len
    errors.require(row_len <= limit, "--sequence-len", row_len, f"at most the base model's {limit}")
    errors.raise_if_any()
    tokenized = _tokenize(settings, base, [source for source, _ in mix], row_len, errors)
    mixture = Mixture(tokenized, [weight for _, weight in mix]) if len(tokenized) == len(mix) else None
    batch = settings.total_batch_size or (base.config.get("run") or {}).get("total_batch_size")
    errors.require(batch is not None, "--total-batch-size", batch, f"a number, which {base.folder} does not tell")
    horizon = None
    if mixture is not None and batch is not None:
        steps = settings.num_iterations or max(1, round(settings.epochs * mixture.tokens / batch))
        horizon = plan_horizon(config, num_iterations=steps, total_batch_size=batch)
    settings = replace(settings, base=base.folder.name, base_step=base.step)
    folder = base_dir() / "runs" / (settings.run or f"{base.folder.name}-chat")
    errors.require(folder != base.folder, "--run", folder.name, "another name than that of the run to start from")
    prints = {"corpus": mixture and mixture.fingerprint}  # of tokens: another tokenizer makes others
    material = Material(mixture, base.tokenizer, config, horizon, prints, row_len)
    run = prepare_text(partial(ChatRun, base=base), settings, ranks, folder, material, errors)
    errors.raise_if_any()
    left_out = report([one for source in tokenized for one in source.bad])
    run.entry = replace(run.entry, notes=(*run.entry.notes, *(f"left out   {line}" for line in left_out)))
    return run


def _tokenize(
    settings: ChatSettings, base: BaseModel, sources: Sequence[ConversationSource], row_len: int, errors: Errors
) -> list[TokenizedSource]:
    """The sources as tokens; what is wrong with them is recorded."""
    done = []
    try:
        form = ChatFormat(base.tokenizer)
    except ValueError as error:
        errors.extend(error)
        return []
    for source in sources:
        try:
            # one token more than a row has inputs, so that the last input has a target
            done.append(tokenize_source(source, form, row_len + 1, settings.max_conversations))
        except ValueError as error:
            errors.extend(error)
    bad = [one for source in done for one in source.bad]
    if settings.bad_conversations == "stop":
        errors.lines.extend(f"--data: {line}" for line in report(bad))
    return done


def validation(
    run: ChatRun, measure: Callable[[GPT, np.ndarray, int, int], tuple[float, int]]
) -> Callable[[GPT], dict[str, float]]:
    """Return a function that measures nats per token of the assistant's turns, its rows shared by the ranks.

    It gives the loss of each source and (`val_loss`) their mean by the shares of the mixture. `measure` is
    `nanogka.evaluate.bpb.measure_chat_loss`.
    """
    ranks, bos_id, mixture = run.ranks, run.tokenizer.bos_id, run.corpus
    most = max(1, run.settings.eval_tokens // run.row_len)
    rows = [validation_rows(source.val, bos_id, run.row_len)[:most] for source in mixture.sources]

    def evaluate(model: GPT) -> dict[str, float]:
        sums = []
        for own in rows:
            sums += measure(model, own[ranks.rank :: ranks.world_size], bos_id, run.device_batch_size)
        sums = ranks.sum(sums, run.device)
        losses = [nats / count for nats, count in zip(sums[::2], sums[1::2])]
        total = sum(share * loss for share, loss in zip(mixture.shares, losses))
        if len(losses) == 1:
            return {"val_loss": float(total)}
        of_each = {f"val_loss {source.name}": loss for source, loss in zip(mixture.sources, losses)}
        return {"val_loss": float(total), **of_each}

    return evaluate
