"""A stand-in for the parts of vLLM that the plugin uses: one sequence at a time, without a cache, on ranks in threads.

Attention is the literal formula, so that a model of the plugin can be compared with ours where vLLM is not installed.
"""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from types import ModuleType, SimpleNamespace

import torch
from torch import nn

PLUGIN = ("nanogka.export.vllm.layers", "nanogka.export.vllm.model")


class World:
    """Ranks that run in step, each in its thread."""

    def __init__(self, size):
        self.size, self.local = size, threading.local()
        self.barrier, self.parts = threading.Barrier(size), [None] * size

    @property
    def rank(self):
        return getattr(self.local, "rank", 0)

    def run(self, function):
        """The results of `function()` on each rank."""

        def on_rank(rank):
            self.local.rank = rank
            return function()

        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(on_rank, range(self.size)))

    def sum(self, x):
        """The sum of every rank's x."""
        self.parts[self.rank] = x
        self.barrier.wait(60)
        total = sum(self.parts)
        self.barrier.wait(60)
        return total


class Attention(nn.Module):
    """Causal softmax attention over the tokens of one call; query heads share key heads in groups."""

    def __init__(self, num_heads, head_size, scale, num_kv_heads=None, cache_config=None, per_layer_sliding_window=None,
                 prefix=""):  # fmt: skip
        super().__init__()
        self.groups = num_heads // (num_kv_heads or num_heads)
        self.head_size, self.scale, self.window, self.prefix = head_size, scale, per_layer_sliding_window, prefix

    def forward(self, q, k, v):
        q, k, v = (t.unflatten(1, (-1, self.head_size)).transpose(0, 1) for t in (q, k, v))
        k, v = (t.repeat_interleave(self.groups, 0) for t in (k, v))
        i = torch.arange(q.shape[1])
        distance = i[:, None] - i
        hidden = (distance < 0) | (distance >= (self.window or len(i)))
        weights = (q @ k.mT * self.scale).masked_fill(hidden, -torch.inf).softmax(-1)
        return (weights @ v).transpose(0, 1).flatten(1)


def plugin(monkeypatch, size=1):
    """(world, module `model` of the plugin) over the stand-in."""
    world = World(size)

    def sharded_weight_loader(axis):
        def load(parameter, weight):
            parameter.data.copy_(weight.chunk(size, axis)[world.rank] if size > 1 else weight)

        return load

    class Linear(nn.Linear):
        axis = None

        def __init__(self, inputs, outputs, bias=False, prefix=""):
            shape = [outputs, inputs]
            shape[self.axis] //= size
            super().__init__(shape[1], shape[0], bias=bias)
            self.weight.weight_loader = sharded_weight_loader(self.axis)

        def forward(self, x):
            y = super().forward(x)
            return (y if self.axis == 0 else world.sum(y)), None

    class Table(nn.Embedding):
        def __init__(self, vocab, width, prefix=""):
            super().__init__(vocab, width)

    class LogitsProcessor(nn.Module):
        def __init__(self, vocab):
            super().__init__()

        def forward(self, head, x):
            return x @ head.weight.T

    column, row = (type(name, (Linear,), {"axis": axis}) for axis, name in enumerate(("Column", "Row")))
    layers = "vllm.model_executor.layers"
    parts = {
        "vllm.compilation.decorators": {"support_torch_compile": lambda kind: kind},
        "vllm.config": {"VllmConfig": object},
        "vllm.distributed": {
            "get_tensor_model_parallel_rank": lambda: world.rank,
            "get_tensor_model_parallel_world_size": lambda: size,
        },
        f"{layers}.attention": {"Attention": Attention},
        f"{layers}.linear": {"ColumnParallelLinear": column, "RowParallelLinear": row},
        f"{layers}.logits_processor": {"LogitsProcessor": LogitsProcessor},
        f"{layers}.vocab_parallel_embedding": {"VocabParallelEmbedding": Table, "ParallelLMHead": Table},
        "vllm.model_executor.model_loader.weight_utils": {
            "default_weight_loader": lambda parameter, weight: parameter.data.copy_(weight),
            "sharded_weight_loader": sharded_weight_loader,
        },
    }
    for name in parts:
        for parent in (name.rsplit(".", count)[0] for count in range(name.count(".") + 1)):
            monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    for name, content in parts.items():
        vars(sys.modules[name]).update(content)
    for name in PLUGIN:
        monkeypatch.setitem(sys.modules, name, None)  # so that the end of the test restores what was there before
        del sys.modules[name]
    return world, import_module(PLUGIN[1])


def settings(config):
    """The part of vLLM's configuration that the plugin reads."""
    return SimpleNamespace(model_config=SimpleNamespace(hf_config=config), cache_config=None, quant_config=None)
