"""Which code runs the operator: the candidates, a probe of each on the actual device, and the choice.

A back-end counts as working when a small problem, forward and backward, run on that device in that dtype, agrees with
the literal reference in float64. Among those that work on CUDA the fastest at the actual shape is measured once and
remembered (shapes count as equal when they round up to the same powers of two). One log line says what was chosen and
why.

The choice is made outside of any traced graph, so `torch.compile` sees the chosen back-end alone. While it traces,
nothing new can be compiled to be measured: call the operator once before at the shapes to come, or `flex` is no
candidate.
"""

import functools
import logging
import statistics
import time
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from nanogka.attention.graphs import constant_in_graphs
from nanogka.attention.reduction import softmax_features
from nanogka.attention.reference import gaussian_reference
from nanogka.attention.softmax import softmax_attention
from nanogka.problems import in_one_line

log = logging.getLogger(__name__)

BACKENDS = ("auto", "reference", "sdpa", "triton", "flex", "varlen")
CANDIDATES = {"cuda": ("triton", "sdpa", "flex", "varlen")}  # elsewhere sdpa alone: nothing else is fast there
REPEATS = 5  # timings of a candidate, after two that warm it up
CALLS = 3  # in a row that a timing averages: in training, too, a kernel is launched while others run


def run(
    backend: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bandwidth: Tensor,
    *,
    causal: bool,
    window: int | None,
    equal_key_norms: bool,
) -> Tensor:
    """The operator by the back-end of that name; arguments and result as `nanogka.attention.gaussian_attention`."""
    if backend == "reference":
        return gaussian_reference(q, k, v, bandwidth, causal=causal, window=window)
    if backend == "triton":
        from nanogka.attention.triton_ops import triton_attention  # Triton is optional, there is none on macOS

        return triton_attention(q, k, v, bandwidth, causal=causal, window=window, equal_key_norms=equal_key_norms)
    q, k = softmax_features(q, k, bandwidth, equal_key_norms)
    if backend == "flex":
        from nanogka.attention.flex import flex_attention

        return flex_attention(q, k, v, causal=causal, window=window)
    if backend == "varlen":
        from nanogka.attention.varlen import varlen_attention

        return varlen_attention(q, k, v, causal=causal, window=window)
    return softmax_attention(q, k, v, scale=1.0, causal=causal, window=window)


