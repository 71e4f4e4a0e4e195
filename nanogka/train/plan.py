"""What `speedrun.sh` will do on this machine: the commands from text to report, and what they will cost.

With GPUs it is the paper's depth-20 run on FineWeb-Edu; without, a small real run on the embedded corpus. Environment
variables override every choice, see `VARIABLES`.
"""

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from nanogka.data.corpus import FINEWEB, fineweb_folder
from nanogka.data.fineweb import SHARD_BYTES, TOKENIZER_SHARDS, TOKENS_A_SHARD, shards_needed
from nanogka.model import GPTConfig, attention_name, count, mixer_pattern
from nanogka.problems import Problems
from nanogka.runtime import Hardware, base_dir, describe_hardware, pick_device, pick_dtype
from nanogka.tokenizer import tokenizer_folder
from nanogka.train.disk import DiskNeed, checkpoint_bytes, disk_need
from nanogka.train.horizon import Horizon, plan_horizon
from nanogka.train.metrics import duration
from nanogka.train.preparation import expected_seconds
from nanogka.train.settings import TrainSettings

VARIABLES = {
    "DEPTH": "number of layers",
    "ATTENTION": "gaussian, dot_product, or a pattern of G and D",
    "DATA": "embedded, fineweb-edu, or a folder of shards, .txt or .jsonl files",
    "VOCAB_SIZE": "tokens of the vocabulary",
    "SEQUENCE_LEN": "context in tokens",
    "NUM_ITERATIONS": "training steps",
    "TOTAL_BATCH_SIZE": "tokens a step",
    "DEVICE_BATCH_SIZE": "rows a device takes at once",
    "SEED": "of weights and data order",
    "RUN": "name of the run's folder",
    "EVAL_BUNDLE": "a CORE evaluation bundle: folder, zip, download or none",
    "CHAT": "conversations to fine-tune on afterwards, as --data of scripts.chat_sft takes them; none: no fine-tuning",
    "WANDB_RUN": "report to Weights & Biases under this name",
    "TRAIN_FLAGS": "more flags for scripts.base_train",
    "DRY_RUN": "1: print the plan and stop",
    "PRETEND_GPUS": "with DRY_RUN: plan for so many H100s",
}

CHECKPOINTS = TrainSettings.keep + TrainSettings.keep_best + 1  # and one that is being written

# Of the fine-tuning of the small run, see docs/LOG.md.
SMALL_CHAT = "--num-iterations 500 --lr-scale 0.3 --bandwidth-lr 0.1 --eval-every 250 --eval-tokens 4000 "
SMALL_CHAT += "--save-every 100"


@dataclass(frozen=True)
class Step:
    """One command of the plan: its title, its words, and whether its result is there already."""

    title: str
    command: list[str]
    done: bool = False

    @property
    def text(self) -> str:
        """The command as one would type it."""
        words = ["python" if word == sys.executable else word for word in self.command]
        return shlex.join(words)


@dataclass(frozen=True)
class Plan:
    """The whole run.

    Attributes:
        run: its tag. talk_to: that of the run whose model is the one to talk to. seconds: expected time of training.
        disk: what it takes.
    """

    run: str
    talk_to: str
    hardware: Hardware
    config: GPTConfig
    horizon: Horizon
    data: str
    steps: list[Step]
    seconds: float
    disk: DiskNeed
    notes: list[str]

    def describe(self) -> str:
        """The plan, for people."""
        accounting = count(self.config)
        lines = [
            f"hardware        {self.hardware.devices} × {self.hardware.name}",
            f"model           depth {self.config.n_layer}, {attention_name(self.config.mixer_pattern)}, "
            f"{accounting.total_parameters:,} parameters, vocabulary {self.config.vocab_size:,}, "
            f"context {self.config.sequence_len:,}",
            f"data            {self.data}",
            f"training        {self.horizon.num_iterations:,} steps × {self.horizon.total_batch_size:,} = "
            f"{self.horizon.tokens:,} tokens, {self.horizon.flops:.3g} FLOPs",
            f"expected time   about {duration(self.seconds)} for the training",
            f"folder          {base_dir() / 'runs' / self.run}",
            *self.notes,
            *self.disk.lines(),
            "commands",
        ]
        marks = (f"  {i}. {'(done) ' if step.done else ''}{step.text}" for i, step in enumerate(self.steps, 1))
        return "\n".join([*lines, *marks])


