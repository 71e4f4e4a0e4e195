"""Kill and resume: nothing that was saved is lost, and the outcome is bit for bit that of a run that was not killed."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from training import bits, trace

from nanogka.checkpoint import PARTIAL, latest_valid, list_checkpoints, step_of, verify_checkpoint
from nanogka.runs import read_metrics

# Python runs this at the start of the victim's processes: a disk slow enough for a checkpoint to be met half-written.
SLOW_DISK = """
import os, time
fsync = os.fsync
os.fsync = lambda descriptor: (time.sleep(0.05), fsync(descriptor))[1]
"""


class Victim:
    """A training in processes of its own, below torchrun if there are several ranks."""

    def __init__(self, base, words, ranks):
        (base / "slow").mkdir()
        (base / "slow" / "sitecustomize.py").write_text(SLOW_DISK)
        launcher = ["torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}", "-m"] if ranks > 1 else []
        script = ["scripts.base_train", *(["--"] if ranks > 1 else [])]
        self.command = [sys.executable, "-m", *launcher, *script, *map(str, words), "--resume", "auto"]
        path = os.pathsep.join([str(base / "slow"), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        self.runs, self.log = base / "runs", base / "victim.log"

    def start(self, run):
        with self.log.open("ab") as log:
            return subprocess.Popen([*self.command, "--run", run], stdout=log, stderr=log, env=self.environment)

    def strike(self, run, number, ready):
        """Start or resume; send the signal as soon as `ready(folder)`. Returns the exit code."""
        process, deadline = self.start(run), time.monotonic() + 120
        try:
            while process.poll() is None and not ready(self.runs / run):
                assert time.monotonic() < deadline, self.log.read_text()
                time.sleep(0.005)
            if process.poll() is None:
                for pid in family(process.pid) if number == signal.SIGKILL else [process.pid]:
                    os.kill(pid, number)
            return process.wait(120)
        finally:
            for pid in family(process.pid) if process.poll() is None else []:
                os.kill(pid, signal.SIGKILL)


def family(pid):
    """A process and its descendants: torchrun's workers are in sessions of their own."""
    table = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = [tuple(map(int, line.split())) for line in table.splitlines()]
    found = [pid]
    for one in found:
        found += [child for child, parent in parents if parent == one]
    return found


def logged(folder):
    return max((line["step"] for line in read_metrics(folder / "metrics.jsonl") if line["kind"] == "train"), default=0)


def writing(folder):
    return any((folder / "checkpoints").glob(f"{PARTIAL}step_*"))


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_killed_again_and_again_it_ends_as_if_nothing_had_happened(base, flags, ranks):
    common = [*flags, "--num-iterations", 40, "--save-every", 3, "--eval-every", 10, "--device-batch-size", 1]
    victim, rng = Victim(base, common, ranks), random.Random(5)
    folder = base / "runs" / "killed"
    assert victim.start("whole").wait(240) == 0, victim.log.read_text()

    half_written = 0
    strikes = [(signal.SIGKILL, 2), (None, 8), (signal.SIGTERM, 16), (None, 22), (signal.SIGKILL, 30)]
    for number, least in strikes if ranks > 1 else strikes[:3]:
        if number is None:  # with a checkpoint half-written
            victim.strike("killed", signal.SIGKILL, lambda folder, n=least: logged(folder) >= n and writing(folder))
            half_written += writing(folder)
        else:
            pause = rng.random() * 0.1
            code = victim.strike(
                "killed", number, lambda folder, n=least, s=pause: logged(folder) >= n and not time.sleep(s)
            )
            assert ranks > 1 or number == signal.SIGKILL or code == 143
        path, notes = latest_valid(folder / "checkpoints")
        assert notes == []  # what was half-written does not count as a checkpoint
        if number == signal.SIGTERM:
            assert step_of(path) == logged(folder)  # it finished the step and saved
    assert half_written > 0
    said = victim.log.read_text()
    assert ranks > 1 or "stopped by SIGTERM" in said
    assert "--resume auto goes on" in said

    newest = list_checkpoints(folder / "checkpoints")[-1]
    (newest / "model.safetensors").write_bytes(b"cut")
    assert victim.start("killed").wait(240) == 0, victim.log.read_text()
    assert verify_checkpoint(latest_valid(folder / "checkpoints")[0]) is None
    assert trace(folder)[1:] == trace(base / "runs" / "whole")[1:]
    assert bits(folder) == bits(base / "runs" / "whole")
