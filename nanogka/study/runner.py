"""Runs the jobs of a study side by side; a job is a training and its measurement, each a process of its own.

A finished job is one line of the results file, written when all of it is known; a job whose line is there is never run
again, on whatever machine the line was made. An unfinished one resumes from its last checkpoint. Under
NANOGKA_BASE_DIR/studies/<name>:

    runs/<id>/          the run, as scripts.base_train leaves it; without its checkpoints once the line is written
    logs/<id>.log       what its processes printed; <id>.yaml beside it: the settings of the training
    failures.jsonl      what failed, when, and the end of its log
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import datetime, timezone
from pathlib import Path
from typing import TextIO

import torch
import yaml
from filelock import FileLock, Timeout
from pydantic import ValidationError

from nanogka.common.errors import Errors, in_one_line
from nanogka.common.files import base_dir, read_json
from nanogka.common.formatting import duration, plain_table, scientific
from nanogka.data import open_corpus
from nanogka.model import count
from nanogka.study.grid import Grid, Job
from nanogka.study.measure import describe_run
from nanogka.study.plan import Plan, Results, Row, append_line, plan_jobs, read_results
from nanogka.train.budget import TrainingBudget
from nanogka.train.pretraining import build_budget, load_tokenizer, plan_batch
from nanogka.train.trainer import EXIT_NON_FINITE

CODE = Path(__file__).parents[2]  # the folder from which `-m scripts.base_train` is found
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
SHOWN = 300  # characters of a failed job's log in the line about it


class Study:
    """A grid with its data and its results: what is done, what is to do; `log` takes each line for people.

    `families`, `sizes`: only these; empty for all. Raises ValueError, one line per problem with data, names or jobs.
    """

    def __init__(
        self,
        grid: Grid,
        results: Path,
        workers: int | None = None,
        families: tuple[str, ...] = (),
        sizes: tuple[str, ...] = (),
        log: Callable[[str], None] = print,
    ) -> None:
        errors = Errors()
        self.grid, self.path, self.families, self.sizes, self.log = grid, results, families, sizes, log
        self.folder = base_dir() / "studies" / grid.name
        corpus = errors.capture(lambda: open_corpus(grid.data))
        confirm = errors.capture(lambda: open_corpus(grid.confirm)) if grid.confirm else None
        self.tokenizer = errors.capture(lambda: load_tokenizer(grid.tokenizer))
        for flag, names, known in (("--only", families, grid.families), ("--sizes", sizes, grid.sizes)):
            for name in names:
                errors.require(name in known, flag, name, ", ".join(known))
        errors.raise_if_any()
        # The trainings have a base folder of their own, so they are told where the data lie.
        self.data, self.confirm = str(corpus.path.resolve()), str(confirm.path.resolve()) if confirm else ""
        protocol = {"corpus": corpus.fingerprint, "tokenizer": self.tokenizer.fingerprint}
        protocol |= {"confirm": confirm and confirm.fingerprint, "measure_tokens": grid.measure_tokens}
        self.results = Results(read_results(results), protocol)
        self.costs: dict[str, TrainingBudget] = {}
        plan = self.plan()
        for job in plan.done + plan.ready + plan.waiting:
            errors.capture(lambda job=job: self.horizon(job))
        errors.lines = list(dict.fromkeys(errors.lines))
        errors.raise_if_any()

        self.gpus = visible_gpus() if grid.settings.get("device", "auto") != "cpu" else []
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.workers = workers or len(self.gpus) or cores
        self.threads = max(1, cores // self.workers)
        self.processes: set[subprocess.Popen] = set()
        self.failed: dict[str, str] = {}
        self.stopped: signal.Signals | None = None
        self.began, self.flops_done = time.monotonic(), 0.0

    # ---- what there is ----

    def id(self, job: Job) -> str:
        """Twelve hexadecimal digits of a job's settings and data: the name of its folder."""
        content = [job.decisive, self.results.protocol["corpus"], self.results.protocol["tokenizer"]]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    def plan(self) -> Plan:
        return plan_jobs(self.grid, self.results.find, self.families, self.sizes)

    def horizon(self, job: Job) -> TrainingBudget:
        """Steps and FLOPs of a job. Raises ValueError, with the job's name, if base_train would refuse it."""
        id = self.id(job)
        if id not in self.costs:
            try:
                config = job.settings.config(self.tokenizer.vocab_size)
                horizon = build_budget(job.settings, config)
                plan_batch(job.settings, horizon, config.sequence_len, 1)
            except ValueError as error:
                lines = str(error).splitlines()
                raise ValueError("\n".join(f"{job.family} at {job.size}: {line}" for line in lines)) from error
            self.costs[id] = horizon
        return self.costs[id]

    def describe(self) -> str:
        plan, rows = self.plan(), []
        states = {"done": plan.done, "to do": plan.ready, "when a rate is chosen": plan.waiting}
        for state, job in [(state, job) for state, jobs in states.items() for job in jobs]:
            known = state in ("done", "to do")
            horizon, accounting = self.horizon(job), count(job.settings.config(self.tokenizer.vocab_size))
            rate = job.rate if known else "?"
            costs = [f"{accounting.total_parameters:,}", f"{accounting.flops_per_token:.4g}"]
            costs += [f"{horizon.num_iterations:,}", scientific(horizon.flops)]
            rows.append((self.id(job) if known else "", job.family, job.size, f"{job.seed}", rate, state, *costs))
        head = ("id", "family", "size", "seed", "lr_scale", "state", "parameters", "FLOPs/token", "steps", "FLOPs")
        total = f"{len(rows)} jobs, {len(plan.done)} done; {scientific(self.flops_left(plan))} FLOPs to do"
        return f"{plain_table([head, *rows], left=6)}\n{total}, {self.workers} at a time"

    def flops_left(self, plan: Plan) -> float:
        return sum(self.horizon(job).flops for job in plan.ready + plan.waiting)

    # ---- running ----

    def run(self) -> int:
        """Run what is to do; returns the exit code: 0 all done, 1 something failed, 130 or 143 stopped by a signal."""
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise ValueError(f"{self.folder}: another process runs this study; wait for it") from None
        self.tokenizer.save(self.folder / "tokenizer")
        handlers = {number: signal.signal(number, self.stop) for number in EXIT_CODES}
        try:
            with ThreadPoolExecutor(self.workers) as pool:
                self.work(pool)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            lock.release()
        return self.conclude()

    def stop(self, number: int, frame: object) -> None:
        """Handle a signal: start nothing more, and let the trainings save and stop."""
        self.stopped = signal.Signals(number)
        for process in list(self.processes):
            process.terminate()

    def work(self, pool: ThreadPoolExecutor) -> None:
        """Give every free worker the next job until there is none; a result may decide what comes next."""
        free = list(range(self.workers))
        running: dict[Future, tuple[Job, int]] = {}
        try:
            while True:
                taken = {*self.failed, *(self.id(job) for job, _ in running.values())}
                jobs = [job for job in self.plan().ready if self.id(job) not in taken]
                for job in jobs[: 0 if self.stopped else len(free)]:
                    self.log(f"start {job.title} ({scientific(self.horizon(job).flops)} FLOPs)")
                    slot = free.pop(0)
                    running[pool.submit(self.execute, job, slot)] = job, slot
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    free.append(running.pop(future)[1])
                    future.result()
        except BaseException:
            self.stop(signal.SIGTERM, None)  # or the pool would wait for the other trainings
            raise

    def execute(self, job: Job, slot: int) -> None:
        """Train and measure one job, and write its line; in a thread of its own."""
        id, began = self.id(job), time.monotonic()
        folder, config = self.folder / "runs" / id, self.folder / "logs" / f"{id}.yaml"
        # All settings are given, so that a default that changes while the study runs changes none of its jobs.
        config.write_text(yaml.safe_dump(job.settings.to_dict()), encoding="utf-8")
        train = ["scripts.base_train", f"--config={config}", f"--run={id}", f"--data={self.data}"]
        train += [f"--tokenizer={self.folder / 'tokenizer'}", "--resume=auto"]
        measured, most = folder / "measured.json", self.grid.measure_tokens
        measure = ["nanogka.study.measure", f"--run={folder}", f"--data={self.data}", f"--confirm={self.confirm}"]
        measure += [f"--output={measured}", *([f"--tokens={most}"] if most else [])]
        with (self.folder / "logs" / f"{id}.log").open("a", encoding="utf-8") as log:
            phase, code = "train", self.call(train, slot, log, NANOGKA_BASE_DIR=str(self.folder))
            diverged = code == EXIT_NON_FINITE
            if code == 0:
                phase, code = "measure", self.call(measure, slot, log)
        if diverged or code == 0:
            values = {"val_bpb": None, "confirm_bpb": None} if diverged else read_json(measured)
            self.record(job, values, time.monotonic() - began)
        elif not self.stopped:
            self.fail(job, phase, code)

    def call(self, words: list[str], slot: int, log: TextIO, **environment: str) -> int:
        """Run a module of ours on a worker's device and return its exit code.

        In a session of its own: Ctrl-C of the terminal reaches the study alone, which passes it on once.
        """
        if self.stopped:
            return EXIT_CODES[self.stopped]
        environment = {**os.environ, "OMP_NUM_THREADS": str(self.threads), **environment}
        if self.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpus[slot % len(self.gpus)]
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
        process = subprocess.Popen(command(words), cwd=CODE, env=environment, start_new_session=True, **streams)
        self.processes.add(process)
        if self.stopped:  # just now
            process.terminate()
        code = process.wait()
        self.processes.discard(process)
        return code

    def record(self, job: Job, values: dict, seconds: float) -> None:
        """Append the line of a finished job; `values`: of its measurement."""
        folder = self.folder / "runs" / self.id(job)
        row = {"id": self.id(job), "family": job.family, "size": job.size, "depth": job.settings.depth}
        row |= {"seed": job.seed, "settings": job.decisive, **values}
        row |= {**self.results.protocol, "measured": datetime.now(timezone.utc).isoformat(timespec="seconds")}
        try:
            row |= describe_run(folder)
            Row.model_validate(row)
        except (AttributeError, KeyError, TypeError, ValidationError) as error:
            raise ValueError(f"{folder}: is not what a training leaves ({in_one_line(error)})") from error
        append_line(self.path, row)
        self.results.add(row)
        if not self.grid.keep:
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        self.flops_done += self.horizon(job).flops
        plan = self.plan()
        left, pace = len(plan.ready + plan.waiting), self.flops_done / (time.monotonic() - self.began)
        time_left = duration(self.flops_left(plan) / pace)
        outcome = "diverged" if row["val_bpb"] is None else f"val_bpb {row['val_bpb']:.4f}"
        self.log(f"done  {job.title}: {outcome} in {duration(seconds)}; {left} jobs left, about {time_left}")

    def fail(self, job: Job, phase: str, code: int) -> None:
        log = self.folder / "logs" / f"{self.id(job)}.log"
        text = log.read_text(encoding="utf-8", errors="replace").strip()
        self.failed[self.id(job)] = job.title
        when = datetime.now(timezone.utc).isoformat(timespec="seconds")
        entry = {"id": self.id(job), "job": job.title, "doing": phase, "exit_code": code, "log": str(log)}
        append_line(self.folder / "failures.jsonl", entry | {"when": when, "end": text[-2000:]})
        last = text.splitlines()[-1][-SHOWN:] if text else "no output"
        self.log(f"FAILED {job.title} (exit code {code}, {log}): {last}")

    def conclude(self) -> int:
        if self.stopped:
            self.log(f"stopped by {self.stopped.name}; the same command goes on from there")
            return EXIT_CODES[self.stopped]
        plan = self.plan()
        for family in plan.diverged:
            self.log(f"{family}: every rate diverged; give it lower ones")
        for title in self.failed.values():
            self.log(f"failed: {title}; the same command tries it again")
        missing = plan.ready + plan.waiting
        self.log(f"{len(self.results.rows)} results in {self.path}; {len(missing)} jobs of the grid are missing")
        return 1 if missing else 0


def command(words: list[str]) -> list[str]:
    return [sys.executable, "-m", *words]


def visible_gpus() -> list[str]:
    """The GPUs of this machine that may be used, as CUDA_VISIBLE_DEVICES names them."""
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    found = torch.cuda.device_count()
    return named[:found] if named else [str(i) for i in range(found)]
