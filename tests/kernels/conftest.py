"""Fixtures that tests of kernels share."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.fixture
def poisoned_outputs(monkeypatch):
    """Fill new tensors with NaN, which stays wherever a kernel forgets to write."""
    empty = torch.empty

    def poisoned(*args, **kwargs):
        tensor = empty(*args, **kwargs)
        return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty", poisoned)


@pytest.fixture
def json_lines(tmp_path):
    """A function that runs a script of this folder, with Triton's compiler, and returns the JSON lines it prints."""

    def run(script, *words):
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        environment["TRITON_CACHE_DIR"] = str(tmp_path)
        command = [sys.executable, Path(__file__).with_name(script), *words]
        outcome = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert outcome.returncode == 0, outcome.stderr
        return [json.loads(line) for line in outcome.stdout.splitlines()]

    return run
