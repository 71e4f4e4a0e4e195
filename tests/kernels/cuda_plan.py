"""Inductor's plan of a training step on an H100, made on a machine without a GPU: bytes kept, launches, bytes moved.

    python tests/kernels/cuda_plan.py gaussian,successor,dot_product          the table of docs/RESULTS.md
    python tests/kernels/cuda_plan.py gaussian 2,4                            a JSON line for each of these depths

The model is traced on fake tensors of the real sizes, B = 32 and T = 2048; then the nodes of its graphs are moved to
cuda:0, and Inductor lowers, fuses and schedules them. Nothing is computed. Depth 20 is extrapolated from 2 and 4.
"""

import copy
import itertools
import json
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import torch
from ahead_of_time import FakeDriver
from functorch.compile import make_boxed_func
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import compile_fx, utils
from torch._inductor.debug import DebugContext
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from triton.runtime.driver import driver

sys.path.insert(0, str(Path(__file__).parents[2]))
from nanogka import dispatch
from nanogka.bench.attention import Shape
from nanogka.formatting import markdown_table
from nanogka.kernels.triton_attention import triton_attention
from nanogka.model import GPT, GPTConfig, count
from nanogka.train.horizon import plan_horizon
from nanogka.train.optimizer import Rates
from nanogka.train.zero import ShardedOptimizer

B, DTYPE, CUDA = 32, torch.bfloat16, torch.device("cuda", 0)
H100 = SimpleNamespace(
    name="NVIDIA H100 80GB HBM3", major=9, minor=0, multi_processor_count=132, total_memory=80 * 2**30, warp_size=32,
    max_threads_per_multi_processor=2048, max_threads_per_block=1024, regs_per_multiprocessor=65536,
    shared_memory_per_block=49152, shared_memory_per_block_optin=232448, shared_memory_per_multiprocessor=233472,
    L2_cache_size=50 * 2**20, gcnArchName="", uuid="", clock_rate=1980000,
)  # fmt: skip
VIEWS = {"view", "reshape", "permute", "expand", "transpose", "unsqueeze", "squeeze", "slice", "select", "alias", "t"}
# Kernels that an operator of ours launches: attention's backward has δ, the gradients and two for σ's; the loss has,
# for each 4096 rows, three products, its own kernel and the sum of the weight's gradient.
LAUNCHES = {"gaussian_attention": 1, "gaussian_attention_backward": 4, "cross_entropy_total": 16 * 5 + 10}


def pretended_cuda():
    """Patches that let Inductor believe in one H100."""
    stack, properties = ExitStack(), staticmethod(lambda device=None: H100)
    answers = {"is_available": True, "current_device": 0, "device_count": 1, "get_device_capability": (9, 0)}
    answers |= {"is_initialized": True, "_lazy_init": None, "synchronize": None, "get_device_properties": H100}
    for name, answer in answers.items():
        stack.enter_context(patch.object(torch.cuda, name, lambda *a, answer=answer: answer))
    for owner in (CudaInterface, CudaInterface.Worker):
        stack.enter_context(patch.object(owner, "get_device_properties", properties))
        stack.enter_context(patch.object(owner, "current_device", staticmethod(lambda: 0)))
    stack.enter_context(patch.object(CudaInterface, "is_available", staticmethod(lambda: True)))
    stack.enter_context(patch.object(CudaInterface, "get_compute_capability", staticmethod(lambda device=None: 90)))
    stack.enter_context(patch.object(fake_tensor, "init_gpu_context", lambda device: None))
    for module in [m for name, m in sys.modules.items() if name.startswith(("torch._inductor", "torch.utils._triton"))]:
        if hasattr(module, "has_triton"):
            stack.enter_context(patch.object(module, "has_triton", lambda *a: True))
    stack.enter_context(patch.object(utils, "get_max_num_sms", lambda *a: 132))
    new_empty = lambda t, *size, dtype=None, device=None, **rest: torch.empty(  # noqa: E731
        *size, dtype=dtype or t.dtype, device=device or t.device
    )
    stack.enter_context(patch.object(torch.Tensor, "new_empty", new_empty))
    return stack


