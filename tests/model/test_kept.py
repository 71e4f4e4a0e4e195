"""What forward keeps for the backward pass: as compiled for a GPU, and with activation checkpointing."""

import pytest
import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table

from nanogka import dispatch
from nanogka.model import GPT, GPTConfig

VIEWS = {"view", "reshape", "permute", "expand", "transpose", "unsqueeze", "squeeze", "slice", "select", "alias", "t"}
ROWS = 3 * 48


def owner(node):
    """The node whose memory `node` looks at."""
    while getattr(node.target, "_opname", "") in VIEWS:
        node = node.args[0]
    return node


def kept_by_graph(mixer, depth):
    """Bytes that the compiled forward in bfloat16 makes and keeps, by the partition that Inductor starts from."""
    config = GPTConfig.from_depth(depth, mixer, vocab_size=600, sequence_len=48, n_embd=128, n_head=1)
    model, kept = GPT(config, compute_dtype=torch.bfloat16), {}

    def forward(graph, inputs):
        (results,) = next(node for node in graph.graph.nodes if node.op == "output").args
        for node in {owner(node) for node in results if isinstance(node, torch.fx.Node)}:
            if node.op == "call_function" and node.meta["val"].numel() % ROWS == 0:  # a weight's has another size
                kept[node.name] = node.meta["val"].numel() * node.meta["val"].element_size()
        return make_boxed_func(graph.forward)

    partition = {"partition_fn": min_cut_rematerialization_partition, "decompositions": select_decomp_table()}
    backend = aot_autograd(
        fw_compiler=forward, bw_compiler=lambda graph, _: make_boxed_func(graph.forward), **partition
    )
    torch._dynamo.reset()
    ids = torch.randint(600, (3, 48))
    torch.compile(model, backend=backend, dynamic=False)(ids, ids)
    return sum(kept.values())


@pytest.mark.parametrize("mixer, most", [("gaussian", 12), ("successor", 15), ("dot_product", 16)])
def test_a_layer_keeps_few_tensors_of_its_width(mixer, most, monkeypatch):
    """In tensors of the residual stream's size, B · T · C in bfloat16; at depth 20, batch 32 × 2048, each is 168 MB."""
    triton_attention = pytest.importorskip("nanogka.kernels.triton_attention").triton_attention
    monkeypatch.setattr(dispatch, "attention_kernel", lambda *what: triton_attention)
    per_layer = (kept_by_graph(mixer, 4) - kept_by_graph(mixer, 2)) / 2 / (ROWS * 128 * 2)
    assert per_layer <= most
