"""Descendants of a process, and the GPUs that a child may use."""

import os
import signal
import subprocess
import sys

import pytest

from nanogka.common.processes import family, visible_gpus


def test_a_family_has_grandchildren_of_other_sessions():
    sleeper = "p = subprocess.Popen(['sleep', '99'], start_new_session=True); print(p.pid, flush=True); p.wait()"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {'import subprocess; ' + sleeper!r}])"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        grandchild = int(process.stdout.readline())
        found = family(process.pid)
        os.kill(grandchild, signal.SIGKILL)
    assert (found[0], len(found), found[2]) == (process.pid, 3, grandchild)


@pytest.mark.parametrize("named, expected", [("", ["0", "1"]), ("3,5,7", ["3", "5"]), ("GPU-ab", ["GPU-ab"])])
def test_gpus_keep_their_names(named, expected, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus(2) == expected