def make_plan(environment: Mapping[str, str]) -> Plan:
    """The plan for this machine and these overrides.

    Raises:
        ValueError: naming every variable whose value does not fit.
    """
    problems = Problems()

    def number(name: str, default: int | None) -> int | None:
        text = environment.get(name, "")
        if not text:
            return default
        whole = text.replace("_", "").isdigit() and int(text.replace("_", "")) > 0
        problems.check(whole, name, text, "an integer of at least 1")
        return int(text.replace("_", "")) if whole else default

    pretended = number("PRETEND_GPUS", None)
    problems.check(
        pretended is None or environment.get("DRY_RUN") == "1", "PRETEND_GPUS", pretended, "nothing without DRY_RUN=1"
    )
    device = pick_device()
    hardware = Hardware("H100 (pretended)", pretended, 989e12, 80 << 30) if pretended else describe_hardware(device)
    gpu = bool(pretended) or device.type == "cuda"
    depth = number("DEPTH", 20 if gpu else 4)
    attention = environment.get("ATTENTION") or "gaussian"
    data = environment.get("DATA") or (FINEWEB if gpu else "embedded")
    seed = number("SEED", 1)
    vocab_size = number("VOCAB_SIZE", 32768 if gpu else 4096)
    sequence_len = number("SEQUENCE_LEN", 2048 if gpu else 512)
    iterations = number("NUM_ITERATIONS", None if gpu else 600)
    batch = number("TOTAL_BATCH_SIZE", None if gpu else 4096)
    rows = number("DEVICE_BATCH_SIZE", None)
    try:
        mixer_pattern(attention)
    except ValueError as error:
        problems.collect(ValueError(str(error).replace("--attention", "ATTENTION")))
    problems.raise_any()

    config = GPTConfig.from_depth(depth, attention, vocab_size=vocab_size, sequence_len=sequence_len)
    horizon = plan_horizon(config, num_iterations=iterations, total_batch_size=batch)
    run = environment.get("RUN") or f"d{depth}-{attention}"
    # With a batch 128 times below the reference, the rates of √(batch ratio) are too cautious (docs/LOG.md).
    small = [] if gpu else shlex.split("--lr-scale 0.3 --eval-every 100 --eval-tokens 65536 --save-every 100")
    train = ["--depth", depth, "--attention", attention, "--sequence-len", sequence_len, "--seed", seed, "--run", run]
    train += ["--total-batch-size", horizon.total_batch_size, "--num-iterations", horizon.num_iterations, *small]
    train += ["--device-batch-size", rows] if rows else []
    train += ["--wandb-run", environment["WANDB_RUN"]] if environment.get("WANDB_RUN") else []
    train += shlex.split(environment.get("TRAIN_FLAGS", ""))
    notes, steps, parts, there = [], [], {}, 0
    if data == FINEWEB:
        shards = shards_needed(horizon.tokens)
        train += ["--shards", shards]
        steps.append(Step("fetch the tokenizer's data", _script("nanogka.data.fineweb", "-n", TOKENIZER_SHARDS)))
        notes.append(
            f"shards          {shards} + validation, of about {TOKENS_A_SHARD:,} tokens, {SHARD_BYTES / 1e6:.0f} MB; "
            f"training begins while those after the first {TOKENIZER_SHARDS} are fetched"
        )
        parts["data"] = (shards + 1) * SHARD_BYTES
        there = sum(file.stat().st_size for file in fineweb_folder().glob("*.parquet"))
    parts["checkpoints"] = CHECKPOINTS * checkpoint_bytes(count(config))
    parts["tokenizer and logs"] = 10_000_000
    tokenizer = f"{Path(data).name}-{vocab_size}"
    steps += [
        Step(
            "train the tokenizer",
            _script("scripts.tok_train", "--data", data, "--vocab-size", vocab_size, "--name", tokenizer),
            done=(tokenizer_folder(tokenizer) / "meta.json").is_file(),
        ),
        Step(
            "train the model",
            _launch(hardware.devices if gpu else 1, "scripts.base_train", "--data", data, "--tokenizer", tokenizer)
            + [str(word) for word in train]
            + ["--resume", "auto"],
        ),
        Step("evaluate", _evaluation(run, environment, gpu), done=evaluation_is_current(base_dir() / "runs" / run)),
    ]
    chat = environment.get("CHAT") or ("smoltalk:9,embedded:1" if gpu else "embedded")
    if chat != "none":
        steps += _chat_steps(run, chat, environment, hardware.devices if gpu else 0, sequence_len, vocab_size)
    steps.append(Step("report", _script("scripts.report", "--run", run)))
    dtype = torch.bfloat16 if gpu else pick_dtype("auto", device)
    seconds = expected_seconds(horizon.flops, hardware, device, dtype)
    disk = disk_need(base_dir(), parts, min(there, parts.get("data", 0)))
    talk_to = run if chat == "none" else chat_run(run)
    return Plan(run, talk_to, hardware, config, horizon, data, steps, seconds, disk, notes)


