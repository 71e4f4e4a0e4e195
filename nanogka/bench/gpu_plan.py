"""The kernels of a training step on a GPU that is not here, as torch's compiler plans them.

A micro-batch is traced on fake CPU tensors of the real sizes. Every node of the two graphs then gets the device cuda:0,
and Inductor lowers and schedules them for an H100, whose properties are given below. Nothing is computed or run.
"""

import copy
import types
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses import fake_tensor
from torch.utils._pytree import tree_leaves, tree_map

from nanogka import backends
from nanogka.model import GPT, GPTConfig

CUDA = torch.device("cuda", 0)
LAYERS = 4  # that are traced: one period of the window pattern and of the layers with value embeddings
VIEWS = {"view", "reshape", "permute", "expand", "transpose", "unsqueeze", "squeeze", "slice", "select", "alias", "t"}
H100 = types.SimpleNamespace(
    **{"name": "NVIDIA H100 80GB HBM3", "major": 9, "minor": 0, "gcnArchName": "", "uuid": ""},
    **{"multi_processor_count": 132, "total_memory": 80 * 2**30, "L2_cache_size": 50 * 2**20, "warp_size": 32},
    **{"max_threads_per_multi_processor": 2048, "max_threads_per_block": 1024, "regs_per_multiprocessor": 65536},
    **{"shared_memory_per_block": 49152, "shared_memory_per_block_optin": 232448},
    **{"shared_memory_per_multiprocessor": 233472, "clock_rate": 1980000},
    **{"memory_clock_rate": 2619000, "memory_bus_width": 5120},
)


@dataclass
class KernelPlan:
    """Counts of one micro-batch, forward and backward."""

    fused: int = 0  # kernels that the compiler writes: element-wise work and reductions
    moved: float = 0.0  # bytes that those read and write
    others: Counter = field(default_factory=Counter)  # calls of products, attention and the loss, by operator
    kept: float = 0.0  # bytes that the forward pass keeps for the backward pass

    @property
    def launches(self) -> int:
        """Kernels of both passes. The loss is one call here, and a few launches per chunk of logits."""
        return self.fused + self.others.total()

    def scaled(self, factor: float) -> "KernelPlan":
        """The plan of `factor` times as many layers; what is around them is small."""
        others = Counter(
            {name: round(factor * n) if "cross_entropy" not in name else n for name, n in self.others.items()}
        )
        return KernelPlan(round(factor * self.fused), factor * self.moved, others, factor * self.kept)


def plan_kernels(config: GPTConfig, rows: int, fp8: bool = False) -> KernelPlan:
    """Plan a micro-batch of `rows` rows in bfloat16: trace `LAYERS` layers, and scale the counts to the depth."""
    from functorch.compile import make_boxed_func
    from torch._inductor import compile_fx  # here, because it takes seconds

    plan = KernelPlan()
    traced = replace(config, n_layer=min(LAYERS, config.n_layer))
    with _a_cpu_passes_for_the_gpu(), fake_tensor.FakeTensorMode():
        torch._dynamo.reset()
        model = GPT(traced, compute_dtype=torch.bfloat16)
        if fp8:
            model.use_fp8()
        ids = torch.zeros(rows, config.sequence_len, dtype=torch.int64)

        def inner(graph: torch.fx.GraphModule, inputs: list, is_backward: bool = False, **_: object) -> object:
            run = copy.deepcopy(graph)  # the trace continues with fake tensors on the CPU
            _count(graph, inputs, is_backward, plan)
            return make_boxed_func(run.forward)

        def backend(graph: torch.fx.GraphModule, inputs: list) -> object:
            return compile_fx.compile_fx(graph, inputs, inner_compile=inner)

        torch.compile(model, backend=backend, dynamic=False, fullgraph=True)(ids, ids)
        torch._dynamo.reset()
    return plan.scaled(config.n_layer / traced.n_layer)


def kept_bytes(graph: torch.fx.Graph) -> int:
    """Bytes of the results that a forward graph makes, apart from views of its inputs."""

    def owner(node: torch.fx.Node) -> torch.fx.Node:
        while getattr(node.target, "_opname", "") in VIEWS:
            node = node.args[0]
        return node

    results = tree_leaves(next(node for node in graph.nodes if node.op == "output").args)
    made = {owner(node) for node in results if isinstance(node, torch.fx.Node)}
    return sum(node.meta["val"].nbytes for node in made if node.op == "call_function")


