"""Fine-tuning on conversations: what differs from pretraining. The loop is the same.

    sources, weights = …                                  (see tasks.chat_data)
    preparation = prepare_chat(settings, base, sources, weights, ranks)
    Trainer(preparation, evaluations).run()
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import yaml
from safetensors.torch import load_file

from nanogka.cli import flag
from nanogka.data.chat import (
    BadConversation,
    ChatLoader,
    ConversationSource,
    Mixture,
    TokenizedSource,
    report,
    tokenize_source,
)
from nanogka.data.conversation import ChatFormat
from nanogka.distributed import Ranks
from nanogka.model import GPTConfig
from nanogka.problems import Problems
from nanogka.runtime import base_dir
from nanogka.tokenizer import Tokenizer
from nanogka.train.checkpoint import WEIGHTS, find_checkpoint, find_run
from nanogka.train.horizon import plan_horizon
from nanogka.train.preparation import Preparation, prepare_machine
from nanogka.train.settings import LoopSettings

BAD_FILE = "bad_conversations.jsonl"


@dataclass(frozen=True)
class ChatSettings(LoopSettings):
    """What `scripts.chat_sft` takes. None means: computed from the others."""

    base: str = flag("", "run to start from: a tag or folder (default: the base run trained last)")
    base_step: int | None = flag(None, "which checkpoint of it (default: the newest sound one)")
    data: str = flag(
        "embedded",
        "sources with weights (shares of the tokens), as in embedded:1,my.jsonl:2; a source is embedded, smoltalk, "
        "hub:OWNER/NAME or a .jsonl file or folder",
    )
    bad_conversations: str = flag("skip", "those that cannot be used: leave out and report, or stop", ("skip", "stop"))
    max_conversations: int | None = flag(None, "of each source at most (default: all)")
    sequence_len: int | None = flag(None, "tokens of a row (default: the context of the base model)")
    run: str = flag("", "name of the run's folder (default: <base>-chat)")
    num_iterations: int | None = flag(None, "steps (default: from --epochs)")
    epochs: float = flag(1.0, "without --num-iterations: passes over as many tokens as all sources have together")
    total_batch_size: int | None = flag(None, "tokens a step over all devices (default: the base run's)")
    weight_decay: float = flag(0.0, "of the matrices, cautious, falling to 0 over the run")
    eval_tokens: int = flag(262_144, "validation tokens of each source, at most those there are")
    seed: int = flag(1, "of the order of the conversations, and of the embedded ones")

    def at_least(self) -> dict[str, int]:
        optional = ("max_conversations", "sequence_len")
        given = {name: 2 for name in optional if getattr(self, name) is not None}
        return super().at_least() | {"eval_tokens": 1} | given

    def check(self, problems: Problems) -> None:
        super().check(problems)
        problems.check(0 < self.epochs < float("inf"), "--epochs", self.epochs, "a number above 0")


@dataclass(frozen=True)
class BaseModel:
    """The trained model to start from: its run, and one checkpoint of it."""

    folder: Path
    config: dict
    checkpoint: Path
    tokenizer: Tokenizer

    @property
    def step(self) -> int:
        """Of the checkpoint."""
        return int(self.checkpoint.name.removeprefix("step_"))


def open_base(settings: ChatSettings) -> BaseModel:
    """The model that the settings name.

    Raises:
        ValueError: if there is none, or no sound checkpoint of it.
    """
    try:
        folder = find_run(settings.base or None, kind=None if settings.base else "base")
        checkpoint = find_checkpoint(folder, settings.base_step)
    except ValueError as error:
        raise ValueError(str(error).replace("--run:", "--base:").replace("--step:", "--base-step:")) from error
    config = yaml.safe_load((folder / "config.yaml").read_text())
    return BaseModel(folder, config, checkpoint, Tokenizer.load(folder / "tokenizer"))


@dataclass(frozen=True)
class ChatPreparation(Preparation):
    """A fine-tuning run that can start; its `corpus` is a `Mixture`."""

    base: BaseModel
    kind = "chat"
    score = "val_loss"

    @property
    def row_len(self) -> int:
        return self.settings.sequence_len or self.config.sequence_len

    def loader(self, state: dict | None) -> ChatLoader:
        return ChatLoader(
            self.corpus,
            self.tokenizer.bos_id,
            batch_size=self.device_batch_size,
            sequence_len=self.row_len,
            seed=self.settings.seed,
            rank=self.ranks.rank,
            world_size=self.ranks.world_size,
            steps_batches=self.accumulation,
            state=state,
        )

    def merge_states(self, states: list[dict]) -> dict:
        return states[0]  # every rank goes through the same rows

    def locate(self, document: int) -> str:
        return self.corpus.locate(document)

    def initial_weights(self) -> dict[str, torch.Tensor]:
        return load_file(self.base.checkpoint / WEIGHTS)

    def facts(self) -> dict:
        sources = [
            {"name": source.name, "conversations": len(source.train), "tokens": len(source.train.tokens)}
            | {"left_out": len(source.bad), "share": round(float(share), 6)}
            for source, share in zip(self.corpus.sources, self.corpus.shares)
        ]
        base = {"run": self.base.folder.name, "step": self.base.step, "data": self.base.config["settings"].get("data")}
        return {"corpus": self.corpus.fingerprint, "base": base, "sources": sources}

    def add_files(self, folder: Path) -> None:
        bad = [one for source in self.corpus.sources for one in source.bad]
        lines = (json.dumps(asdict(one), ensure_ascii=False) + "\n" for one in bad)
        (folder / BAD_FILE).write_text("".join(lines), encoding="utf-8")


def prepare_chat(
    settings: ChatSettings,
    base: BaseModel | None,
    sources: Sequence[ConversationSource],
    weights: Sequence[float],
    ranks: Ranks,
    problems: Problems | None = None,
) -> ChatPreparation:
    """Read the conversations; check everything against the machine, the base model and the run's folder.

    Args:
        settings: whose own `check` has been asked.
        base: see `open_base`; None if it could not be had, which is among the problems.
        sources, weights: the mixture.
        problems: found already, to be reported with the rest.

    Raises:
        ValueError: one line for each problem.
    """
    problems = problems if problems is not None else Problems()
    if base is None or problems.lines:
        problems.raise_any()
    config = GPTConfig(**base.config["model"])
    row_len = settings.sequence_len or config.sequence_len
    fits = problems.check(
        row_len <= config.sequence_len, "--sequence-len", row_len, f"at most the base model's {config.sequence_len}"
    )
    problems.raise_any()
    tokenized = _tokenize(settings, base, sources, row_len, problems) if fits else []
    mixture = Mixture(tokenized, weights) if len(tokenized) == len(sources) else None
    batch = settings.total_batch_size or base.config["run"]["total_batch_size"]
    horizon = None
    if mixture is not None:
        steps = settings.num_iterations or max(1, round(settings.epochs * mixture.tokens / batch))
        horizon = plan_horizon(config, num_iterations=steps, total_batch_size=batch)
    settings = replace(settings, base=base.folder.name, base_step=base.step)
    folder = base_dir() / "runs" / (settings.run or f"{base.folder.name}-chat")
    problems.check(folder != base.folder, "--run", folder.name, "another name than that of the run to start from")
    prints = {"corpus": mixture and mixture.fingerprint}  # of tokens: another tokenizer makes others
    machine = prepare_machine(settings, ranks, problems, folder, config, horizon, row_len, prints)
    problems.raise_any()
    left_out = report([one for source in tokenized for one in source.bad])
    machine["notes"] = (*machine["notes"], *(f"left out   {line}" for line in left_out))
    parts = {"corpus": mixture, "tokenizer": base.tokenizer, "config": config, "horizon": horizon, "base": base}
    return ChatPreparation(settings=settings, ranks=ranks, **parts, **machine)


def _tokenize(
    settings: ChatSettings, base: BaseModel, sources: Sequence[ConversationSource], row_len: int, problems: Problems
) -> list[TokenizedSource]:
    """The sources as tokens; what is wrong with them is recorded."""
    done = []
    try:
        form = ChatFormat(base.tokenizer)
    except ValueError as error:
        problems.collect(error)
        return []
    for source in sources:
        try:
            # one token more than a row has inputs, so that the last input has a target
            done.append(tokenize_source(source, form, row_len + 1, settings.max_conversations))
        except ValueError as error:
            problems.collect(error)
    bad: list[BadConversation] = [one for source in done for one in source.bad]
    if settings.bad_conversations == "stop":
        problems.lines.extend(f"--data: {line}" for line in report(bad))
    return done