def chat_run(run: str) -> str:
    """The tag of the chat run that is made from a base run."""
    return f"{run}-chat"


def _chat_steps(
    run: str, data: str, environment: Mapping[str, str], gpus: int, sequence_len: int, vocab_size: int
) -> list[Step]:
    """Fine-tuning and its evaluation; `gpus` is 0 on a machine without."""
    words = ["--base", run, "--run", chat_run(run), "--data", data]
    if not gpus and data == "embedded":
        # One exchange a row: attention that averages over all it sees is best not shown another's letters. Tuned for
        # the embedded conversations (docs/LOG.md), which have at most 26 tokens of a vocabulary of 4 096.
        row = min(sequence_len, 26 if vocab_size >= 4096 else 48)
        words += ["--sequence-len", row, "--total-batch-size", 64 * row, "--device-batch-size", 64]
        words += shlex.split(SMALL_CHAT)
    elif not gpus:
        words += shlex.split("--lr-scale 0.3 --save-every 100")
    words += ["--wandb-run", environment["WANDB_RUN"] + "-chat"] if environment.get("WANDB_RUN") else []
    ask = ["--run", chat_run(run)]
    if environment.get("EVAL_BUNDLE") or gpus:
        ask += ["--eval-bundle", environment.get("EVAL_BUNDLE") or "hub"]
    folder = base_dir() / "runs" / chat_run(run)
    return [
        Step("learn to chat", [*_launch(gpus or 1, "scripts.chat_sft", *words), "--resume", "auto"]),
        Step("ask it", _script("scripts.chat_eval", *ask), done=evaluation_is_current(folder, "chat_evaluation.json")),
    ]


def evaluation_is_current(run: Path, file: str = "evaluation.json") -> bool:
    """Whether the evaluation in `file` speaks of the newest checkpoint of the run."""
    checkpoints = sorted(run.glob("checkpoints/step_*"))
    try:
        evaluated = json.loads((run / file).read_text())["step"]
    except (OSError, ValueError, KeyError):
        return False
    return bool(checkpoints) and int(checkpoints[-1].name.removeprefix("step_")) == evaluated


def _evaluation(run: str, environment: Mapping[str, str], gpu: bool) -> list[str]:
    words = ["--run", run]
    if environment.get("EVAL_BUNDLE"):
        words += ["--eval-bundle", environment["EVAL_BUNDLE"]]
    elif gpu:
        words += ["--eval-bundle", "download"]
    return _script("scripts.base_eval", *words)


def _script(module: str, *words: object) -> list[str]:
    return [sys.executable, "-m", module, *map(str, words)]


def _launch(devices: int, module: str, *words: object) -> list[str]:
    if devices == 1:
        return _script(module, *words)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={devices}"]
    return [*launcher, "-m", module, "--", *map(str, words)]  # else torchrun takes some of them for its own