def _count(graph: torch.fx.GraphModule, inputs: list, is_backward: bool, plan: KernelPlan) -> None:
    """Lower one graph for the H100 and add its kernels to the plan."""
    from torch._inductor import compile_fx
    from torch._inductor.debug import DebugContext
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    compile_fx.view_to_reshape(graph)
    with torch.no_grad():
        mode = compile_fx.fake_tensor_prop(graph, inputs)
    compile_fx._recursive_record_original_output_strides(graph)
    with V.set_fake_mode(mode):
        compile_fx._recursive_post_grad_passes(graph, is_inference=False)
    if not is_backward:
        plan.kept = kept_bytes(graph.graph)
    for node in graph.graph.nodes:
        node.meta |= {key: _on_gpu(node.meta[key], mode) for key in ("val", "example_value") if key in node.meta}
        if node.kwargs.get("device") is not None:
            node.kwargs = {**node.kwargs, "device": CUDA}
    inputs = _on_gpu(list(inputs), mode)
    with _a_gpu_is_there(), V.set_fake_mode(mode):
        lowering = GraphLowering(
            graph,
            example_inputs=inputs,
            is_inference=False,
            is_backward=is_backward,
            get_decomp_fn=compile_fx.select_decomp_table,
        )
        handlers = V.set_graph_handler(lowering), V.set_extern_kernel_nodes([]), V.set_debug_handler(DebugContext())
        with handlers[0], handlers[1], handlers[2]:
            lowering.run(*inputs)
            lowering.codegen()
            for node in lowering.scheduler.nodes:
                _add(node, plan)


def _add(node: object, plan: KernelPlan) -> None:
    """Add a node of Inductor's schedule."""
    kind = type(node).__name__
    if kind == "NopKernelSchedulerNode" or type(node.node).__name__ == "MultiOutput":  # a part of a call's result
        return
    if kind != "ExternKernelSchedulerNode":
        plan.fused += 1
        plan.moved += node.get_read_write_buffers_sizes()
        return
    call = node.node
    plan.others[getattr(call, "python_kernel_name", None) or str(getattr(call, "op_overload", "?"))] += 1


def _on_gpu(value: object, mode: fake_tensor.FakeTensorMode) -> object:
    """`value` with its fake tensors on the GPU."""

    def move(leaf: object) -> object:
        if not isinstance(leaf, fake_tensor.FakeTensor) or leaf.device.type != "cpu":
            return leaf
        with torch.no_grad():
            meta = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="meta")
        return fake_tensor.FakeTensor(mode, meta, CUDA)

    return tree_map(move, value)


@contextmanager
def _a_cpu_passes_for_the_gpu() -> Iterator[None]:
    """The model is built as on CUDA: with FlashAttention and the kernel of the loss in the graph."""
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor

    settings = {"fx_graph_cache": False, "shape_padding": False, "fallback_random": True, "compile_threads": 1}
    with (
        patch.object(backends, "GPU", "cpu"),
        patch.object(backends, "_disabled", {("cpu", torch.bfloat16): None}),
        patch.object(GPT, "init_weights", lambda self, seed=0: None),
        functorch.patch(force_non_lazy_backward_lowering=True),
        inductor.patch(settings),
    ):
        yield


@contextmanager
def _a_gpu_is_there() -> Iterator[None]:
    """Inductor finds an H100."""
    import sys

    import torch._inductor.scheduler  # noqa: F401 (has a name that is patched)
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor import utils
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    def properties(device: object = None) -> types.SimpleNamespace:
        return H100

    def zero(*_: object) -> int:
        return 0

    def new_empty(self: Tensor, *size: object, dtype: object = None, device: object = None, **_: object) -> Tensor:
        shape = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
        return torch.empty(tuple(shape), dtype=dtype or self.dtype, device=device or self.device)

    chip = types.SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_current_device=zero,
        get_current_stream=zero,
        get_active_torch_device=lambda: CUDA,
        get_device_interface=lambda: torch.cuda,
    )
    answers: list[tuple[object, str, object]] = [
        *((torch.cuda, name, lambda *_: True) for name in ("is_available", "is_initialized")),
        *((torch.cuda, name, zero) for name in ("current_device", "_lazy_init", "synchronize")),
        (torch.cuda, "device_count", lambda: 1),
        (torch.cuda, "get_device_properties", properties),
        (torch.cuda, "get_device_capability", lambda device=None: (9, 0)),
        (CudaInterface, "is_available", staticmethod(lambda: True)),
        (CudaInterface, "get_compute_capability", staticmethod(lambda device=None: 90)),
        *(
            (owner, "get_device_properties", staticmethod(properties))
            for owner in (CudaInterface, CudaInterface.Worker)
        ),
        *((owner, "current_device", staticmethod(zero)) for owner in (CudaInterface, CudaInterface.Worker)),
        *((utils, name, lambda *_: 132) for name in ("get_max_num_sms", "get_num_sms")),
        (fake_tensor, "init_gpu_context", zero),
        (torch.Tensor, "new_empty", new_empty),
    ]
    modules = [
        module for name, module in list(sys.modules.items()) if name.startswith(("torch._inductor", "torch.utils._tri"))
    ]
    answers += [(module, "has_triton", lambda *_: True) for module in modules if hasattr(module, "has_triton")]
    with ExitStack() as stack:
        for owner, name, answer in answers:
            if hasattr(owner, name):
                stack.enter_context(patch.object(owner, name, answer))
        before = driver._active if hasattr(driver, "_active") else None
        driver.set_active(chip)
        try:
            yield
        finally:
            driver._active = before
