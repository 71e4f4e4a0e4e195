"""A small base folder with every kind of file, and scripts that run on it in this process or in one to be killed."""

import contextlib
import gc
import importlib
import io
import json
import os
import random
import re
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from rank_worlds import CONTEXT
from world import document, make_text, make_tokenizer

TINY = "--sequence-len 32 --total-batch-size 64 --device-batch-size 2 --device cpu --compile off --dtype float32"
STEPS = "--num-iterations 4 --eval-every 2 --eval-tokens 128 --save-every 2 --resume auto"
EVALUATE = "--run mine --eval tasks --tasks copa --device cpu --dtype float32"
TIMES = re.compile(rb'"([^"]*(second|created|data_wait|peak_memory)[^"]*)": ("[^"]*"|[^,}\n]*)')


@dataclass(frozen=True)
class Outcome:
    """The end of a script."""

    code: int | None  # None after a traceback
    out: str
    err: str
    error: BaseException | None = None


def call(script: str, *words: object) -> Outcome:
    """Run a script's `main` in this process."""
    main = importlib.import_module(f"scripts.{script}").main
    out, err, code, error = io.StringIO(), io.StringIO(), None, None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(word) for word in words])
        except Exception as raised:
            error = raised
    return Outcome(code, out.getvalue(), err.getvalue(), error)


def start(base: Path, words: tuple, log: Path):
    """Start a script in a process forked from one that has torch loaded. It prints to `log`."""
    process = CONTEXT.Process(target=_child, args=(base, log, [str(word) for word in words]), daemon=True)
    process.start()
    return process


def _child(base: Path, log: Path, words: list[str]) -> None:
    for number in (1, 2):
        os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND), number)
    os.environ["NANOGKA_BASE_DIR"] = str(base)
    gc.freeze()  # as in `rank_worlds`
    torch.set_num_threads(1)
    sys.exit(importlib.import_module(f"scripts.{words[0]}").main(words[1:]))


# ---- words of scripts ----


def pretrain(base: Path, run: str, *words: object) -> tuple:
    """A training of four steps."""
    data = ("--data", base / "shards", "--tokenizer", "tiny", "--depth", 1, "--run", run)
    return ("base_train", *data, *TINY.split(), *STEPS.split(), *words)


def fine_tune(base: Path, run: str, *words: object) -> tuple:
    """A fine-tuning of four steps."""
    data = ("--base", "mine", "--data", base / "talk.jsonl", "--run", run)
    return ("chat_sft", *data, *TINY.split(), *STEPS.split(), *words)


def evaluate(base: Path, *words: object) -> tuple:
    """An evaluation on the bundle."""
    return ("base_eval", *EVALUATE.split(), "--eval-bundle", base / "bundle.zip", *words)


# ---- files ----


def results(base: Path, *patterns: str) -> dict[str, bytes]:
    """The files that a script has made, without times."""
    files = (path for pattern in patterns for path in base.glob(pattern) if path.is_file())
    return {path.name: TIMES.sub(b"", path.read_bytes()) for path in files}


def build(base: Path) -> None:
    """Fill an empty base folder."""
    rng = random.Random(0)
    make_text(base / "text", rng, 40)
    make_tokenizer(base)
    (base / "shards").mkdir()
    for name in ("a", "b"):
        pq.write_table(pa.table({"text": [document(rng) for _ in range(30)]}), base / "shards" / f"{name}.parquet")
    for i in range(60):
        asked = {"role": "user", "content": f"{document(rng)[:20]} {i}"}
        with (base / "talk.jsonl").open("a") as talk:
            talk.write(json.dumps({"messages": [asked, {"role": "assistant", "content": "a dog"}]}) + "\n")
    items = [{"query": document(rng)[:30], "choices": ["the river", "a house"], "gold": i % 2} for i in range(14)]
    task = {"label": "copa", "dataset_uri": "copa.jsonl", "num_fewshot": 1, "icl_task_type": "multiple_choice"}
    with zipfile.ZipFile(base / "bundle.zip", "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr("eval_data/copa.jsonl", "".join(json.dumps(item) + "\n" for item in items))
        bundle.writestr("core.yaml", json.dumps({"icl_tasks": [task]}))
        bundle.writestr("eval_meta_data.csv", "Eval Task,Random baseline\ncopa,50\n")
    for words in (pretrain(base, "mine"), pretrain(base, "other", "--seed", 2), evaluate(base)):
        outcome = call(*words)
        assert outcome.code == 0, outcome
