"""What SIGINT, SIGTERM and SIGHUP do to a training run and to other scripts."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from rank_worlds import CONTEXT

from nanogka.common.cli import run_script
from nanogka.common.signals import stop_request


@contextmanager
def started(function):
    """A process that runs `function(pipe)`; entered when it has sent "ready"."""
    ours, theirs = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=function, args=(theirs,), daemon=True)
    process.start()
    assert receive(ours) == "ready"
    yield process, ours
    process.kill()


def receive(pipe):
    """What the process sends within 30 seconds."""
    assert pipe.poll(30)
    return pipe.recv()


def train(pipe):
    with stop_request() as stop:
        pipe.send("ready")
        while stop.received is None:
            time.sleep(0.01)
        pipe.send(stop.received)
        time.sleep(0.5)
    pipe.send("left")
    time.sleep(20)


def train_under_torchrun(pipe):
    os.environ["TORCHELASTIC_RUN_ID"] = "x"
    train(pipe)


def train_under_nohup(pipe):
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    train(pipe)


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_the_first_signal_is_a_request_and_the_second_ends_the_process(number, code):
    with started(train) as (process, pipe):
        os.kill(process.pid, number)
        assert receive(pipe) == number
        os.kill(process.pid, number)
        process.join(10)
        assert process.exitcode == code


def test_torchrun_may_repeat_a_signal_and_after_the_run_one_kills():
    with started(train_under_torchrun) as (process, pipe):
        os.kill(process.pid, signal.SIGINT)
        assert receive(pipe) == signal.SIGINT
        os.kill(process.pid, signal.SIGINT)
        assert receive(pipe) == "left"
        os.kill(process.pid, signal.SIGTERM)
        process.join(10)
        assert process.exitcode == -signal.SIGTERM


def test_an_ignored_signal_stays_ignored():
    with started(train_under_nohup) as (process, pipe):
        os.kill(process.pid, signal.SIGHUP)
        time.sleep(0.2)
        os.kill(process.pid, signal.SIGTERM)
        assert receive(pipe) == signal.SIGTERM


@pytest.mark.parametrize("number, code", [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_terminated_script_cleans_up_and_leaves_no_handler(number, code, tmp_path, capsys):
    def body():
        (tmp_path / "partial").touch()
        try:
            os.kill(os.getpid(), number)
            time.sleep(60)
        finally:
            (tmp_path / "partial").unlink()

    assert run_script(body, "tool") == code
    assert capsys.readouterr().err == f"\ntool: ended by {signal.Signals(number).name}\n"
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(number) == signal.SIG_DFL


def test_ctrl_c_while_a_script_is_imported_prints_no_traceback():
    # Each import is reported on stderr. Those of torch, which follow, take seconds.
    command = [sys.executable, "-X", "importtime", "-m", "scripts.base_train", "--help"]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], **pipes) as process:
        while "nanogka.common.nanochat" not in process.stderr.readline():
            pass
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
    assert process.returncode == -signal.SIGINT
    assert "Traceback" not in rest


def test_ctrl_c_in_a_script_that_was_imported_ends_it_in_order(capsys):
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # as scripts/__init__.py leaves it
    try:
        assert run_script(lambda: os.kill(os.getpid(), signal.SIGINT) or time.sleep(5), "tool") == 130
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "\ntool: ended by SIGINT\n"
