"""A small world that has every kind of file, and a way to run a script in this process and see all that it did."""

import contextlib
import importlib.util
import io
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from matplotlib.figure import Figure
from world import document, make_text, make_tokenizer

from nanogka.kernels import cpu
from nanogka.study import runner
from nanogka.study.grid import read_grid
from nanogka.study.runner import Study
from nanogka.train import costs

IMAGES = importlib.util.find_spec("timm") is not None
if IMAGES:
    from pictures import make_folder as make_pictures

TINY = (
    "--sequence-len 32 --total-batch-size 64 --device-batch-size 2 --device cpu --compile off --dtype float32".split()
)
STEPS = "--num-iterations 4 --eval-every 2 --eval-tokens 128 --save-every 2 --resume auto".split()


@dataclass(frozen=True)
class Outcome:
    """The end of a script."""

    code: int | None  # None after a traceback
    out: str
    err: str
    error: BaseException | None = None


def call(script: str, *words: object) -> Outcome:
    """Run a script's `main` in this process."""
    main = importlib.import_module(script if "." in script else f"scripts.{script}").main
    out, err = io.StringIO(), io.StringIO()
    code, error = None, None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(word) for word in words])
        except SystemExit as ended:  # argparse's own
            code = ended.code
        except Exception as raised:
            error = raised
    return Outcome(code, out.getvalue(), err.getvalue(), error)


class TooLongError(BaseException):
    """A case that did not end in time."""


@contextlib.contextmanager
def patience(seconds: int) -> Iterator[None]:
    """Raise TooLongError in what lasts longer."""

    def ring(number: int, frame: object) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


TIMES = re.compile(rb'"([^"]*(second|created|data_wait|peak_memory|source)[^"]*)": ("[^"]*"|[^,}\n]*)')


def made(base: Path, *patterns: str) -> dict[str, list[bytes]]:
    """The lines of the files that a script has made, without times."""
    files = (path for pattern in patterns for path in base.glob(pattern) if path.is_file())
    return {path.name: TIMES.sub(b"", path.read_bytes()).splitlines() for path in files}


def needed(*command: object) -> None:
    """Run a script that must succeed."""
    outcome = call(*command)
    assert outcome.code == 0, (command, outcome)


def pretrain(base: Path, data: Path, *words: object) -> tuple:
    """The words of a training of four steps in the base folder."""
    return ("base_train", "--data", data, "--tokenizer", "tiny", "--depth", 1, *TINY, *STEPS, *words)


def fine_tune(base: Path, *words: object) -> tuple:
    """The words of a fine-tuning of four steps on the conversations of the base folder."""
    return ("chat_sft", "--base", "mine", "--data", base / "talk.jsonl", *TINY, *STEPS, *words)


def evaluation(base: Path, *words: object) -> tuple:
    """The words of an evaluation on the bundle of the base folder."""
    words = ("--eval", "tasks", "--eval-bundle", base / "bundle", "--tasks", "copa,mine", *words)
    return ("base_eval", "--run", "mine", "--device", "cpu", "--dtype", "float32", *words)


def build(base: Path) -> None:
    """Fill an empty base folder: corpora, a tokenizer, runs, a bundle, a study, conversations."""
    rng = random.Random(0)
    make_text(base / "text", rng, 40)
    (base / "lines").mkdir()
    lines = [json.dumps({"text": document(rng)}) for _ in range(40)]
    (base / "lines" / "all.jsonl").write_text("\n".join(lines) + "\n")
    (base / "shards").mkdir()
    for name in ("a", "b"):
        pq.write_table(pa.table({"text": [document(rng) for _ in range(30)]}), base / "shards" / f"{name}.parquet")
    needed("make_shards", "--data", base / "lines", "--out", base / "made")
    make_tokenizer(base)
    needed(*pretrain(base, base / "shards", "--run", "mine"))
    needed(*pretrain(base, base / "text", "--run", "other", "--seed", 2))
    talk = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "a dog"}]
    conversations = [{"messages": [{**talk[0], "content": f"{document(rng)[:20]} {i}"}, talk[1]]} for i in range(60)]
    (base / "talk.jsonl").write_text("".join(json.dumps(one) + "\n" for one in conversations))
    needed(*fine_tune(base, "--run", "mine-chat"))
    for name in ("mine", "mine-chat"):  # stopped at step 2
        half = shutil.copytree(base / "runs" / name, base / "runs" / name.replace("mine", "half"))
        shutil.rmtree(half / "checkpoints" / "step_000004")
    write_bundle(base / "bundle", rng)
    needed(*evaluation(base))
    families = {name: {"flags": {"attention": name}} for name in ("dot_product", "gaussian")}
    settings = {"sequence_len": 32, "total_batch_size": 64, "device": "cpu", "dtype": "float32", "compile": "off"}
    sizes = {"tiny": {"depth": 1, "budget": 6e9, "seeds": [1]}}
    grid = {"data": str(base / "text"), "tokenizer": "tiny", "settings": settings, "sizes": sizes, "families": families}
    (base / "grid.yaml").write_text(yaml.safe_dump(grid))
    study = Study(read_grid(base / "grid.yaml"), base / "grid.jsonl")
    for job in study.plan().ready:
        folder = study.folder / "runs" / study.id(job)
        shutil.copytree(base / "runs" / "mine", folder)
    needed("study", base / "grid.yaml", "--workers", 1)
    if IMAGES:
        make_pictures(base / "pictures")
        small = "--img-size 8 --patch-size 4 --epochs 1 --batch-size 4 --device cpu --dtype float32 --model"
        needed("vision_train", "--data", base / "pictures", "--run", "seen", *small.split(), "deit_micro_gka_patch2_8")