@dataclass(frozen=True)
class Case:
    """What a choice depends on: shapes (B, T, H, D, D_v), whether q is k, whether gradients are wanted."""

    device: torch.device
    dtype: torch.dtype
    sizes: tuple[int, int, int, int, int]
    shared: bool
    learns: bool
    causal: bool
    window: int | None
    equal_key_norms: bool

    def rounded(self) -> "Case":
        """The case that stands for all of about this size."""
        up = tuple(1 << max(0, size - 1).bit_length() for size in self.sizes[:3])
        window = None if self.window is None else 1 << self.window.bit_length()
        return replace(self, sizes=(*up, *self.sizes[3:]), window=window)

    def options(self) -> dict:
        """Keyword arguments of the operator."""
        return {"causal": self.causal, "window": self.window, "equal_key_norms": self.equal_key_norms}

    def inputs(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Random leaves (q, k, v, σ), q and k of unit RMS as the case may promise."""
        B, T, H, D, DV = self.sizes
        generator = torch.Generator(self.device).manual_seed(T)
        wide = torch.promote_types(self.dtype, torch.float32)
        draw = functools.partial(torch.randn, generator=generator, device=self.device, dtype=wide)
        q, k = (F.rms_norm(draw(B, T, H, D), (D,)).to(self.dtype).requires_grad_() for _ in range(2))
        sigma = torch.full((H,), D**0.5 / 2, device=self.device, dtype=wide).requires_grad_()
        return q, q if self.shared else k, draw(B, T, H, DV).to(self.dtype).requires_grad_(), sigma


class Chooser:
    """Probes and measures back-ends, and remembers the outcome."""

    def __init__(self) -> None:
        self.reasons: dict[tuple, str | None] = {}
        self.choices: dict[Case, str] = {}

    def why_not(self, backend: str, case: Case) -> str | None:
        """Why the back-end cannot run cases like this one, None if it can: by running a small one."""
        small = replace(
            case, sizes=(1, 80, 8, *case.sizes[3:]), window=None if case.window is None else 17, learns=True
        )
        key = (backend, small)
        if key not in self.reasons:
            try:
                self.reasons[key] = _disagreement(backend, small)
            except Exception as error:  # compilers, drivers and argument checks fail in many types
                self.reasons[key] = in_one_line(error)
        return self.reasons[key]

    def choose(self, backend: str, case: Case) -> str:
        """The back-end to run; `auto` is resolved.

        Raises:
            ValueError: if a back-end asked for by name cannot run here.
        """
        if backend != "auto":
            reason = self.why_not(backend, case)
            if reason:
                raise ValueError(f"backend: {backend!r} cannot run on {case.device} in {case.dtype}: {reason}")
            return backend
        key = case.rounded()
        if key not in self.choices:
            self.choices[key], why = self._fastest(case)
            log.info("attention on %s, %s: %s (%s)", case.device, _shape_text(case), self.choices[key], why)
        return self.choices[key]

    def _fastest(self, case: Case) -> tuple[str, str]:
        tracing = torch._guards.TracingContext.try_get() is not None
        failures, working = [], []
        for name in CANDIDATES.get(case.device.type, ("sdpa",)):
            if tracing and name == "flex":
                failures.append("flex: not measured while a graph is traced")
                continue
            reason = self.why_not(name, case)
            if reason:
                failures.append(f"{name}: {reason}")
            else:
                working.append(name)
        if not working:
            return "reference", "nothing fused works: " + "; ".join(failures)
        if len(working) == 1:
            return working[0], "; ".join(["agrees with the reference", *failures])
        seconds = {}
        for name in working:
            try:
                seconds[name] = _seconds(name, case)
            except torch.cuda.OutOfMemoryError:
                failures.append(f"{name}: out of memory")
        if not seconds:
            return working[0], "; ".join(["first that agrees with the reference", *failures])
        times = ", ".join(f"{name} {1e3 * s:.3f} ms" for name, s in sorted(seconds.items(), key=lambda pair: pair[1]))
        return min(seconds, key=seconds.get), "; ".join([f"fastest of {times}", *failures])


_chooser = Chooser()


@constant_in_graphs
def choose(
    backend: str,
    device: torch.device,
    dtype: torch.dtype,
    sizes: tuple[int, int, int, int, int],
    shared: bool,
    learns: bool,
    causal: bool,
    window: int | None,
    equal_key_norms: bool,
) -> str:
    """The back-end for a call of the operator; see `Chooser.choose`. Not traced: a graph holds its answer."""
    return _chooser.choose(backend, Case(device, dtype, sizes, shared, learns, causal, window, equal_key_norms))


def _shape_text(case: Case) -> str:
    names = ("B", "T", "H", "D", "D_v")
    sizes = " ".join(f"{name}={size}" for name, size in zip(names, case.sizes, strict=True) if size)
    window = "" if case.window is None else f", window {case.window}"
    return f"{str(case.dtype).removeprefix('torch.')}, {sizes}{window}{', with gradients' if case.learns else ''}"


def _results(backend: str, case: Case, leaves: tuple[Tensor, ...]) -> list[Tensor]:
    """Output and gradients of q (and k, where it is another tensor), v and σ."""
    with torch.enable_grad():
        y = run(backend, *leaves, **case.options())
        wanted = [t for i, t in enumerate(leaves) if i != 1 or t is not leaves[0]]
        return [y.detach(), *torch.autograd.grad(y, wanted, torch.cos(y.detach()))]


def _disagreement(backend: str, case: Case) -> str | None:
    """Run the case and compare with float64; None when the error is that of the dtype."""
    leaves = case.inputs()
    wide_device = "cpu" if case.device.type == "mps" else case.device  # which has no float64
    q, k, v, sigma = (t.detach().to(wide_device, torch.float64).requires_grad_() for t in leaves)
    exact = _results("reference", replace(case, equal_key_norms=False), (q, q if case.shared else k, v, sigma))
    literal = _results("reference", case, leaves)
    ours = _results(backend, case, leaves)
    if case.equal_key_norms:  # the gradients of q and k then differ along them, by agreement
        ours, literal, exact = ([r[0], *r[-2:]] for r in (ours, literal, exact))
    step = max(16 * torch.finfo(case.dtype).eps, 1e-10)  # for float64 the reference is no more exact than we are
    names = ["y", *(f"gradient {i}" for i in range(len(ours) - 2)), "gradient of σ"]
    for name, a, p, e in zip(names, ours, literal, exact, strict=True):
        a, p = a.to(e), p.to(e)
        if name == names[-1] and case.dtype.itemsize == 2:
            step = 0.3  # one number a head, a small difference of large sums: in 16 bits only its size can be asked for
        error, budget = (a - e).norm(), 4 * (p - e).norm() + step * e.norm()
        if not error <= budget:
            return (
                f"disagrees with the reference: {name} off by {error / e.norm():.1e}, allowed {budget / e.norm():.1e}"
            )
    return None


def _seconds(backend: str, case: Case) -> float:
    """Median time of the case, with backward if it learns."""
    leaves = case.inputs()
    times = []
    for _ in range(REPEATS + 2):
        torch.cuda.synchronize(case.device)
        start = time.perf_counter()
        for _ in range(CALLS):
            if case.learns:
                _results(backend, case, leaves)
            else:
                with torch.no_grad():
                    run(backend, *leaves, **case.options())
        torch.cuda.synchronize(case.device)
        times.append((time.perf_counter() - start) / CALLS)
    return statistics.median(times[2:])
