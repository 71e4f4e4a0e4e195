"""Folders that look like a finished run's, in the layout of docs/architecture.md, without any training."""

import json
import math
from pathlib import Path

import yaml

from nanogka.model import GPTConfig, model_costs

SPEEDS = {"gaussian": [100.0, 3000.0, 3100.0, 3200.0, 9000.0], "dot_product": [100.0, 2000.0, 2000.0, 2500.0, 2500.0]}
BATCH = 1024


def write_corpus(folder: Path) -> Path:
    """A corpus of small text files; some of them are validation."""
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(40):
        words = " ".join(f"word{(i * j) % 37} and" for j in range(60))
        (folder / f"{i:02d}.txt").write_text(f"Document {i}. {words}.\n")
    return folder


def sigma(config: GPTConfig, layer: int, head: int, step: int) -> float:
    """σ of a head after so many steps: the first head of layer 0 stays, all others grow."""
    return config.head_dim**0.25 * (1 + 0.01 * step * (layer + head))


def write_run(
    folder: Path,
    attention: str = "gaussian",
    depth: int = 2,
    steps: int = 5,
    val_bpb: float = 1.25,
    settings: dict | None = None,
    facts: dict | None = None,
    evaluation: dict | None = None,
) -> Path:
    """Write config.yaml and metrics.jsonl of a run that did `steps` of 5 steps, and evaluation.json unless None."""
    config = GPTConfig.from_depth(depth, attention, sequence_len=64, vocab_size=300)
    accounting = model_costs(config)
    folder.mkdir(parents=True)
    run = {
        "tag": folder.name,
        "parameters": accounting.total_parameters,
        "flops_per_token": accounting.flops_per_token,
        "total_batch_size": BATCH,
        "num_iterations": 5,
        "hardware": "Example CPU",
        "peak_flops": None,
        "world_size": 1,
        "device": "cpu",
        "dtype": "float32",
        "torch": "2.9.0",
        "corpus": "f" * 64,
        "created": "2026-01-02T03:04:05+00:00",
    } | (facts or {})
    chosen = {"attention": attention, "depth": depth, "run": folder.name, "seed": 1, "tokenizer": "default"}
    chosen |= {"data": "nowhere", "total_batch_size": BATCH, "num_iterations": 5, "matrix_lr": 0.02, **(settings or {})}
    document = {"model": config.to_dict(), "settings": chosen, "run": run}
    (folder / "config.yaml").write_text(yaml.safe_dump(document))
    lines = [{"kind": "run", "step": 0, **run}, {"kind": "eval", "step": 0, "tokens": 0, "flops": 0, "val_bpb": 5.0}]
    pattern = config.mixer_pattern
    layers = [i for i in range(depth) if pattern[i % len(pattern)] == "G"]
    for step in range(1, steps + 1):
        speed = SPEEDS.get(attention, SPEEDS["gaussian"])[(step - 1) % 5]
        done = {"tokens": step * BATCH, "flops": step * BATCH * accounting.flops_per_token}
        lines.append(
            {"kind": "train", "step": step, "loss": math.log(300) / step**0.3, "smooth_loss": math.log(300) / step**0.2}
            | {"tokens_per_second": speed, "flops_per_second": speed * accounting.flops_per_token, "seconds": 30.0}
            | {"bandwidth": [[sigma(config, layer, head, step) for head in range(config.n_head)] for layer in layers]}
            | {"bandwidth_layers": layers, **done}
        )
    lines.append({"kind": "eval", "step": steps, "val_bpb": val_bpb, "val_tokens": 256, **done})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if evaluation is not None:
        (folder / "evaluation.json").write_text(json.dumps(evaluation))
    return folder


def evaluation(accuracy: float = 0.52, val: float = 1.2345) -> dict:
    """Document of scripts.base_eval: tasks and two samples."""
    tasks = [("true_continuation", accuracy, 0.25), ("last_word", 0.081, 0.0)]
    return {
        "step": 5,
        "bpb": {"train": 1.2001, "val": val},
        "bpb_intervals": {"train": None, "val": [1.2, 1.27]},
        "bpb_counts": {"train": {"learned": True}, "val": {"bytes": 4321, "tokens": 999}},
        "tasks": [
            {"name": name, "type": "multiple_choice", "accuracy": right, "centered": (right - chance) / (1 - chance)}
            | {"stderr": 0.035, "chance": chance, "items": 200, "seconds": 1.5}
            for name, right, chance in tasks
        ],
        "six_task_mean": None,
        "core": None,
        "samples": [{"prompt": "A list", "text": " is `a` ```fence```\nand | more"}, {"prompt": "", "text": "🎈"}],
    }


def write_chat(folder: Path, base: str, evaluation: dict | None = None) -> Path:
    """Write the folder of a run that was fine-tuned from the run `base`."""
    write_run(folder, facts={"kind": "chat", "base": {"run": base, "step": 5}}, settings={"data": "talk"})
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps({"kind": "eval", "step": s, "val_loss": v}) + "\n" for s, v in ((0, 9), (5, 0.5)))
    if evaluation is not None:
        (folder / "chat_evaluation.json").write_text(json.dumps(evaluation))
    return folder


def chat_evaluation() -> dict:
    """A document of scripts.chat_eval: two tasks answered in words, 300 items of which 200 differ, one by a letter."""
    right = [{"prompt": "Spell bari.", "reply": "b a r i", "answer": "b a r i", "right": True}] * 2
    wrong = [{"prompt": "Spell ```x```.", "reply": "y | \x1b[2J", "answer": "x", "right": False}]
    letters = [{"prompt": "Which?", "reply": "A", "answer": "B", "right": False}]
    about, words = {"stderr": 0.02, "items": 300, "chance": 0.125}, {"type": "generation", "measures": "letters"}
    return {
        "step": 5,
        "tasks": [
            {"name": "spelling", "accuracy": 0.875, "replies": right} | words | about | {"distinct": 200},
            {"name": "spelling-reworded", "accuracy": 0.25, "replies": wrong} | words | about,
            {"name": "mmlu", "type": "letter", "measures": "subjects", "accuracy": 0.25, "replies": letters} | about,
        ],
    }
