"""A decoding step of fixed shapes, recorded once and replayed: what makes a token cheap on a GPU.

At one token a stream the network is several hundred small kernels; launching them one by one takes longer than running
them. A CUDA graph launches all of them at once, if nothing in the step depends on the host: here lengths and
positions are tensors on the device, every layer has all the slots it will ever need, and memory stays where it is.

    step = StaticStep(model, batch=1, capacity=2048, mode="graph")
    step.load(cache.layers, cache.lengths)      # what a prefill left in a `DecodeCache`
    logits = step(tokens)                       # (B,) int64, −1 for streams that have ended; (B, V) float32

Shapes: B streams, S slots, H heads, D features a head, V vocabulary.
"""

import logging
from collections.abc import Sequence
from types import FunctionType, MethodType

import torch
from torch import Tensor

from nanogka.model import GPT
from nanogka.problems import in_one_line

log = logging.getLogger(__name__)

MODES = ("plain", "graph", "compiled")
WARM_UP = 3  # runs before the recording: kernels are compiled, libraries allocate their workspaces


class StaticCache:
    """The decode cache of a step of fixed shapes; see `nanogka.model.Cache` and, for what is where, `DecodeCache`.

    Takes one token a row. A row that gets −1 stays as it is, but for the slot that its next token would take.

    Attributes:
        lengths: (B,) int64, tokens remembered of each row.
        layers: of each layer the tensors (B, S, H, D) of what it remembers, S the capacity or the ring.
    """

    partly_filled = True

    def __init__(self, model: GPT, batch: int, capacity: int) -> None:
        self.capacity = capacity
        self.lengths = torch.zeros(batch, dtype=torch.int64, device=model.device)
        self.layers: list[tuple[Tensor, ...]] = []
        self._rings = [_ring(block.mixer.window, capacity) for block in model.blocks]
        self._rows = torch.arange(batch, device=model.device)
        self._slots: dict[int, Tensor] = {}

    def load(self, layers: Sequence[tuple[Tensor, ...]], lengths: Tensor) -> None:
        """Take over what another cache remembers: tensors (b, slots, H, D) of b ≤ B rows and their lengths (b,), at
        most the capacity. The other rows are empty."""
        if not self.layers:
            batch = len(self.lengths)
            self.layers = [
                tuple(t.new_zeros(batch, ring, *t.shape[2:]) for t in tensors)
                for tensors, ring in zip(layers, self._rings)
            ]
        for mine, theirs in zip(self.layers, layers):
            for tensor, values in zip(mine, theirs):
                kept = min(tensor.shape[1], values.shape[1])
                tensor[: len(values), :kept] = values[:, :kept]
        self.lengths.zero_()
        self.lengths[: len(lengths)] = lengths

    def begin(self, ids: Tensor) -> Tensor:
        """See `nanogka.model.Cache`; ids (B, 1)."""
        self._advance = (ids[:, 0] >= 0).to(torch.int64)
        self._slots = {}
        return torch.where(ids >= 0, self.lengths[:, None], -1)

    def positions(self, window: int | None) -> Tensor:
        """See `nanogka.model.Cache`; (B, S), −1 where a slot is empty."""
        last = self.lengths[:, None]
        slots = torch.arange(_ring(window, self.capacity), device=last.device)
        if window is None or window >= self.capacity:
            return torch.where(slots <= last, slots, -1)
        return (last - (last - slots) % (window + 1)).clamp_min(-1)

    def extend(self, layer: int, new: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """See `nanogka.model.Cache`; tensors (B, 1, H, D) in, all slots out."""
        ring = self._rings[layer]
        if ring not in self._slots:
            # Only rows that have ended can be full: what they overwrite is never read again.
            inside = self.lengths.clamp_max(self.capacity - 1) if ring == self.capacity else self.lengths % ring
            self._slots[ring] = inside
        for tensor, values in zip(self.layers[layer], new):
            tensor[self._rows, self._slots[ring]] = values[:, 0]
        return self.layers[layer]

    def end(self) -> None:
        """See `nanogka.model.Cache`."""
        self.lengths += self._advance


class StaticStep:
    """One token for each of B streams by one model, as fast as the mode allows.

    Args:
        model: in evaluation, its parameters where they will stay.
        batch: B.
        capacity: positions that a stream may come to have.
        mode: `plain` (the network as it is), `graph` (recorded in a CUDA graph), `compiled` (by `torch.compile`, and
            recorded where there is CUDA). What cannot be done is logged, and the next simpler mode used.

    Raises:
        ValueError: if the mode is unknown.
    """

    def __init__(self, model: GPT, batch: int, capacity: int, mode: str = "graph") -> None:
        if mode not in MODES:
            raise ValueError(f"mode: got {mode!r}, takes {', '.join(MODES)}")
        self.model, self.mode = model, mode
        self.cache = StaticCache(model, batch, capacity)
        self._tokens = torch.full((batch,), -1, dtype=torch.int64, device=model.device)
        self._function = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self._logits: Tensor | None = None
        self._recordable = model.device.type == "cuda"

    @property
    def batch(self) -> int:
        """B."""
        return len(self._tokens)

    @torch.no_grad()
    def load(self, layers: Sequence[tuple[Tensor, ...]], lengths: Sequence[int]) -> None:
        """Begin with what another cache remembers; see `StaticCache.load`."""
        self.cache.load(layers, torch.tensor(lengths, dtype=torch.int64, device=self.model.device))

    @torch.no_grad()
    def __call__(self, tokens: Tensor) -> Tensor:
        """Remember tokens (B,) int64, −1 for streams that have ended; returns (B, V) float32 logits of what follows.

        In the recorded modes the next call overwrites them.
        """
        self._tokens.copy_(tokens)
        if self._function is None:
            self._prepare()
            self._tokens.copy_(tokens)
        if self._graph is None:
            return self._function()
        self._graph.replay()
        return self._logits

    def _compute(self) -> Tensor:
        return self.model.unembed(self.model.hidden(self._tokens[:, None], self.cache)[:, -1])

    def _prepare(self) -> None:
        """Find the function that works here, and record it; streams without tokens keep what was loaded."""
        self._function = self._compute
        if self.mode == "plain":
            return
        self._tokens.fill_(-1)
        if self.mode == "compiled":
            options = {"guard_filter_fn": _of_tensors, "size_asserts": False}
            compiled = torch.compile(_with_own_code(self._compute), dynamic=False, fullgraph=True, options=options)
            try:
                self._compute()  # back-ends are chosen by running them, which is not to be traced
                compiled()
                self._function = compiled
            except Exception as error:  # the compiler's failures have no common type
                self._fall_back("compile", error)
        if self._recordable:
            try:
                self._record()
            except Exception as error:  # nor have those of a recording
                self._graph = None
                self._fall_back("record", error)

    def _fall_back(self, what: str, error: Exception) -> None:
        log.warning("decoding step: cannot %s it: %s", what, in_one_line(error))

    def _record(self) -> None:
        stream = torch.cuda.Stream(self.model.device)
        stream.wait_stream(torch.cuda.current_stream(self.model.device))
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self._function()
        torch.cuda.current_stream(self.model.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self.model.device), torch.cuda.graph(graph):
            self._logits = self._function()
        self._graph = graph


def _with_own_code(method: MethodType) -> MethodType:
    """The method with a code object of its own: by that the compiler tells what it has compiled, beside its guards."""
    function = method.__func__
    own = FunctionType(function.__code__.replace(), function.__globals__, closure=function.__closure__)
    return MethodType(own, method.__self__)


def _of_tensors(guards: Sequence) -> list[bool]:
    """Whether to check each guard at every token: shapes, dtypes and devices, not the hundreds of Python values that
    make the model, which is as it was when the step was made."""
    return [guard.guard_type == "TENSOR_MATCH" for guard in guards]


def _ring(window: int | None, capacity: int) -> int:
    return capacity if window is None else min(capacity, window + 1)
