"""A training step as Inductor plans it: one graph, few bytes kept for the backward pass, few kernels.

Two layers of depth 20, of the real sizes, are traced on fake tensors with the operators of a GPU, and Inductor lowers,
fuses and schedules the graphs. Nothing is computed.
"""

import copy
from collections import Counter
from dataclasses import replace

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._inductor import compile_fx
from torch._inductor.debug import DebugContext
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

pytest.importorskip("triton")

from nanogka import dispatch
from nanogka.kernels.triton_attention import triton_attention
from nanogka.model import GPT, GPTConfig, activation_bytes

B = 32
VIEWS = {"view", "reshape", "permute", "expand", "transpose", "unsqueeze", "squeeze", "slice", "select", "alias", "t"}
# Per mixer: GB that two layers and what is around them keep for the backward pass, and kernels, forward and backward.
# The plan of today has 4.10, 5.45 and 5.63, and 70, 103 and 115. For an H100, which
# tests/kernels/cuda_plan.py of ad6a5c6 pretends, it fuses a little more.
MOST = {"gaussian": (4.15, 76), "successor": (5.55, 109), "dot_product": (5.75, 121)}


def owner(node):
    """The node whose memory `node` looks at."""
    while getattr(node.target, "_opname", "") in VIEWS:
        node = node.args[0]
    return node


def kept_bytes(graph):
    """Bytes of the results that the forward graph makes."""
    results = tree_leaves(next(node for node in graph.nodes if node.op == "output").args)
    made = {owner(node) for node in results if isinstance(node, torch.fx.Node)}
    return sum(n.meta["val"].nbytes for n in made if n.op == "call_function")


def kernels_of(graph, inputs, is_backward):
    """The names of the kernels that run once a graph is lowered, ours by their own."""
    compile_fx.view_to_reshape(graph)
    with torch.no_grad():
        mode = compile_fx.fake_tensor_prop(graph, inputs)
    compile_fx._recursive_record_original_output_strides(graph)
    with V.set_fake_mode(mode):
        compile_fx._recursive_post_grad_passes(graph, is_inference=False)
        kernels = GraphLowering(
            graph, example_inputs=inputs, is_inference=False, is_backward=is_backward,
            get_decomp_fn=compile_fx.select_decomp_table,
        )  # fmt: skip
        with V.set_graph_handler(kernels), V.set_extern_kernel_nodes([]), V.set_debug_handler(DebugContext()):
            kernels.run(*inputs)
            kernels.init_wrapper_code()
            kernels._update_scheduler()
    for node in kernels.scheduler.nodes:
        kind, ours = type(node).__name__, str(getattr(node.node, "op_overload", "")).split(".")
        if ours[0] == "nanogka":
            yield ours[1]
        elif kind == "ExternKernelSchedulerNode" and getattr(node.node, "python_kernel_name", None):
            yield "library"
        elif kind not in ("ExternKernelSchedulerNode", "NopKernelSchedulerNode"):
            yield "fused"


def plan(config):
    """(graphs, bytes kept, kernels) of one micro-batch, forward and backward, with an evaluation in between."""
    kept, kernels = [], Counter()

    def measure(graph, inputs, is_backward=False, **options):
        run = copy.deepcopy(graph)
        kept.append(0 if is_backward else kept_bytes(graph.graph))
        kernels.update(kernels_of(graph, inputs, is_backward))
        return make_boxed_func(run.forward)

    def backend(graph, inputs):
        return compile_fx.compile_fx(graph, inputs, inner_compile=measure)

    with FakeTensorMode():
        model = GPT(config, compute_dtype=torch.bfloat16)
        ids = torch.zeros(B, config.sequence_len, dtype=torch.int64)
        compiled = torch.compile(model, backend=backend, dynamic=False, fullgraph=True)
        compiled(ids, ids)
        with torch.no_grad():
            model(ids, ids, "none")
        compiled(ids, ids)
    return len(kept), sum(kept), kernels


@pytest.mark.parametrize("mixer", MOST)
@torch._functorch.config.patch(force_non_lazy_backward_lowering=True)
@torch._inductor.config.patch(shape_padding=False, fx_graph_cache=False, fallback_random=True, compile_threads=1)
def test_a_step_is_one_graph_that_keeps_and_launches_little(mixer, monkeypatch):
    torch._dynamo.reset()
    monkeypatch.setattr(GPT, "init_weights", lambda self, seed=0: None)
    monkeypatch.setattr(dispatch, "attention_kernel", lambda *what: triton_attention)
    config = replace(GPTConfig.from_depth(20, mixer), n_layer=2)
    graphs, kept, kernels = plan(config)
    positions, (most, most_kernels) = B * config.sequence_len, MOST[mixer]
    around = 2 * 2 * positions * config.n_embd  # the embedding and the last hidden states, bfloat16
    assert graphs == 2  # forward and backward, compiled once
    assert kept <= most * 1e9
    assert activation_bytes(config, positions, 2) == pytest.approx(kept - around, rel=0.1)
    assert kernels.total() <= most_kernels, kernels
    assert kernels["gaussian_attention"] == kernels["gaussian_attention_backward"] == 2