def on_cuda(values, mode):
    def moved(value):
        if not (isinstance(value, FakeTensor) and value.device.type == "cpu"):
            return value
        with torch.no_grad():
            like = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        return FakeTensor(mode, like, CUDA)

    return tree_map(moved, values)


def owner(node):
    """The node whose memory `node` looks at."""
    while getattr(node.target, "_opname", "") in VIEWS:
        node = node.args[0]
    return node


def kept_bytes(graph):
    """Bytes of the results that the forward graph makes."""
    results = tree_leaves(next(node for node in graph.nodes if node.op == "output").args)
    made = {owner(node) for node in results if isinstance(node, torch.fx.Node)}
    return sum(n.meta["val"].numel() * n.meta["val"].element_size() for n in made if n.op == "call_function")


def measured(graph, example_inputs, **options):
    """Stand in for Inductor's compiler of one graph: count what it keeps, and what runs once it is lowered for CUDA."""
    run, is_backward = copy.deepcopy(graph), options.get("is_backward", False)
    compile_fx.view_to_reshape(graph)
    with torch.no_grad():
        mode = compile_fx.fake_tensor_prop(graph, example_inputs)
    compile_fx._recursive_record_original_output_strides(graph)
    with V.set_fake_mode(mode):
        compile_fx._recursive_post_grad_passes(graph, is_inference=False)
    found = {"graphs": 1, "kept": 0 if is_backward else kept_bytes(graph.graph), "launches": 0, "fused": 0, "flops": 0}
    for node in graph.graph.nodes:
        node.meta.update({key: on_cuda(node.meta[key], mode) for key in ("val", "example_value") if key in node.meta})
        if node.kwargs.get("device") is not None:
            node.kwargs = {**node.kwargs, "device": CUDA}
    inputs = on_cuda(list(example_inputs), mode)
    with pretended_cuda(), V.set_fake_mode(mode):
        lowering = GraphLowering(
            graph, example_inputs=inputs, is_inference=False, is_backward=is_backward,
            get_decomp_fn=compile_fx.select_decomp_table,
        )  # fmt: skip
        with V.set_graph_handler(lowering), V.set_extern_kernel_nodes([]), V.set_debug_handler(DebugContext()):
            lowering.run(*inputs)
            lowering.init_wrapper_code()
            lowering._update_scheduler()
            for node in lowering.scheduler.nodes:
                add_kernel(found, node)
    for name, value in found.items():
        totals[name] = totals.get(name, 0) + value
    return make_boxed_func(run.forward)


def add_kernel(found, node):
    if type(node).__name__ == "NopKernelSchedulerNode":
        return
    if type(node).__name__ != "ExternKernelSchedulerNode":
        found["launches"] += 1
        found["fused"] += int(node.get_read_write_buffers_sizes())
        return
    kernel = node.node
    ours = str(getattr(kernel, "op_overload", "")).split(".")
    if ours[0] == "nanogka":
        found[ours[1]] = found.get(ours[1], 0) + 1
        found["launches"] += LAUNCHES[ours[1]]
    elif name := getattr(kernel, "python_kernel_name", None):
        found["launches"] += 1
        if name == "extern_kernels.mm":
            (m, k), (_, n) = ([int(size) for size in value.get_size()] for value in kernel.inputs[:2])
            found["flops"] += 2 * m * k * n


def plan(mixer, depth):
    """Totals of the graphs of one micro-batch, forward and backward, after an evaluation in between."""
    global totals
    totals = {}
    torch._dynamo.reset()
    with FakeTensorMode():
        model = GPT(replace(GPTConfig.from_depth(20, mixer), n_layer=depth), compute_dtype=DTYPE)
        ids = torch.zeros(B, model.config.sequence_len, dtype=torch.int64)
        backend = lambda graph, inputs: compile_fx.compile_fx(graph, inputs, inner_compile=measured)  # noqa: E731
        compiled = torch.compile(model, backend=backend, dynamic=False, fullgraph=True)
        compiled(ids, ids)
        with torch.no_grad():
            model(ids, ids, "none")
        compiled(ids, ids)
    return totals


