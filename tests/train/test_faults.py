"""Two ranks below torchrun are killed and end bit for bit as if undisturbed; for one, see tests/attack/test_kill.py."""

import os
import signal
import subprocess
import sys
import time

import pytest
from training import bits, trace

from nanogka.checkpoint import latest_valid, step_of
from nanogka.runs import read_metrics


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


@pytest.mark.slow
def test_killed_again_and_again_two_ranks_end_as_if_nothing_had_happened(base, flags):
    words = [*flags, "--num-iterations", 40, "--save-every", 3, "--eval-every", 10, "--device-batch-size", 1]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m"]
    command = [*launcher, "scripts.base_train", "--", *map(str, words), "--resume", "auto", "--run"]
    folder, log = base / "runs" / "killed", base / "log"

    def start(run):
        with log.open("ab") as file:
            return subprocess.Popen([*command, run], stdout=file, stderr=file)

    assert start("whole").wait(240) == 0, log.read_text()
    for number, least in ((signal.SIGKILL, 2), (signal.SIGKILL, 8), (signal.SIGTERM, 16), (signal.SIGKILL, 30)):
        process, deadline = start("killed"), time.monotonic() + 120
        while process.poll() is None and logged(folder) < least:
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.005)
        for pid in family(process.pid) if number == signal.SIGKILL else [process.pid]:
            os.kill(pid, number)
        process.wait(120)
        path, notes = latest_valid(folder / "checkpoints")
        assert notes == []  # what was half-written does not count as a checkpoint
        assert number == signal.SIGKILL or step_of(path) == logged(folder)  # it finished the step and saved
    assert "--resume auto continues" in log.read_text()
    assert start("killed").wait(240) == 0, log.read_text()
    assert trace(folder)[1:] == trace(base / "runs" / "whole")[1:]
    assert bits(folder) == bits(base / "runs" / "whole")
