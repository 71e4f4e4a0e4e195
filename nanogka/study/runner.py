"""Runs the jobs of a study side by side: each is a training and its measurement, processes of their own.

What a job has come to is one line of the results file, written when all of it is known; a job whose line is there is
never run again, on whatever machine the line was made. An unfinished one resumes from its last checkpoint. Under
NANOGKA_BASE_DIR/studies/<name>:

    runs/<id>/          the run, as scripts.base_train leaves it; without its checkpoints once the line is written
    logs/<id>.log       what its processes printed
    failures.jsonl      what failed, when, and the end of its log
"""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TextIO

import torch
from filelock import FileLock, Timeout

from nanogka.data import Corpus, open_corpus
from nanogka.formatting import duration, plain_table, scientific
from nanogka.model import count
from nanogka.problems import Problems
from nanogka.runs import CONFIG, read_config
from nanogka.runtime import base_dir
from nanogka.study.grid import Grid, Job, deciding_defaults, settings_key, to_words
from nanogka.study.measure import describe_run
from nanogka.study.plan import Plan, plan
from nanogka.tokenizer import Tokenizer
from nanogka.train.horizon import Horizon
from nanogka.train.loop import EXIT_NON_FINITE
from nanogka.train.setup import build_horizon, load_tokenizer, rows_per_device

CODE = Path(__file__).parents[2]  # the folder from which `-m scripts.base_train` is found
RESOLVED = {"target_flops", "target_param_data_ratio", "num_iterations", "total_batch_size", "dtype"}  # in config.yaml
POLL = 0.2  # seconds between looks at the processes
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
SET_PARENT_DEATH_SIGNAL = 1  # of Linux' prctl
SHOWN = 300  # characters of a failed job's log in the line about it


NAMES = frozenset({"id", "family", "size", "settings", "val_bpb"})  # that every line of a study's results has


def read_results(path: Path, names: Collection[str] = NAMES) -> list[dict]:
    """The lines of a results file that have all of `names`.

    Damaged ones, such as one that a crash cut short, are left out and counted on stderr.
    """
    rows, damaged = [], 0
    for line in path.read_bytes().splitlines() if path.is_file() else []:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict) and set(names) <= set(row):
            rows.append(row)
        else:
            damaged += 1
    if damaged:
        print(f"{path}: {damaged} damaged lines left out", file=sys.stderr)
    return rows


def append_line(path: Path, content: dict) -> None:
    """Append one JSON object as a line, in one write that reaches the disk before this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cut = path.is_file() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
    line = ("\n" if cut else "") + json.dumps(content, allow_nan=False) + "\n"
    with path.open("ab", buffering=0) as file:
        file.write(line.encode())
        os.fsync(file.fileno())


@dataclass
class Running:
    """A job at work: its place among the workers, what it does (`train` or `measure`), its process, its log, when it
    began, and how many of the study's signals it has got."""

    job: Job
    id: str
    slot: int
    doing: str
    process: subprocess.Popen
    log: TextIO
    began: float
    told: int


