"""Starting runs in tests, and comparing what they leave."""

import json
from pathlib import Path

import torch

from nanogka.checkpoint import latest_valid, list_checkpoints, load_checkpoint
from nanogka.common.distributed import Ranks
from nanogka.common.runtime import Hardware
from nanogka.data.conversation import Conversation
from nanogka.runs import read_metrics
from nanogka.train.budget import plan_budget
from nanogka.train.optimizer import Schedule
from nanogka.train.plan import About, Machine, MicroBatch, TrainPlan
from nanogka.train.run_log import RunLog
from scripts import base_train, chat_sft

CLOCK = set("tokens_per_second flops_per_second images_per_second seconds total_seconds".split())
CLOCK |= {"data_wait", "created", "peak_memory"}


def train(*words):
    return base_train.main([str(word) for word in words])


def fine_tune(*words):
    """Fine-tune in a dozen steps."""
    flags = "--total-batch-size 256 --num-iterations 12 --lr-scale 1 --eval-every 5 --compile off --device cpu"
    return chat_sft.main([*flags.split(), *map(str, words)])


def write_talk(path, count=80, bad=()):
    """A JSONL from which there is something to learn in a dozen steps."""
    lines = []
    for i in range(count):
        question, answer = ("the cat", "a dog") if i % 2 else ("the river", "a house")
        lines.append(json.dumps(Conversation.of(f"{question} {i}", answer).to_json()))
    lines[10:10] = bad
    path.write_text("\n".join(lines) + "\n")
    return path


def die_before(step, setattr=setattr):
    """Trainings end as by Ctrl-C before the update after `step`."""
    original = Schedule.apply

    def apply(self, optimizers, at):
        if at == step:
            raise KeyboardInterrupt
        return original(self, optimizers, at)

    setattr(Schedule, "apply", apply)


def trace(folder, *kinds):
    """Everything a run logged (of some kinds), except what the clock and the run's name decide."""
    lines = read_metrics(folder / "metrics.jsonl")
    chosen = [line for line in lines if not kinds or line["kind"] in kinds]
    return [{name: value for name, value in line.items() if name not in CLOCK | {"tag"}} for line in chosen]


def losses(folder):
    return [line["loss"] for line in trace(folder, "train")]


def saved(folder):
    """The names of a run's checkpoints."""
    return [path.name for path in list_checkpoints(folder / "checkpoints")]


def newest(folder):
    """The newest checkpoint of a run, loaded."""
    return load_checkpoint(latest_valid(folder / "checkpoints")[0])


def bits(folder):
    """The bytes of all weights and optimizer states in the newest checkpoint of a run, by name."""
    checkpoint = newest(folder)
    state = {(n, k): v for n, entry in checkpoint.optimizer["state"].items() for k, v in entry.items()}
    return {name: value.numpy().tobytes() for name, value in (checkpoint.weights | state).items()}


class Recorder(RunLog):
    """A log that only remembers what the loop logs of its steps."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def log(self, kind, step, **values):
        self.lines.append(values)


def toy_plan(config, settings, steps, accumulation, ranks=None):
    """A plan of a run that leaves no files, whose steps have 2¹³ tokens."""
    return TrainPlan(
        settings=settings,
        config=config,
        tokenizer=None,
        budget=plan_budget(config, num_iterations=steps, total_batch_size=2**13),
        batch=MicroBatch(1, accumulation, config.sequence_len),
        folder=Path("none"),
        machine=Machine(ranks or Ranks(), torch.device("cpu"), torch.float32, Hardware("a CPU"), False, "", False),
        about=About(facts={}, data=""),
    )
