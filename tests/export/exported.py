"""A run that was hardly trained, and its exported folder."""

import json

import torch
from generate_models import byte_tokenizer, small_model

from nanogka.data.conversation import OUTPUT, PYTHON, TEXT, ChatFormat, Conversation, Part
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


def make_calling_run(folder) -> LoadedRun:
    """A chat run that answers README's question with the calculator, and another without: it knows nothing else."""
    run = make_run(folder, "chat", pattern="SGD", sequence_len=128)
    call = [Part(PYTHON, "2 + 4 + 3"), Part(OUTPUT, "9"), Part(TEXT, "9")]
    conversations = [Conversation.of("What is 2 + 4 + 3?", call), Conversation.of("How do you spell kif?", "k i f")]
    rendered = ChatFormat(run.tokenizer).render_many(conversations)
    optimizer = torch.optim.AdamW(run.model.parameters(), lr=3e-3)
    for _ in range(60):
        for ids, learned in rendered:
            targets = torch.tensor([[i if wanted else -1 for i, wanted in zip(ids[1:], learned[1:])]])
            run.model(torch.tensor([ids[:-1]]), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
    return run
