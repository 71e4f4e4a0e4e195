"""Shared by all benchmarks: the flags for device and dtype, the clock, and the printed result."""

import logging
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TypeVar

import torch

from nanogka.common.cli import DeviceSettings, json_flag, print_json
from nanogka.common.distributed import Ranks
from nanogka.common.errors import Errors, in_one_line
from nanogka.common.formatting import markdown_table
from nanogka.common.runtime import describe_hardware, pick_device_and_dtype
from nanogka.model import mixer_pattern

T = TypeVar("T")


@dataclass(frozen=True)
class BenchSettings(DeviceSettings):
    """Output."""

    json: bool = json_flag()

    def start(self, errors: Errors) -> tuple[torch.device, torch.dtype]:
        """Device and dtype. Raises ValueError with all errors found so far."""
        device, dtype = pick_device_and_dtype(self.device, self.dtype, errors)
        errors.raise_if_any()
        device = Ranks.from_environment().device(device)  # below scripts.launch each process has its own GPU
        if device.type == "cuda":
            torch.cuda.set_device(device)
        logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
        return device, dtype

    def report(self, device: torch.device, dtype: torch.dtype, title: str, text: str, **results: object) -> None:
        """Print a table as text, then settings and results as `print_json` does."""
        hardware, kind = describe_hardware(device), str(dtype).removeprefix("torch.")
        print(f"{hardware.name}, {kind}, {title}\n\n{text}")
        machine = {"hardware": hardware.name, "peak_bandwidth": hardware.peak_bandwidth}
        print_json(asdict(self) | machine | {"device": str(device), "dtype": kind} | results, self.json)


def table(columns: dict[str, Callable[[dict], str]], records: Iterable[dict], left: int = 1) -> str:
    """A Markdown table with a row per record; `columns` maps each heading to the text of a record's cell."""
    return markdown_table(list(columns), [[cell(record) for cell in columns.values()] for record in records], left)


def seconds(function: Callable[[], object], device: torch.device, calls: int = 1) -> float:
    """Mean time of a call, until the device has finished the work that it launched."""

    def wait() -> None:
        # A CUDA call returns once its kernels are queued: without waiting, the clock would time the queueing alone.
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    wait()
    began = time.perf_counter()
    for _ in range(calls):
        function()
    wait()
    return (time.perf_counter() - began) / calls


def take_turns(
    steps: dict[T, Callable[[], object]],
    device: torch.device,
    repeats: int,
    calls: int = 1,
    failed: dict[T, str] | None = None,
) -> dict[T, list[float]]:
    """Seconds of each step, `repeats` of each: the mean of `calls`. A step that fails is in `failed`, if that is given.

    They take turns, so that whatever else slows the machine down slows all of them alike; the first round warms up.
    """
    # One after the other, a burst of other work would hit a single step and decide the comparison.
    times: dict[T, list[float]] = {name: [] for name in steps}
    for _ in range(repeats + 1):
        for name, step in steps.items():
            if name in times:
                try:
                    times[name].append(seconds(step, device, calls))
                except RuntimeError as error:  # mainly out of memory
                    if failed is None:
                        raise
                    failed[name] = in_one_line(error)
                    del times[name]
    return {name: measured[1:] for name, measured in times.items()}


def peak_memory(function: Callable[[], object], device: torch.device) -> int:
    """Return the peak bytes allocated while `function` runs, in addition to the bytes held before."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        function()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    # The CPU allocator keeps no peak; the profiler records each allocation and release in order.
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        function()
    held = most = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def integers(name: str, text: str, errors: Errors, ge: int = 1) -> list[int]:
    """The integers of the flag `name`, separated by commas; a problem is recorded unless all are in range."""
    parts = text.split(",")
    values = [int(part) for part in parts if part.strip().isdecimal()]
    fine = len(values) == len(parts) and min(values) >= ge
    errors.require(fine, name, text, f"integers of at least {ge:,}, separated by commas")
    return values if fine else []


def check_mixers(names: list[str], errors: Errors) -> None:
    """Record every name that is neither a mixer nor a pattern of letters."""
    for name in names:
        errors.capture(lambda name=name: mixer_pattern(name))
