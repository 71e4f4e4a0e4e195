"""Run the jobs of a study in parallel. A job is a training and its evaluation, each in a process.

A finished job is one row of the results file and never runs again. An unfinished one resumes from its last checkpoint.
The folder NANOGKA_BASE_DIR/studies/<name> contains:

    runs/<id>/          the run of scripts.base_train; its checkpoints are deleted once the row is written
    logs/<id>.log       the output of the processes, and <id>.yaml with the settings of the training
"""

import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from datetime import datetime, timezone
from pathlib import Path

import torch
import yaml

from nanogka.common.errors import Errors
from nanogka.common.files import base_dir, read_json
from nanogka.common.formatting import plain_table, scientific
from nanogka.common.processes import visible_gpus
from nanogka.data import open_corpus
from nanogka.data.loader import MIN_STREAMS
from nanogka.model import model_costs
from nanogka.model.measure import check_flops
from nanogka.runs import Run, read_config
from nanogka.study.grid import Grid, Job
from nanogka.study.plan import Plan, Results, append_row, plan_jobs, read_results
from nanogka.train.pretraining import build_budget, load_tokenizer
from nanogka.train.trainer import EXIT_NON_FINITE

GROUPS = 100  # of documents, in a row of results
CODE = Path(__file__).parents[2]  # working folder for `python -m scripts.base_train`


