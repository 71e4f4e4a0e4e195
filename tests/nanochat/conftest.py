"""A checkout of nanochat (92d63d4, July 2026) as an oracle: its own code runs next to ours, in float32.

`NANOCHAT_DIR` names the checkout. Without it, the tests are skipped. Nothing of it is part of this project. Its scripts
run when they are imported, so functions of a script are taken out of the file and run alone.
"""

import ast
import importlib
import os
import sys
import types
from pathlib import Path

import pytest
import torch

from nanogka.model import GPT, GPTConfig
from nanogka.tokenizer import Tokenizer

FOLDER = os.environ.get("NANOCHAT_DIR")
SHAPE = {"n_layer": 5, "n_head": 2, "n_embd": 128, "sequence_len": 512, "vocab_size": 320}  # a multiple of 64
NAMES = {  # our names of parameters that nanochat calls otherwise
    "embedding.weight": "transformer.wte.weight",
    "mixer.value_embedding.gate.weight": "attn.ve_gate.weight",
    "mixer.": "attn.",
    "blocks.": "transformer.h.",
}


class Nanochat:
    """The modules of a checkout: `nanochat.gpt` is its `gpt.py`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getattr__(self, name: str) -> types.ModuleType:
        return importlib.import_module(f"nanochat.{name}")

    def run(self, script: str, wanted, **values: object) -> dict:
        """Run those parts of a script for which `wanted` (of a syntax node) is true. Returns their variables.

        `values` are the variables that the script would have at that point.
        """
        tree = ast.parse((self.folder / "scripts" / script).read_text(encoding="utf-8"))
        body = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and wanted(node)]
        assert body, f"{script} has changed"
        exec(compile(ast.Module(body, []), script, "exec"), values)
        return values


@pytest.fixture(scope="session")
def nanochat():
    """The checkout as a `Nanochat`, without torch.compile."""
    if not FOLDER:
        pytest.skip("no NANOCHAT_DIR")
    patch = pytest.MonkeyPatch()
    patch.setenv("NANOCHAT_DTYPE", "float32")
    patch.setattr(sys, "path", [*sys.path, FOLDER])  # last: it has folders `scripts` and `tasks`, too
    patch.setitem(sys.modules, "rustbpe", types.ModuleType("rustbpe"))  # trains tokenizers, which no test here does
    patch.setattr(torch, "compile", lambda function=None, **options: function or (lambda function: function))
    importlib.import_module("nanochat.optim")
    yield Nanochat(Path(FOLDER))
    patch.undo()


@pytest.fixture
def networks(nanochat):
    """Our July network and nanochat's with the same random weights: every parameter is used and none is zero."""
    ours = GPT(GPTConfig(mixer_pattern="D", network="july", **SHAPE), seed=3)
    theirs = nanochat.gpt.GPT(nanochat.gpt.GPTConfig(n_kv_head=SHAPE["n_head"], **SHAPE))
    theirs.init_weights()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            if name.endswith(("c_proj.weight", "gate.weight", "lm_head.weight")):
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
            elif parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    same = pairs(ours, theirs)
    with torch.no_grad():
        for mine, other in same.values():
            other.copy_(mine)
    return ours, theirs, same


def pairs(ours, theirs) -> dict[str, tuple[torch.nn.Parameter, torch.nn.Parameter]]:
    """{our name: the parameters of both networks}."""
    other, found = dict(theirs.named_parameters()), {}
    for name, parameter in ours.named_parameters():
        if name.endswith("value_embedding.table.weight"):
            place = f"value_embeds.{name.split('.')[1]}.weight"
        else:
            place = name
            for mine, its in NAMES.items():
                place = place.replace(mine, its)
        found[name] = parameter, other.pop(place)
    assert not other, f"parameters that we lack: {', '.join(other)}"
    return found


@pytest.fixture(scope="session")
def tokenizers(nanochat):
    """Our tokenizer, and nanochat's with the same tokens."""
    import tiktoken

    text = " ".join(
        path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parents[2].glob("docs/*.md"))[:3]
    )
    ours = Tokenizer.train([text], SHAPE["vocab_size"])
    ordinary = range(ours.vocab_size - len(ours.special_tokens))
    encoding = tiktoken.Encoding(
        name="ours",
        pat_str=nanochat.tokenizer.SPLIT_PATTERN,
        mergeable_ranks={ours.decode_bytes([i]): i for i in ordinary},
        special_tokens=ours.special_tokens,
    )
    return ours, nanochat.tokenizer.RustBPETokenizer(encoding, "<|bos|>")
