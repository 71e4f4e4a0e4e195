"""The time until a command works: what it imports, and what torch's compiler finds in the caches of earlier starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from generate_models import save_run, small_model
from run_fakes import write_corpus

import scripts  # noqa: F401 (sets the variable)
from nanogka.data import open_corpus
from nanogka.model.gpt import SquaredReLU

ROOT = Path(__file__).parents[1]
USE = """
import sys, torch
from nanogka import load
from nanogka.data import open_corpus
from nanogka.model import model_costs
run, corpus = sys.argv[1:]
open_corpus(corpus).read("train", 0, [0])
model = load(run)
model.generate("Hi", max_tokens=2)
ids = torch.zeros(1, 8, dtype=torch.int64)
with torch.no_grad():
    model.run.model(ids, ids, "none")
model_costs(model.run.gpt_config)
import nanogka.serve.app
unwanted = ("torch._dynamo", "sympy", "pandas", "transformers", "matplotlib", "datasets")
print({name for name in sys.modules if name.startswith((*unwanted, "nanogka.train", "nanogka.plots"))})
"""
VARIABLE = "TORCHINDUCTOR_AUTOGRAD_CACHE_ALLOW_CUSTOM_AUTOGRAD"


class Doubled(SquaredReLU):
    """The same forward pass with another backward pass."""

    @staticmethod
    def backward(ctx, *gradients):
        (y,) = ctx.saved_tensors
        return 4 * y.sqrt() * gradients[0]


def test_to_read_generate_evaluate_and_serve_imports_no_compiler_trainer_or_large_library(tmp_path):
    run = save_run(tmp_path / "run", small_model(vocab_size=600))
    open_corpus(write_corpus(tmp_path / "corpus"))  # its text files become parquet
    command = [sys.executable, "-c", USE, str(run), str(tmp_path / "corpus")]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    assert subprocess.run(command, env=environment, capture_output=True, text=True).stdout == "set()\n"


def start(function):
    """Compile and run a step as a new process does; what the cache did, and the gradient."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    x = torch.arange(-2.0, 4.0, requires_grad=True)
    torch.compile(lambda x: function.apply(x).sum())(x).backward()
    kinds = ("autograd_cache_bypass", "autograd_cache_miss", "autograd_cache_hit")
    return [counters["aot_autograd"][kind] for kind in kinds], x.grad.tolist()


@pytest.mark.slow  # three compilations
def test_a_start_finds_the_traced_graph_of_the_last_one_unless_the_backward_pass_has_changed():
    import torch._functorch.config as functorch
    from torch._inductor.utils import fresh_cache

    assert os.environ[VARIABLE] == "1"
    with fresh_cache(), functorch.patch(autograd_cache_allow_custom_autograd_functions=True):
        gradient = [0.0, 0.0, 0.0, 2.0, 4.0, 6.0]
        assert start(SquaredReLU) == ([0, 1, 0], gradient)
        assert start(SquaredReLU) == ([0, 0, 1], gradient)
        assert start(Doubled) == ([0, 1, 0], [2 * g for g in gradient])
    torch._dynamo.reset()