class Study:
    """A grid with its data and results.

    `families` and `sizes` restrict it (empty: all). Raises ValueError with one line per problem in the data, the names
    or the FLOPs that a mixer declares.
    """

    def __init__(
        self,
        grid: Grid,
        results: Path,
        workers: int | None = None,
        families: tuple[str, ...] = (),
        sizes: tuple[str, ...] = (),
    ) -> None:
        errors = Errors()
        self.grid, self.path, self.families, self.sizes = grid, results, families, sizes
        self.folder = base_dir() / "studies" / grid.name
        corpus = errors.capture(lambda: open_corpus(grid.data))
        confirm = errors.capture(lambda: open_corpus(grid.confirm)) if grid.confirm else None
        self.tokenizer = errors.capture(lambda: load_tokenizer(grid.tokenizer))
        for flag, names, known in (("--only", families, grid.families), ("--sizes", sizes, grid.sizes)):
            for name in names:
                errors.require(name in known, flag, name, ", ".join(known))
        errors.raise_if_any()
        # Families train for equal FLOPs as their mixers declare them: a wrong number would decide the comparison.
        for name in families or grid.families:
            job = grid.job(name, grid.families[name].sizes[0], seed=0)
            errors.capture(lambda: check_flops(job.settings.config(self.tokenizer.vocab_size)))  # noqa: B023
        errors.raise_if_any()
        # The training processes have another base folder, so they need absolute paths.
        self.data, self.confirm = str(corpus.folder.resolve()), str(confirm.folder.resolve()) if confirm else ""
        protocol = {"corpus": corpus.fingerprint, "tokenizer": self.tokenizer.fingerprint}
        protocol |= {"confirm": confirm and confirm.fingerprint, "measure_tokens": grid.measure_tokens}
        protocol["validation_streams"] = MIN_STREAMS
        self.results = Results(read_results(results), protocol)

        self.gpus = visible_gpus(torch.cuda.device_count()) if grid.settings.get("device", "auto") != "cpu" else []
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.workers = workers or len(self.gpus) or cores
        self.threads = max(1, cores // self.workers)  # per process: more threads than cores slow each other down
        self.processes: set[subprocess.Popen] = set()
        self.failed: dict[str, str] = {}  # title by id

    def id(self, job: Job) -> str:
        """Return the name of a job's folder: twelve hexadecimal digits computed from its settings and data."""
        # The second corpus and the measurement are left out: the training is the same, so its run can be reused.
        content = [job.decisive, self.results.protocol["corpus"], self.results.protocol["tokenizer"]]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]

    def plan(self) -> Plan:
        """Return the plan: finished jobs and jobs to do."""
        return plan_jobs(self.grid, self.results.find, self.families, self.sizes)

    def describe(self) -> str:
        """Return a table of the jobs, their costs and their state."""
        plan, left = self.plan(), 0
        rows: list[Sequence[str]] = [
            ("id", "family", "size", "seed", "lr_scale", "state", "parameters", "FLOPs/token", "steps", "FLOPs")
        ]
        for state, jobs in (("done", plan.done), ("to do", plan.ready), ("when a rate is chosen", plan.waiting)):
            for job in jobs:
                config = job.settings.config(self.tokenizer.vocab_size)
                costs, budget = model_costs(config), build_budget(job.settings, config)
                id, rate = ("", "?") if jobs is plan.waiting else (self.id(job), job.rate)
                row = [id, job.family, job.size, str(job.seed), rate, state, f"{costs.total_parameters:,}"]
                row += [scientific(costs.flops_per_token), f"{budget.num_iterations:,}", scientific(budget.flops)]
                rows.append(row)
                left += 0 if jobs is plan.done else budget.flops
        total = f"{len(rows) - 1} jobs, {len(plan.done)} done; {scientific(left)} FLOPs to do"
        return f"{plain_table(rows, left=6)}\n{total}, {self.workers} at a time"

    def run(self) -> int:
        """Run the remaining jobs. Returns 0 if all are done and 1 if something failed.

        On an interrupt, the training processes save and stop. It waits for them and raises the interrupt again.
        """
        (self.folder / "logs").mkdir(parents=True, exist_ok=True)
        self.tokenizer.save(self.folder / "tokenizer")
        with ThreadPoolExecutor(self.workers) as pool:
            try:
                self._work(pool)
            except BaseException:
                # Ctrl-C reaches the children, too, but a signal from a job scheduler reaches this process alone.
                for process in list(self.processes):
                    process.terminate()
                pool.shutdown(cancel_futures=True)
                log("stopped; rerun the command to continue")
                raise
        plan = self.plan()
        for family in plan.diverged:
            log(f"{family}: every learning rate diverged; add lower ones to the grid")
        for title in self.failed.values():
            log(f"failed: {title}; rerun the command to try again")
        missing = len(plan.ready + plan.waiting)
        log(f"{len(self.results.rows)} results in {self.path}; {missing} jobs of the grid are missing")
        return 1 if missing else 0

    def _work(self, pool: ThreadPoolExecutor) -> None:
        """Give each free worker the next job until none is left. A result may decide which job comes next."""
        free = list(range(self.workers))
        running: dict[Future, tuple[Job, int]] = {}
        while True:
            taken = {*self.failed, *(self.id(job) for job, _ in running.values())}
            for job in [job for job in self.plan().ready if self.id(job) not in taken][: len(free)]:
                log(f"start {job.title}")
                slot = free.pop(0)
                running[pool.submit(self._execute, job, slot)] = job, slot
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                job, slot = running.pop(future)
                free.append(slot)
                self._conclude(job, future.result())

    def _execute(self, job: Job, slot: int) -> int:
        """Train and evaluate a job in separate processes. Returns the exit code of the last one."""
        id = self.id(job)
        folder, config = self.folder / "runs" / id, self.folder / "logs" / f"{id}.yaml"
        # The file contains every setting, so that a default that changes during the study does not affect its jobs.
        config.write_text(yaml.safe_dump(job.settings.to_dict()), encoding="utf-8")
        train = ["scripts.base_train", f"--config={config}", f"--run={id}", f"--data={self.data}", "--resume=auto"]
        code = self._call(job, slot, [*train, f"--tokenizer={self.folder / 'tokenizer'}"])
        for data, name in ((self.data, "evaluation.json"), (self.confirm, "confirm.json")):
            if code == 0 and data:
                facts = read_config(folder)["run"]
                measure = ["scripts.base_eval", "--eval=bpb", f"--run={folder}", f"--data={data}"]
                measure += [f"--device={facts.get('device')}", f"--dtype={facts.get('dtype')}"]
                measure += [f"--output={folder / name}", f"--split-tokens={self.grid.measure_tokens or 10**12}"]
                code = self._call(job, slot, measure)
        return code

    def _call(self, job: Job, slot: int, words: list[str]) -> int:
        """Run one of our modules on a worker's device and return its exit code. Its output goes to the job's log."""
        environment = os.environ | {"OMP_NUM_THREADS": str(self.threads), "NANOGKA_BASE_DIR": str(self.folder)}
        if self.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = self.gpus[slot % len(self.gpus)]
        with self._log_of(job).open("a", encoding="utf-8") as output:
            streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": subprocess.STDOUT}
            process = subprocess.Popen([sys.executable, "-m", *words], cwd=CODE, env=environment, **streams)
            self.processes.add(process)
            code = process.wait()
            self.processes.discard(process)
        return code

    def _conclude(self, job: Job, code: int) -> None:
        """Append the row of a job, or record its failure. A diverged training is a result without losses."""
        if code not in (0, EXIT_NON_FINITE):
            text = self._log_of(job).read_text(encoding="utf-8", errors="replace").strip()
            self.failed[self.id(job)] = job.title
            last = text.splitlines()[-1][-300:] if text else "no output"
            log(f"FAILED {job.title} (exit code {code}, {self._log_of(job)}): {last}")
            return
        folder = self.folder / "runs" / self.id(job)
        row = {"id": self.id(job), "family": job.family, "size": job.size, "depth": job.settings.depth}
        row |= {"seed": job.seed, "settings": job.decisive, "val_bpb": None, "confirm_bpb": None}
        row |= {**self.results.protocol, "measured": datetime.now(timezone.utc).isoformat(timespec="seconds")}
        row |= describe_run(folder)
        if code == 0:
            row |= describe_loss("val", read_json(folder / "evaluation.json"))
            row |= describe_loss("confirm", read_json(folder / "confirm.json")) if self.confirm else {}
        append_row(self.path, row)
        self.results.add(row)
        if not self.grid.keep:  # dozens of runs would fill the disk; config and metrics stay
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
        plan = self.plan()
        outcome = "diverged" if row["val_bpb"] is None else f"{row['val_bpb']:.4f} bits per byte"
        log(f"done  {job.title}: {outcome}; {len(plan.ready + plan.waiting)} jobs left")

    def _log_of(self, job: Job) -> Path:
        return self.folder / "logs" / f"{self.id(job)}.log"


