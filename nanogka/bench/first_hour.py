"""The first hour on a GPU node: run the stages of `nanogka.bench.first_stages` and turn their results into a verdict.

Each stage runs in its own process, so that a crash or a hang ends only that stage.
"""

import json
import multiprocessing
import os
import shutil
import signal
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from nanogka import backends
from nanogka.bench.common import check_mixers
from nanogka.bench.first_stages import STAGES, Place, limit
from nanogka.common.cli import flag
from nanogka.common.errors import Errors, in_one_line
from nanogka.common.files import atomic_write
from nanogka.common.formatting import duration, markdown_table
from nanogka.common.gpus import ask_driver, count_gpus
from nanogka.common.processes import family
from nanogka.common.runtime import Hardware, find_gpu
from nanogka.train.budget import plan_budget
from nanogka.train.estimate import step_time

# Parts of a depth-20 run that no stage measures, in seconds on 8 H100s. They are computed from CPU work, not measured.
TOKENIZER = 60  # 400 CPU seconds on all cores
AFTER_TRAINING = 4 * 60  # figures, report and the starts of all commands
EVALUATED = 8 * 60 * 1.6e6  # training tokens that take as long as CORE, fine-tuning and questions
SHARD_BYTES = 1e8


@dataclass(frozen=True)
class Settings:
    """Settings."""

    out: str = flag("gpu_first", "folder for the results")
    gpus: int = flag(0, "number of GPUs to use (default: all)", ge=0)
    price: float = flag(0.0, "price of the node in dollars per hour, for the verdict", ge=0)
    only: str = flag("", f"stages to run, separated by commas, of {', '.join(STAGES)} (default: all)")
    depth: int = flag(20, "number of layers of the model that you want to train", ge=1)
    mixers: str = flag(
        "gaussian,dot_product,successor", "token mixers to time, separated by commas; the first one is trained"
    )
    smoke: bool = flag(False, "run everything with tiny sizes on the CPU, the kernels in Triton's interpreter")


def run(settings: Settings, errors: Errors) -> int:
    """Run the stages and print the verdict; 1 if it is NO-GO."""
    names = settings.only.split(",") if settings.only else list(STAGES)
    errors.require(set(names) <= set(STAGES), "only", settings.only, f"stages of {', '.join(STAGES)}")
    mixers = tuple(settings.mixers.split(","))
    check_mixers(mixers, errors)
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # asks the driver without starting CUDA before the forks
    found = 2 if settings.smoke else errors.capture(count_gpus) or 0
    there = found or errors.lines
    errors.require(there, "smoke", settings.smoke, "true, because torch finds no CUDA device here")
    errors.require(settings.gpus <= found, "gpus", settings.gpus, f"at most the {found} GPUs that torch finds")
    errors.raise_if_any()
    out, name = Path(settings.out).expanduser().absolute(), ""
    if not settings.smoke:
        name = ask_driver("--query-gpu=name", "--format=csv,noheader").split("\n")[0]
    hardware = find_gpu(name) or Hardware(name)
    place = Place(settings.smoke, out, settings.gpus or found, settings.depth, mixers, hardware)
    place.out.mkdir(parents=True, exist_ok=True)
    (place.out / "results.jsonl").write_text("")
    from torch import _dynamo  # noqa: F401 (its import takes seconds; the stages are forked after it)

    failed = [name for name in names if not run_stage(name, place)]
    results = [json.loads(line) for line in (place.out / "results.jsonl").read_text().splitlines()]
    rows = [(line["stage"], result_text(line)) for line in results]
    atomic_write(place.out / "results.md", markdown_table(["stage", "result"], rows, left=2) + "\n")
    print(f"results: {place.out / 'results.md'}")
    print(verdict(results, failed, settings.price, place) + (" (smoke: a CPU's numbers)" if place.smoke else ""))
    return int(bool(failed))


def run_stage(name: str, place: Place) -> bool:
    """Run one stage in a forked process; True if it succeeds within its time."""
    process = multiprocessing.get_context("fork").Process(target=stage_process, args=(name, place))
    began = time.monotonic()
    process.start()
    process.join(limit(name, place))
    late = process.is_alive()
    if late:
        for pid in family(process.pid):  # with all ranks, which would keep the GPUs' memory
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.join()
        shutil.rmtree(place.out / "base", ignore_errors=True)  # gigabytes
    outcome = "out of time" if late else "done" if process.exitcode == 0 else "FAILED"
    if process.exitcode < 0 and not late:
        outcome = f"killed (signal {-process.exitcode}), perhaps because the machine is out of memory,"
    outcome += f" after {time.monotonic() - began:.0f} s"
    print(f"{name}: {outcome}", flush=True)
    if process.exitcode < 0:  # it was killed, so it left no line about its end
        put(place, name, failed=outcome)
    return process.exitcode == 0


def stage_process(name: str, place: Place) -> None:
    """Run one stage in this process, its output in log.txt; exits 1 if it fails."""
    with open(place.out / "log.txt", "a") as log:
        os.dup2(log.fileno(), 1), os.dup2(log.fileno(), 2)
    if place.smoke:
        torch.set_num_threads(1)
        backends.GPU = "cpu"  # the Triton kernels run in the interpreter
    stage, _ = STAGES[name]
    try:
        for values in stage(place):
            put(place, name, **values)
    except BaseException as error:
        traceback.print_exc()
        put(place, name, failed=in_one_line(error))
        os._exit(1)


def put(place: Place, stage: str, **values: object) -> None:
    """Append one line of results."""
    with open(place.out / "results.jsonl", "a") as file:
        file.write(json.dumps({"stage": stage} | values) + "\n")


def result_text(line: dict) -> str:
    """A line of results as text for people."""

    def short(value: object) -> str:
        if isinstance(value, list):
            return " ".join(map(short, value))
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    return ", ".join(f"{name} {short(value)}" for name, value in line.items() if name != "stage")


def verdict(results: Sequence[dict], failed: Sequence[str], price: float, place: Place) -> str:
    """GO with the time and cost of the place's model at full size, or NO-GO with the first reason against it."""
    if failed:
        reason = next((line["failed"] for line in results if line["stage"] == failed[0] and "failed" in line), "")
        return f"NO-GO: {failed[0]}: {reason}"
    measured = {name: value for line in results for name, value in line.items()}
    needed = {"run_tokens_per_second", "start_seconds", "download_bytes_per_second"}
    if not needed <= measured.keys():
        return "no verdict: the stages download and train are needed for one"
    config = replace(place, smoke=False).config(place.mixers[0])
    budget = plan_budget(config)
    speed = measured["run_tokens_per_second"]
    training = budget.tokens / speed
    # As scripts/steps.sh: shards for the longest default horizon, and one for validation.
    shards = max(8, (place.depth**2 * (place.depth + 8) + 110) // 111) + 1
    download = shards * SHARD_BYTES / measured["download_bytes_per_second"]
    total = download + TOKENIZER + measured["start_seconds"] + training + EVALUATED / speed + AFTER_TRAINING
    cost = f", ${total / 3600 * price:,.0f}" if price else ""
    steps = f"{budget.num_iterations:,} steps"
    computed = step_time(config, place.hardware, budget.total_batch_size, place.gpus)
    share = f" ({speed * computed.total / budget.total_batch_size:.0%} of the computed speed)" if computed else ""
    return f"GO: {speed / 1e6:.3g} M tokens/s{share}, {steps}, {duration(training)}, everything {duration(total)}{cost}"
