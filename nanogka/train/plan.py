"""What `speedrun.sh` will do on this machine: the commands from text to report, and what they will cost.

With GPUs it is the paper's depth-20 run on FineWeb-Edu; without, a small real run on the embedded corpus. Environment
variables override every choice, see `VARIABLES`.
"""

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
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
class Choices:
    """What the variables say and, for the rest, what suits the machine; None or "" leaves it to the scripts.

    Attributes:
        gpus: devices of a command that trains; 0 on a machine without a GPU, where it takes the one device there is.
    """

    hardware: Hardware
    device: torch.device
    gpus: int
    depth: int
    attention: str
    data: str
    vocab_size: int
    sequence_len: int
    num_iterations: int | None
    total_batch_size: int | None
    device_batch_size: int | None
    seed: int
    run: str
    eval_bundle: str
    chat: str
    wandb_run: str
    train_flags: str


def _number(environment: Mapping[str, str], problems: Problems, name: str, default: int | None) -> int | None:
    """The variable's positive integer; the default where it is not set or, with the problem recorded, is none."""
    text = environment.get(name, "")
    digits = text.replace("_", "")
    if text and problems.check(digits.isdigit() and int(digits) > 0, name, text, "an integer of at least 1"):
        return int(digits)
    return default


def read_choices(environment: Mapping[str, str]) -> Choices:
    """The choices for this machine and these overrides.

    Raises:
        ValueError: naming every variable whose value does not fit.
    """
    problems = Problems()
    number = partial(_number, environment, problems)
    pretended = number("PRETEND_GPUS", None)
    problems.check(
        pretended is None or environment.get("DRY_RUN") == "1", "PRETEND_GPUS", pretended, "nothing without DRY_RUN=1"
    )
    device = pick_device()
    hardware = Hardware("H100 (pretended)", pretended, 989e12, 80 << 30) if pretended else describe_hardware(device)
    gpu = bool(pretended) or device.type == "cuda"
    depth = number("DEPTH", 20 if gpu else 4)
    attention = environment.get("ATTENTION") or "gaussian"
    choices = Choices(
        hardware=hardware,
        device=device,
        gpus=hardware.devices if gpu else 0,
        depth=depth,
        attention=attention,
        data=environment.get("DATA") or (FINEWEB if gpu else "embedded"),
        seed=number("SEED", 1),
        vocab_size=number("VOCAB_SIZE", 32768 if gpu else 4096),
        sequence_len=number("SEQUENCE_LEN", 2048 if gpu else 512),
        num_iterations=number("NUM_ITERATIONS", None if gpu else 600),
        total_batch_size=number("TOTAL_BATCH_SIZE", None if gpu else 4096),
        device_batch_size=number("DEVICE_BATCH_SIZE", None),
        run=environment.get("RUN") or f"d{depth}-{attention}",
        eval_bundle=environment.get("EVAL_BUNDLE", ""),
        chat=environment.get("CHAT") or ("smoltalk:9,embedded:1" if gpu else "embedded"),
        wandb_run=environment.get("WANDB_RUN", ""),
        train_flags=environment.get("TRAIN_FLAGS", ""),
    )
    try:
        mixer_pattern(attention)
    except ValueError as error:
        problems.collect(ValueError(str(error).replace("--attention", "ATTENTION")))
    problems.raise_any()
    return choices


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
    choices = read_choices(environment)
    config = GPTConfig.from_depth(
        choices.depth, choices.attention, vocab_size=choices.vocab_size, sequence_len=choices.sequence_len
    )
    horizon = plan_horizon(config, num_iterations=choices.num_iterations, total_batch_size=choices.total_batch_size)
    shards = shards_needed(horizon.tokens) if choices.data == FINEWEB else 0
    dtype = torch.bfloat16 if choices.gpus else pick_dtype("auto", choices.device)
    return Plan(
        run=choices.run,
        talk_to=choices.run if choices.chat == "none" else chat_run(choices.run),
        hardware=choices.hardware,
        config=config,
        horizon=horizon,
        data=choices.data,
        steps=_steps(choices, horizon, shards),
        seconds=expected_seconds(horizon.flops, choices.hardware, choices.device, dtype),
        disk=_disk(config, shards),
        notes=[_about_shards(shards)] if shards else [],
    )


def chat_run(run: str) -> str:
    """The tag of the chat run that is made from a base run."""
    return f"{run}-chat"


def evaluation_is_current(run: Path, file: str = "evaluation.json") -> bool:
    """Whether the evaluation in `file` speaks of the newest checkpoint of the run."""
    checkpoints = sorted(run.glob("checkpoints/step_*"))
    try:
        evaluated = json.loads((run / file).read_text())["step"]
    except (OSError, ValueError, KeyError):
        return False
    return bool(checkpoints) and int(checkpoints[-1].name.removeprefix("step_")) == evaluated