def log(line: str) -> None:
    """Print a line of progress at once, also into a pipe."""
    print(line, flush=True)


def describe_run(folder: Path) -> dict:
    """Return the parts of a row that come from the run: its costs, validations (`curve`) and machine."""
    run = Run.open(folder)
    facts, accounting, last = run.part("run"), run.accounting, run.train[-1] if run.train else {}
    finite = {line["step"]: line["val_bpb"] for line in run.validations if "val_bpb" in line}
    return {
        "parameters": accounting.total_parameters,
        "flops_per_token": accounting.flops_per_token,
        "cache_bytes_per_token": accounting.cache_bytes_per_token,
        "steps": last.get("step", 0),
        "tokens": last.get("tokens", 0),
        "flops": last.get("flops", 0),
        "curve": [(step, bpb if math.isfinite(bpb) else None) for step, bpb in finite.items()],
        "seconds": last.get("total_seconds"),
        "tokens_per_second": run.median("tokens_per_second"),
        **{name: facts[name] for name in ("hardware", "device", "dtype", "compiled", "torch")},
    }


def describe_loss(name: str, evaluation: dict) -> dict:
    """Return the parts of a row that come from an evaluation: bits per byte, and nats and bytes of groups of documents.

    Documents are independent, so groups of them are too, and intervals over groups are those over documents. A hundred
    groups keep a row short.
    """
    documents = evaluation["val_documents"]
    nats, size = [0.0] * GROUPS, [0] * GROUPS
    for number, of_one, in_bytes in zip(*(documents.get(part, ()) for part in ("number", "nats", "bytes"))):
        nats[number % GROUPS] += of_one
        size[number % GROUPS] += in_bytes
    groups = [group for group in range(GROUPS) if size[group]]
    sums = {"nats": [round(nats[group], 4) for group in groups], "bytes": [size[group] for group in groups]}
    return {f"{name}_bpb": evaluation["bpb"]["val"], f"{name}_documents": sums if groups else None}
