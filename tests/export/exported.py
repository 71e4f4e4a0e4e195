"""A run that was hardly trained, and its exported folder."""

import json

from generate_models import byte_tokenizer, small_model

from nanogka.runs import LoadedRun

WORDS = [b" the", b"The", b"and ", b"\n\n", "é".encode(), *(f" {letter}".encode() for letter in "abcdefghijklmnopqrsu")]
STEP = 7


def make_run(folder, kind="base", pattern="SGD", evaluation=None, **shape) -> LoadedRun:
    """A run with random weights, 3 layers; its folder holds metrics and perhaps an evaluation."""
    tokenizer = byte_tokenizer(WORDS)
    model = small_model(pattern, vocab_size=tokenizer.vocab_size, **{"sequence_len": 64} | shape)
    facts = {"tag": folder.name, "kind": kind, "total_batch_size": 1000, "flops_per_token": 2_000_000}
    facts |= {"hardware": "Example CPU", "dtype": "float32", "base": {"run": "d3-base"}}
    folder.mkdir(parents=True, exist_ok=True)
    lines = [{"kind": "train", "step": step, "total_seconds": 30.0 * step} for step in range(1, 10)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if evaluation is not None:
        name = "chat_evaluation.json" if kind == "chat" else "evaluation.json"
        (folder / name).write_text(json.dumps(evaluation))
    config = {"run": facts, "settings": {"data": "fineweb-edu", "seed": 3}, "model": model.config.to_dict()}
    return LoadedRun(folder, config, tokenizer, STEP, folder / "checkpoints", model)