class Study:
    """A grid with its data and its results: what is done, what is to do.

    Args:
        results: the file of finished jobs.
        workers: jobs side by side; None for one per GPU, or per core where there is none.
        families, sizes: only these; empty for all.
        say: takes each line for people.

    Raises:
        ValueError: a line for each thing that is wrong with data, tokenizer, names or jobs.
    """

    def __init__(
        self,
        grid: Grid,
        results: Path,
        workers: int | None = None,
        families: tuple[str, ...] = (),
        sizes: tuple[str, ...] = (),
        say: Callable[[str], None] = print,
    ) -> None:
        problems = Problems()
        self.grid, self.results, self.families, self.sizes, self.say = grid, results, families, sizes, say
        self.folder = base_dir() / "studies" / grid.name
        corpus = problems.attempt(lambda: open_corpus(grid.data))
        confirm = problems.attempt(lambda: open_corpus(grid.confirm)) if grid.confirm else None
        tokenizer = problems.attempt(lambda: load_tokenizer(grid.tokenizer))
        for name in families:
            problems.check(name in grid.families, "--only", name, ", ".join(grid.families))
        for name in sizes:
            problems.check(name in grid.sizes, "--sizes", name, ", ".join(grid.sizes))
        problems.check(workers is None or workers >= 1, "--workers", workers, "an integer of at least 1")
        problems.raise_any()
        self.corpus: Corpus = corpus
        self.tokenizer: Tokenizer = tokenizer
        # Children have a base folder of their own, so they are told where the data lie.
        self.paths = {"data": str(corpus.path.resolve()), "confirm": str(confirm.path.resolve()) if confirm else ""}
        self.rows: dict[tuple, dict] = {}
        for row in read_results(results):
            self.add(row)
        self.costs: dict[str, Horizon] = {}
        for job in [*self.plan().ready, *self.plan().waiting]:
            problems.attempt(lambda job=job: self.horizon(job))
        problems.lines = list(dict.fromkeys(problems.lines))
        problems.raise_any()

        self.gpus = visible_gpus() if grid.settings.get("device", "auto") != "cpu" else []
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.workers = workers or len(self.gpus) or cores
        self.threads = max(1, cores // self.workers)
        self.running: list[Running] = []
        self.failed: dict[str, str] = {}
        self.stopped: signal.Signals | None = None
        self.signals = 0
        self.began, self.flops_done = time.monotonic(), 0.0

    # ---- what there is ----

    def id(self, job: Job) -> str:
        """The id of a job with this study's data."""
        return job.identity(self.corpus.fingerprint, self.tokenizer.fingerprint)

    def find(self, job: Job) -> dict | None:
        """The line of a finished job."""
        return self.rows.get((job.key, self.corpus.fingerprint, self.tokenizer.fingerprint))

    def add(self, row: dict) -> None:
        """Take a finished job's line into account."""
        key = settings_key(row["settings"], row.get("defaults", {}))
        self.rows[key, row.get("corpus"), row.get("tokenizer")] = row

    def plan(self) -> Plan:
        """The jobs, see `nanogka.study.plan.plan`."""
        return plan(self.grid, self.find, self.families, self.sizes)

    def horizon(self, job: Job) -> Horizon:
        """Steps and FLOPs of a job. Raises ValueError, with the job's name, if base_train would refuse it."""
        if job.key not in self.costs:
            try:
                config = job.settings.config(self.tokenizer.vocab_size)
                horizon = build_horizon(job.settings, config)
                rows_per_device(job.settings, horizon, config.sequence_len, 1)
            except ValueError as error:
                lines = str(error).splitlines()
                raise ValueError("\n".join(f"{job.family} at {job.size}: {line}" for line in lines)) from error
            self.costs[job.key] = horizon
        return self.costs[job.key]

    def describe(self) -> str:
        """All jobs as a table, with their costs, and what is done."""
        now, rows = self.plan(), []
        states = [(job, "done" if self.find(job) else "to do") for job in now.ready]
        states += [(job, "when the sweep has chosen") for job in now.waiting]
        for job, state in states:
            horizon, known = self.horizon(job), state != "when the sweep has chosen"
            accounting = count(job.settings.config(self.tokenizer.vocab_size))
            swept = ", ".join(f"{name} {value if known else '?'}" for name, value in job.swept)
            costs = [f"{accounting.total_parameters:,}", f"{accounting.flops_per_token:.4g}"]
            costs += [f"{horizon.num_iterations:,}", scientific(horizon.flops)]
            rows.append((self.id(job) if known else "", job.family, job.size, f"{job.seed}", swept, state, *costs))
        head = ("id", "family", "size", "seed", "swept", "state", "parameters", "FLOPs/token", "steps", "FLOPs")
        left = sum(self.horizon(job).flops for job, state in states if state != "done")
        done = sum(state == "done" for _, state in states)
        total = f"{len(states)} jobs, {done} done; {scientific(left)} FLOPs to do, {self.workers} at a time"
        return f"{plain_table([head, *rows], left=6)}\n{total}"

    # ---- running ----

    def run(self) -> int:
        """Run what is to do; returns the exit code: 0 all done, 1 something failed, 130 or 143 stopped by a signal.

        Raises:
            ValueError: if another process runs this study.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise ValueError(f"{self.folder}: another process runs this study; wait for it") from None
        self.tokenizer.save(self.folder / "tokenizer")
        handlers = {number: signal.signal(number, self.stop) for number in EXIT_CODES}
        try:
            self.fill()
            while self.running:
                time.sleep(POLL)
                for one in self.running:
                    while one.told < self.signals:
                        one.process.send_signal(self.stopped)
                        one.told += 1
                ended = [(one, code) for one in self.running if (code := one.process.poll()) is not None]
                for one, code in ended:
                    self.end(one, code)
                if ended:
                    self.fill()
        finally:
            for one in self.running:  # only where this loop itself failed
                one.process.terminate()
            for number, handler in handlers.items():
                signal.signal(number, handler)
            lock.release()
        return self.conclude()

    def stop(self, number: int, frame: object) -> None:
        """Handle a signal: start nothing more. The loop passes it on, so that the trainings save and stop."""
        self.stopped = signal.Signals(number)
        self.signals += 1

    def fill(self) -> None:
        """Give every free worker the next job."""
        busy = {one.id for one in self.running}
        left = [job for job in self.plan().ready if self.find(job) is None]
        jobs = [job for job in left if self.id(job) not in {*busy, *self.failed}]
        slots = sorted(set(range(self.workers)) - {one.slot for one in self.running})
        for slot, job in zip(slots, jobs):
            if self.stopped:
                return
            self.say(f"start {job.title} ({scientific(self.horizon(job).flops)} FLOPs)")
            id = self.id(job)
            (self.folder / "logs").mkdir(exist_ok=True)
            log = (self.folder / "logs" / f"{id}.log").open("a", encoding="utf-8")
            # Defaults are said as well: they stay as they are while the study runs, whatever happens to the code.
            defaults = {name: value for name, value in deciding_defaults().items() if value is not None}
            words = ["scripts.base_train", *to_words(defaults, Problems()), *job.words]
            words += [f"--run={id}", f"--data={self.paths['data']}"]
            words += [f"--tokenizer={self.folder / 'tokenizer'}", self.how_to_begin(job)]
            process = self.launch(words, slot, log, own_base=True)
            self.running.append(Running(job, id, slot, "train", process, log, time.monotonic(), self.signals))

    def how_to_begin(self, job: Job) -> str:
        """`--resume=auto`, or `--overwrite` where its folder has a run made when a default was another."""
        folder = self.folder / "runs" / self.id(job)
        if (folder / CONFIG).is_file():
            saved, now = read_config(folder)["settings"], job.settings
            compared = [name for name in deciding_defaults() if name in saved and name not in RESOLVED]
            if any(saved[name] != getattr(now, name) for name in compared):
                return "--overwrite"
        return "--resume=auto"

    def launch(self, words: list[str], slot: int, log: TextIO, own_base: bool = False) -> subprocess.Popen:
        """Start a module of ours on a worker's device.

        In a session of its own: a Ctrl-C of the terminal reaches the study alone, which passes it on once. Where the
        system can tell (Linux), it dies with a study that is killed: nobody else would end it.
        """
        environment = dict(os.environ, OMP_NUM_THREADS=str(self.threads))
        if own_base:
            environment["NANOGKA_BASE_DIR"] = str(self.folder)
        if self.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpus[slot % len(self.gpus)]
        libc = ctypes.CDLL(None) if sys.platform == "linux" else None

        def end_with_parent() -> None:
            if libc:
                libc.prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)

        return subprocess.Popen(
            [sys.executable, "-m", *words],
            cwd=CODE,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )

    def end(self, one: Running, code: int) -> None:
        """Go on with a job whose process has ended: measure it, write its line, or say that it failed."""
        folder = self.folder / "runs" / one.id
        measured = folder / "measured.json"
        if one.doing == "train" and code == 0 and not self.stopped:
            words = ["nanogka.study.measure", f"--run={folder}", f"--data={self.paths['data']}"]
            words += [f"--confirm={self.paths['confirm']}", f"--output={measured}"]
            if self.grid.measure_tokens is not None:
                words.append(f"--tokens={self.grid.measure_tokens}")
            one.process, one.doing = self.launch(words, one.slot, one.log), "measure"
            return
        self.running.remove(one)
        one.log.close()
        diverged = one.doing == "train" and code == EXIT_NON_FINITE
        if (one.doing == "measure" and code == 0) or diverged:
            values = {"val_bpb": None, "confirm_bpb": None} if diverged else json.loads(measured.read_text())
            self.record(one, values)
        elif not self.stopped:
            self.fail(one, code)

    def record(self, one: Running, values: dict) -> None:
        """Append the line of a finished job; `values`: of its measurement."""
        job, folder = one.job, self.folder / "runs" / one.id
        about = {"id": one.id, "family": job.family, "size": job.size, "depth": job.settings.depth, "seed": job.seed}
        about |= {"swept": dict(job.swept), "settings": job.deciding, "defaults": deciding_defaults()}
        about |= {**values, **describe_run(folder)}
        about |= {"corpus": self.corpus.fingerprint, "tokenizer": self.tokenizer.fingerprint}
        about["measured"] = datetime.now(timezone.utc).isoformat(timespec="seconds")
        append_line(self.results, about)
        self.add(about)
        if not self.grid.keep:
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        self.flops_done += self.horizon(job).flops
        outcome = "diverged" if values["val_bpb"] is None else f"val_bpb {values['val_bpb']:.4f}"
        self.say(f"done  {job.title}: {outcome} in {duration(time.monotonic() - one.began)}; {self.progress()}")

    def fail(self, one: Running, code: int) -> None:
        """Keep a failure apart from the results, and say it."""
        text = Path(one.log.name).read_text(encoding="utf-8", errors="replace").strip()
        self.failed[one.id] = one.job.title
        entry = {"id": one.id, "job": one.job.title, "doing": one.doing, "exit_code": code, "log": one.log.name}
        entry["when"] = datetime.now(timezone.utc).isoformat(timespec="seconds")
        append_line(self.folder / "failures.jsonl", entry | {"end": text[-2000:]})
        last = text.splitlines()[-1][-SHOWN:] if text else "it said nothing"
        self.say(f"FAILED {one.job.title} (exit code {code}, {one.log.name}): {last}")

    def progress(self) -> str:
        """The number of jobs done, and the time left at the pace of those done in this call."""
        now = self.plan()
        to_do = [job for job in now.ready if not self.find(job)] + now.waiting
        left = sum(self.horizon(job).flops for job in to_do)
        total = len(now.ready) + len(now.waiting)
        pace = self.flops_done / (time.monotonic() - self.began)
        return f"{total - len(to_do)} of {total} jobs, about {duration(left / pace)} left"

    def conclude(self) -> int:
        """Say how the study stands; returns the exit code."""
        if self.stopped:
            self.say(f"stopped by {self.stopped.name}; the same command goes on from there")
            return EXIT_CODES[self.stopped]
        now = self.plan()
        for family in now.hopeless:
            self.say(f"{family}: every rate of a stage of the sweep diverged; give it lower ones")
        for title in self.failed.values():
            self.say(f"failed: {title}; the same command tries it again")
        missing = [job for job in now.ready if not self.find(job)] + now.waiting
        self.say(f"{len(self.rows)} results in {self.results}; {len(missing)} jobs of the grid are missing")
        return 1 if missing else 0


def visible_gpus() -> list[str]:
    """The GPUs of this machine that may be used, as CUDA_VISIBLE_DEVICES names them."""
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    found = torch.cuda.device_count()
    return named[:found] if named else [str(i) for i in range(found)]