class Operations(TorchDispatchMode):
    """Counts the operations that launch a kernel: views and empty tensors do not."""

    count = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        aside = operation.is_view or operation._opname in ("empty", "_unsafe_view", "scalar_tensor")
        self.count += operation.namespace == "aten" and not aside
        return operation(*args, **(kwargs or {}))


def update_launches(mixer):
    """Kernels that Muon launches in a step of depth 20 on one GPU; AdamW's are fused."""
    with FakeTensorMode():
        optimizer = ShardedOptimizer(
            GPT(config := GPTConfig.from_depth(20, mixer)), Rates(), plan_horizon(config), DTYPE
        )
        for p in optimizer.parameters.values():
            p.grad = torch.empty_like(p)
        optimizer.muon.step()  # which makes the state
        with Operations() as operations:
            optimizer.muon.step()
    return operations.count


def at_depth_20(two, four):
    """Totals at depth 20, of which a layer is half the difference between depths 2 and 4."""
    return {name: four[name] + 8 * (four[name] - two[name]) for name in four}


def estimate(mixer, totals):
    """A row of the table: the totals of depth 20, and what they take at rates that an H100 is taken to reach."""
    config = GPTConfig.from_depth(20, mixer)
    T, C, vocabulary = config.sequence_len, config.n_embd, config.vocab_size
    shapes = [Shape(B, T, config.n_head, config.head_dim, window, DTYPE) for window in config.windows()]
    attention = sum(shape.forward_flops() for shape in shapes)
    products = totals["flops"] + 3 * 2 * B * T * C * vocabulary
    # The loss's own kernel reads and writes the logits; a chunk's part of the weight's gradient is added in float32.
    scored = 2 * 2 * B * T * vocabulary + 16 * vocabulary * C * (2 * 2 + 2 * 4)
    ms = [products / 620e9, totals["fused"] / 2.7e9, attention / 330e9 + 2.5 * attention / 200e9, scored / 2.7e9]
    speed = B * T / sum(ms) * 1e3
    mfu = speed * count(config).flops_per_token / 989e12
    shown = [
        f"{totals['kept'] / 1e9:.1f}",
        f"{totals['launches']:,} + {update_launches(mixer):,}",
        f"{totals['fused'] / 1e9:.0f}",
    ]
    shown += [f"{products / 1e12:.0f}", f"{3.5 * attention / 1e12:.1f}", " + ".join(f"{part:.0f}" for part in ms)]
    return [mixer, *shown, f"{sum(ms):.0f}", f"{speed / 1e3:.0f} k", f"{mfu:.0%}"]


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch._functorch.config.force_non_lazy_backward_lowering = True
    settings = {"shape_padding": False, "fx_graph_cache": False, "fallback_random": True, "compile_threads": 1}
    torch._inductor.config.load_config({**torch._inductor.config.get_config_copy(), **settings})
    driver.set_active(FakeDriver())
    GPT.init_weights = lambda self, seed=0: None
    dispatch.attention_kernel = lambda *what: triton_attention
    if len(sys.argv) == 3:
        for mixer, depth in itertools.product(sys.argv[1].split(","), map(int, sys.argv[2].split(","))):
            print(json.dumps({"mixer": mixer, "depth": depth} | plan(mixer, depth)), flush=True)
    else:
        rows = [estimate(mixer, at_depth_20(plan(mixer, 2), plan(mixer, 4))) for mixer in sys.argv[1].split(",")]
        heads = ["", "kept, GB", "launches", "element-wise, GB", "products, TFLOP", "attention, TFLOP", "ms", "sum, ms"]
        print(markdown_table([*heads, "tokens/s", "MFU"], rows))