def write_bundle(bundle: Path, rng: random.Random) -> None:
    """A bundle of two tasks, as a folder and as a .zip."""
    (bundle / "eval_data" / "commonsense_reasoning").mkdir(parents=True)
    for name in ("commonsense_reasoning/copa", "mine"):
        items = [{"query": document(rng)[:30], "choices": ["the river", "a house"], "gold": i % 2} for i in range(14)]
        (bundle / "eval_data" / f"{name}.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    entry = {"num_fewshot": 1, "icl_task_type": "multiple_choice"}
    names = {"copa": "commonsense_reasoning/copa.jsonl", "mine": "mine.jsonl"}
    tasks = [{"label": name, "dataset_uri": uri, **entry} for name, uri in names.items()]
    (bundle / "core.yaml").write_text(yaml.safe_dump({"icl_tasks": tasks}))
    (bundle / "eval_meta_data.csv").write_text("Eval Task,Random baseline\ncopa,50\nmine,50\n")
    with zipfile.ZipFile(bundle.with_suffix(".zip"), "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(bundle.rglob("*.*")):
            archive.write(file, file.relative_to(bundle))


@dataclass(frozen=True)
class World:
    """The base folder, and the copy from which it is made anew."""

    base: Path
    template: Path

    def restore(self) -> None:
        """Make the base folder as it was built."""
        shutil.rmtree(self.base, ignore_errors=True)
        shutil.copytree(self.template, self.base)


@contextlib.contextmanager
def environment(base: Path) -> Iterator[None]:
    """Set up what the scripts need: the base folder, no compiler, no drawing, no measuring of the machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NANOGKA_BASE_DIR", str(base))
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("CXX", "no-compiler")  # which would take longer than all the rest, in processes of their own
        patch.setattr(cpu, "unsupported_reason", lambda: "not tried")  # and in this one, where other tests want it
        for name in ("RANK", "NANOGKA_EVAL_BUNDLE_URL"):
            patch.delenv(name, raising=False)
        patch.setattr(costs, "measure_matmul", lambda *_: 1e12)
        patch.setattr(runner, "command", lambda words: ["true"])  # a study's trainings, of which the folders are there
        patch.setattr(Figure, "savefig", lambda self, path, **_: Path(path).write_bytes(b"drawn"))
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the old")))
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # as in the processes that are killed: another number rounds otherwise
        try:
            yield
        finally:
            torch.set_num_threads(threads)


def make_world(folder: Path) -> World:
    """Build a world in a folder."""
    world = World(folder / "base", folder / "template")
    with environment(world.base):
        world.base.mkdir()
        build(world.base)
        shutil.copytree(world.base, world.template)
    return world


# ---- scripts in processes of their own, to be killed ----

CONTEXT = multiprocessing.get_context("forkserver")
WRITERS = ("base_train", "base_eval", "chat_eval", "chat_sft", "make_shards", "report", "tok_train")
CONTEXT.set_forkserver_preload([f"scripts.{name}" for name in (*WRITERS, "visualize")] + ["torch._dynamo"])


def start(base: Path, words: tuple, log: Path) -> multiprocessing.Process:
    """Start a script in a process forked from a clean one that has torch loaded; it prints to `log`."""
    names = ("NANOGKA_BASE_DIR", "OMP_NUM_THREADS", "CXX")
    environment = {name: os.environ[name] for name in names}
    process = CONTEXT.Process(target=_child, args=(environment, log, [str(word) for word in words]), daemon=True)
    process.start()
    return process


def _child(environment: dict, log: Path, words: list[str]) -> None:
    for number in (1, 2):
        os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND), number)
    os.environ |= environment
    torch.set_num_threads(1)
    sys.exit(importlib.import_module(f"scripts.{words[0]}").main(words[1:]))
