"""scripts.launch, with real processes: its exit code is that of the one that failed first."""

import os
import signal
import time
from pathlib import Path

import pytest
from attack_world import start

WORKER = """
import os, signal, sys, time
rank, code = os.environ["RANK"], int(sys.argv[1])
open(f"{sys.argv[2]}/{rank}", "w").write(str(os.getpid()))
if code == 0:
    signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), open(f"{sys.argv[2]}/saved{rank}", "w"), sys.exit(143)))
    time.sleep(120)
if rank == "0":
    time.sleep(120)
sys.exit(code) if code > 0 else os.kill(os.getpid(), -code)
"""


def launch(tmp_path, code):
    (tmp_path / "worker.py").write_text(WORKER)
    words = ("launch", "--nproc_per_node=2", tmp_path / "worker.py", code, tmp_path)
    return start(tmp_path, words, tmp_path / "log")


def is_alive(path):
    return Path(f"/proc/{path.read_text()}").exists()


@pytest.mark.parametrize("code, expected", [(-signal.SIGKILL, 137), pytest.param(3, 3, marks=pytest.mark.slow)])
def test_the_code_of_the_process_that_failed_first_arrives(tmp_path, code, expected):
    process = launch(tmp_path, code)
    process.join(60)
    assert process.exitcode == expected
    said = (tmp_path / "log").read_text()
    assert said == f"launch: rank 1 ended first, with exit code {expected}\n", "and no traceback of the launcher's"
    assert not is_alive(tmp_path / "0"), "the rank that slept was stopped"


def test_a_signal_reaches_the_processes_and_they_may_save_their_work(tmp_path):
    process = launch(tmp_path, 0)
    while not ((tmp_path / "0").exists() and (tmp_path / "1").exists()):
        assert process.is_alive()
        time.sleep(0.1)
    time.sleep(1)  # the worker installs its handler
    os.kill(process.pid, signal.SIGTERM)
    process.join(60)
    assert process.exitcode == 128 + signal.SIGTERM
    assert [(tmp_path / f"saved{rank}").exists() for rank in (0, 1)] == [True, True]
