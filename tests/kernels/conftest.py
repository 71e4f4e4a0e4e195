"""Without a GPU the Triton kernels run in Triton's interpreter, which must be asked for before Triton is imported."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture
def poisoned_outputs(monkeypatch):
    """What a kernel forgets to write is NaN."""
    empty = torch.empty

    def poisoned(*args, **kwargs):
        tensor = empty(*args, **kwargs)
        return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty", poisoned)