def _about_shards(shards: int) -> str:
    return (
        f"shards          {shards} + validation, of about {TOKENS_A_SHARD:,} tokens, {SHARD_BYTES / 1e6:.0f} MB; "
        f"training begins while those after the first {TOKENIZER_SHARDS} are fetched"
    )


def _disk(config: GPTConfig, shards: int) -> DiskNeed:
    """What the run takes of the disk; `shards` is 0 where none are fetched."""
    parts, there = {}, 0
    if shards:
        parts["data"] = (shards + 1) * SHARD_BYTES
        there = min(parts["data"], sum(file.stat().st_size for file in fineweb_folder().glob("*.parquet")))
    parts["checkpoints"] = CHECKPOINTS * checkpoint_bytes(count(config))
    parts["tokenizer and logs"] = 10_000_000
    return disk_need(base_dir(), parts, there)


def _steps(choices: Choices, horizon: Horizon, shards: int) -> list[Step]:
    """The commands, from text to report; `shards` is 0 where none are fetched."""
    tokenizer = f"{Path(choices.data).name}-{choices.vocab_size}"
    tokenize = ["--data", choices.data, "--vocab-size", choices.vocab_size, "--name", tokenizer]
    evaluate = _script("scripts.base_eval", "--run", choices.run, *_bundle(choices, "download"))
    steps = [
        Step(
            "train the tokenizer",
            _script("scripts.tok_train", *tokenize),
            done=(tokenizer_folder(tokenizer) / "meta.json").is_file(),
        ),
        Step("train the model", _training(choices, horizon, shards, tokenizer)),
        Step("evaluate", evaluate, done=evaluation_is_current(base_dir() / "runs" / choices.run)),
    ]
    if shards:
        fetch = _script("nanogka.data.fineweb", "-n", TOKENIZER_SHARDS)
        steps.insert(0, Step("fetch the tokenizer's data", fetch))
    if choices.chat != "none":
        steps += _chat_steps(choices)
    return [*steps, Step("report", _script("scripts.report", "--run", choices.run))]


def _training(choices: Choices, horizon: Horizon, shards: int, tokenizer: str) -> list[str]:
    words = ["--data", choices.data, "--tokenizer", tokenizer, "--depth", choices.depth]
    words += ["--attention", choices.attention, "--sequence-len", choices.sequence_len]
    words += ["--seed", choices.seed, "--run", choices.run]
    words += ["--total-batch-size", horizon.total_batch_size, "--num-iterations", horizon.num_iterations]
    if not choices.gpus:
        # With a batch 128 times below the reference, the rates of √(batch ratio) are too cautious (docs/LOG.md).
        words += shlex.split("--lr-scale 0.3 --eval-every 100 --eval-tokens 65536 --save-every 100")
    words += ["--device-batch-size", choices.device_batch_size] if choices.device_batch_size else []
    words += ["--wandb-run", choices.wandb_run] if choices.wandb_run else []
    words += shlex.split(choices.train_flags)
    words += ["--shards", shards] if shards else []
    return _launch(choices.gpus or 1, "scripts.base_train", *words, "--resume", "auto")


def _bundle(choices: Choices, with_gpus: str) -> list[str]:
    """The flag for the CORE evaluation bundle, if there is one."""
    bundle = choices.eval_bundle or (with_gpus if choices.gpus else "")
    return ["--eval-bundle", bundle] if bundle else []


def _chat_steps(choices: Choices) -> list[Step]:
    """Fine-tuning and its evaluation."""
    run = chat_run(choices.run)
    words = ["--base", choices.run, "--run", run, "--data", choices.chat]
    if not choices.gpus and choices.chat == "embedded":
        # One exchange a row: attention that averages over all it sees is best not shown another's letters. Tuned for
        # the embedded conversations (docs/LOG.md), which have at most 26 tokens of a vocabulary of 4 096.
        row = min(choices.sequence_len, 26 if choices.vocab_size >= 4096 else 48)
        words += ["--sequence-len", row, "--total-batch-size", 64 * row, "--device-batch-size", 64]
        words += shlex.split(SMALL_CHAT)
    elif not choices.gpus:
        words += shlex.split("--lr-scale 0.3 --save-every 100")
    words += ["--wandb-run", choices.wandb_run + "-chat"] if choices.wandb_run else []
    ask = _script("scripts.chat_eval", "--run", run, *_bundle(choices, "hub"))
    folder = base_dir() / "runs" / run
    return [
        Step("learn to chat", _launch(choices.gpus or 1, "scripts.chat_sft", *words, "--resume", "auto")),
        Step("ask it", ask, done=evaluation_is_current(folder, "chat_evaluation.json")),
    ]


def _script(module: str, *words: object) -> list[str]:
    return [sys.executable, "-m", module, *map(str, words)]


def _launch(devices: int, module: str, *words: object) -> list[str]:
    if devices == 1:
        return _script(module, *words)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={devices}"]
    return [*launcher, "-m", module, "--", *map(str, words)]  # else torchrun takes some of them for its own
