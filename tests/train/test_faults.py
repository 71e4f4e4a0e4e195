"""Two ranks below torchrun are killed and end bit for bit as if undisturbed; for one, see tests/attack/test_kill.py."""

import os
import signal
import subprocess
import sys
import time

import pytest
from training import bits, trace

from nanogka.common.processes import family
from nanogka.runs import read_metrics


@pytest.mark.slow
def test_killed_again_and_again_two_ranks_end_as_if_nothing_had_happened(base, flags):
    words = [*flags, "--num-iterations", 40, "--save-every", 3, "--eval-every", 10, "--device-batch-size", 1]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "-m"]
    command = [*launcher, "scripts.base_train", "--", *map(str, words), "--resume", "auto", "--run"]
    folder = base / "runs" / "killed"
    assert subprocess.run([*command, "whole"]).returncode == 0
    for number, least in ((signal.SIGKILL, 8), (signal.SIGTERM, 16)):
        process, deadline = subprocess.Popen([*command, "killed"]), time.monotonic() + 120
        while sum(line["kind"] == "train" for line in read_metrics(folder / "metrics.jsonl")) < least:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        for pid in family(process.pid) if number == signal.SIGKILL else [process.pid]:
            os.kill(pid, number)
        process.wait(120)
    assert subprocess.run([*command, "killed"]).returncode == 0
    assert trace(folder)[1:] == trace(base / "runs" / "whole")[1:]
    assert bits(folder) == bits(base / "runs" / "whole")
