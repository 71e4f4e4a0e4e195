"""The first signal asks, the second ends: also where the main thread hears nothing."""

import os
import signal
import subprocess
import sys
import time

import pytest

# PBKDF2 runs for hours without the interpreter lock and without looking at signals, as a collective does whose other
# side is gone.
STUCK = """
import hashlib
from nanogka.train.signals import StopRequest
with StopRequest():
    print("stuck", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)
"""

ASKED = """
import time
from nanogka.train.signals import StopRequest
with StopRequest() as stop:
    print("listening", flush=True)
    while stop.received is None:
        time.sleep(0.01)
    print("asked by", stop.received.name, flush=True)
    time.sleep(0.5)
print("left", flush=True)
time.sleep(20)
"""


@pytest.fixture
def start():
    running = []

    def begin(code, **environment):
        inherited = {k: v for k, v in os.environ.items() if k != "TORCHELASTIC_RUN_ID"}
        environment = {**inherited, "PYTHONPATH": os.pathsep.join(sys.path), **environment}
        process = subprocess.Popen([sys.executable, "-S", "-c", code], text=True, env=environment, stdout=-1, stderr=-1)
        running.append(process)
        process.stdout.readline()
        return process

    yield begin
    for process in running:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_ends_at_once_though_the_main_thread_is_stuck(start, number, code):
    process = start(STUCK)
    process.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    process.send_signal(number)
    assert process.wait(10) == code
    assert "without saving" in process.stderr.read()


def test_the_first_signal_asks_and_what_comes_afterwards_kills_as_ever(start):
    process = start(ASKED)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "asked by SIGINT\n"
    assert process.stdout.readline() == "left\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == -signal.SIGTERM


def test_what_torchrun_passes_on_of_a_signal_that_all_have_got_is_no_second_one(start):
    process = start(ASKED, TORCHELASTIC_RUN_ID="x")
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "asked by SIGTERM\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "left\n"
    alone = start(ASKED)
    alone.send_signal(signal.SIGTERM)
    alone.stdout.readline()
    time.sleep(0.05)
    alone.send_signal(signal.SIGTERM)
    assert alone.wait(10) == 143


@pytest.mark.slow  # three processes that import torch
def test_below_torchrun_the_first_signal_asks_all_ranks_and_the_second_ends_them(tmp_path):
    script, marks = tmp_path / "stuck.py", [tmp_path / "0", tmp_path / "1"]
    mark = f"import os, pathlib; pathlib.Path({str(tmp_path)!r}, os.environ['RANK']).write_text(str(os.getpid()))"
    script.write_text(STUCK.replace('print("stuck", flush=True)', mark))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(script)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=-3, stderr=-3, start_new_session=True)
    try:
        while not all(path.is_file() and path.read_text() for path in marks):
            assert process.poll() is None
            time.sleep(0.05)
        ranks = [int(path.read_text()) for path in marks]
        process.terminate()
        time.sleep(3)
        assert all(is_running(pid) for pid in ranks)
        process.terminate()
        began = time.monotonic()
        process.wait(60)
        assert time.monotonic() - began < 25  # torchrun itself would kill them only 30 seconds after the first
        assert not any(is_running(pid) for pid in ranks)
    finally:
        process.kill()
        process.wait()


def is_running(pid: int) -> bool:
    """Whether there is such a process, and not merely its exit code."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(state) and not state.startswith("Z")
