"""Our kernels against the float64 reference: on the GPU where there is one, else in Triton's interpreter.

By norm, an error may be twice that of the literal version in the same low precision plus one rounding step ε of the
result. Of the results of the whole product 15 % exceed that: gradients that vanish exactly, of positions that see
themselves alone; gradients below a thousandth of the terms that they are the sum of; and, in float32, some of v. There
the literal version's terms cancel bit by bit, or its exponents are distances near 0, and those of a kernel that keeps
no T×T matrix are not. So the budget has three steps more, each one rounding of what such a kernel has to round: of y
to its dtype (at most ε/2), which the backward pass reads again; of each float32 term of a sum; of each exponent and
each row's logarithm, from which the backward pass makes the weights anew. `roundings` has what they amount to. Half of
the last two is enough for the whole product in the interpreter.
"""

import itertools

import pytest
import torch

pytest.importorskip("triton")

from triton.runtime.errors import OutOfResources

from nanogka.attention import (
    backends,
    gaussian_attention,
    triton_backward,
    triton_forward,
    triton_launch,
    triton_ops,
    visible,
)
from nanogka.attention.masks import effective_window

# In the interpreter an exponent that the mask hides afterwards may overflow, which numpy reports and a GPU does not.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp2:RuntimeWarning")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = (torch.bfloat16, torch.float32, torch.float16)
SIGMAS = (None, 0.1, 1.0, 100.0)  # None: around D^¼, the temperature of ordinary attention
TUNED = (triton_forward._tuned_forward, triton_backward._tuned_backward)
CHOICES = {id(tuned): list(tuned.configs) for tuned in TUNED} if DEVICE == "cuda" else {}


@pytest.fixture(autouse=True)
def one_choice(poisoned_outputs, monkeypatch):
    """The autotuner has one choice."""
    if DEVICE == "cuda":
        for tuned in TUNED:
            monkeypatch.setattr(tuned, "configs", tuned.configs[-1:])


def leaves(T, D, *, DV=None, B=1, H=2, same=True, equal_norms=True, strided=False, dtype=torch.float32, sigma=None):
    """(q, k, v, σ) that want gradients; q is k when `same`, rows of unit RMS when `equal_norms`."""
    generator = torch.Generator().manual_seed(1000 * T + D)
    q, k = (torch.randn(B, T, H, D, generator=generator) for _ in range(2))
    v = torch.randn(B, T, H, DV or D, generator=generator)
    if equal_norms:
        q, k = (torch.nn.functional.rms_norm(t, (D,)) for t in (q, k))
    bandwidth = D**0.25 * (0.5 + torch.rand(H, generator=generator)) if sigma is None else torch.full((H,), sigma)
    features = [t.to(DEVICE, dtype) for t in (q, k, v)]
    if strided:  # features far apart, heads before positions
        features = [t.permute(3, 0, 2, 1).contiguous().permute(1, 3, 2, 0) for t in features]
    q, k, v, bandwidth = (t.requires_grad_() for t in (*features, bandwidth.to(DEVICE)))
    return q, q if same else k, v, bandwidth


def results(inputs, backend="triton", *, causal=True, window=None, trusted=False):
    """Output and gradients of the leaves for a fixed gradient of the output, without the probe of the back-end.

    `trusted`: the kernels are told that the key norms are equal.
    """
    q, k, v, bandwidth = inputs
    window = effective_window(window, q.shape[1])
    y = backends.run(backend, q, k, v, bandwidth, causal=causal, window=window, equal_key_norms=trusted)
    gradient = torch.cos(torch.arange(y.numel(), device=y.device)).to(y).view_as(y)
    wanted = [q, v, bandwidth] if q is k else [q, k, v, bandwidth]
    return [y.detach(), *torch.autograd.grad(y, wanted, gradient)]


def roundings(inputs, causal, window):
    """For each result three norms, as if no term cancelled another: what a relative error of 1 makes of it

    * in every float32 term that is summed up, and in every exponent as far as a row's sum does not take it out again;
    * in each row of y, which a fused kernel keeps in its own dtype and its backward pass reads again;
    * in the weights that the backward pass makes anew from exponents and one logarithm a row, by a rounding of both.
    """
    q, k, v, bandwidth = (t.detach().double().transpose(1, 2) if t.ndim == 4 else t.detach().double() for t in inputs)
    positions = torch.arange(q.shape[2], device=q.device)
    mask = visible(positions, positions, window, causal)
    square = bandwidth[:, None, None] ** 2
    norms = q.square().sum(-1)[..., :, None] + k.square().sum(-1)[..., None, :]
    weights = (-(torch.cdist(q, k) ** 2) / (2 * square)).masked_fill(~mask, -torch.inf).softmax(-1)
    to_sigma = norms / square - 2 * torch.where(weights > 0, weights, 1).log()  # either form of the distances
    dp = v.abs().sum(-1)[..., None, :]  # |dO| is at most 1

    def features(d):
        to_q = (d @ k.abs() + d.sum(-1)[..., None] * q.abs()) / square
        to_k = (d.transpose(-1, -2) @ q.abs() + d.sum(-2)[..., None] * k.abs()) / square
        return [to_q + to_k] if inputs[0] is inputs[1] else [to_q, to_k]

    def gradients(error):
        """What an error of the weights makes of the gradients."""
        ds = error * (dp + (weights * dp).sum(-1, keepdim=True))
        return [*features(ds), error.transpose(-1, -2) @ torch.ones_like(v), (ds * to_sigma).sum((0, 2, 3)) / bandwidth]

    terms = weights * (1 + (1 - weights) * norms / square)
    row = weights * (weights @ v.square()).sum(-1, keepdim=True).sqrt()  # dS that an error of y's rows makes
    row_to_sigma = 2 * -torch.special.xlogy(weights, weights).sum(-1) * row.sum(-1) / bandwidth[:, None]
    return (
        [t.norm() for t in (terms @ v.abs(), *gradients(terms))],
        [t.norm() for t in (0 * v, *features(row), 0 * v, row_to_sigma)],
        [t.norm() for t in (0 * v, *gradients(weights * norms / (2 * square)))],
    )


def check(T, D, *, causal=True, window=None, equal_norms=True, dtype=torch.float32, trusted=False, **shape):
    """Ours within the budget; `trusted`: say that key norms are equal, and compare what the saying leaves alone."""
    inputs = leaves(T, D, equal_norms=equal_norms, dtype=dtype, **shape)
    options = {"causal": causal, "window": window}
    wide = [t.detach().double().requires_grad_() for t in inputs]
    if inputs[0] is inputs[1]:
        wide[1] = wide[0]
    # In float64 the reduction is as exact as the literal version (`test_gaussian`), and quicker where T is large.
    exact = results(wide, "reference" if T <= 128 else "sdpa", **options)
    plain = results(inputs, "reference", **options)
    ours = results(inputs, trusted=trusted, **options)
    norms = roundings(inputs, causal, window)
    names = ("y", "q", "v", "σ") if inputs[0] is inputs[1] else ("y", "q", "k", "v", "σ")
    step, fine = torch.finfo(dtype).eps, torch.finfo(torch.float32).eps
    for name, a, p, e, term, row, exposed in zip(names, ours, plain, exact, *norms, strict=True):
        assert a.dtype == p.dtype
        assert torch.isfinite(a).all(), name
        if trusted and name in "qk":  # the radial component of its gradient differs by agreement: take it out
            a, p, e = (tangential(g, inputs[0] if name == "q" else inputs[1]) for g in (a, p, e))
        error, literal = (a.double() - e).norm(), (p.double() - e).norm()
        if not torch.isfinite(literal):  # the literal σ gradient overflows at small σ; then roundings alone count
            literal = step * term
        budget = 2 * literal + step * e.norm() + step / 2 * row + fine * (term + exposed)
        assert error <= budget, f"{name}: {error:.2e}, allowed {budget:.2e}, literal version {literal:.2e}"


def tangential(gradient, features):
    features, gradient = features.detach().double(), gradient.double()
    return gradient - features * ((gradient * features).sum(-1, keepdim=True) / features.square().sum(-1, keepdim=True))


COVERING = [
    # T, D, window, causal, what else
    (1, 16, None, True, {}),
    (2, 48, 1, True, {"same": False, "equal_norms": False}),
    (63, 16, 17, True, {"dtype": torch.bfloat16}),
    (64, 64, None, True, {"dtype": torch.bfloat16, "trusted": True}),
    (65, 16, None, False, {"same": False, "equal_norms": False, "dtype": torch.float16}),
    (65, 48, 64, True, {"same": False, "strided": True, "H": 1}),
    (113, 16, 17, True, {"equal_norms": False, "H": 1}),
    (113, 128, None, True, {"dtype": torch.bfloat16, "H": 1}),
    (113, 16, 64, False, {"dtype": torch.bfloat16, "H": 1, "equal_norms": False}),
    (97, 64, 0, True, {"dtype": torch.bfloat16, "same": False, "H": 1}),
    (97, 16, 1, False, {"H": 1, "strided": True}),
    (65, 24, 33, True, {"DV": 40, "same": False, "equal_norms": False, "B": 2, "H": 1}),
    (65, 256, 20, True, {"dtype": torch.bfloat16, "H": 1}),
    (64, 16, 64, True, {"sigma": 0.1, "H": 1}),
    (64, 64, None, True, {"sigma": 0.1, "dtype": torch.bfloat16, "same": False, "equal_norms": False, "H": 1}),
    (64, 16, 17, False, {"sigma": 100.0, "dtype": torch.float16, "H": 1}),
    (64, 48, None, True, {"sigma": 100.0, "equal_norms": False, "H": 1}),
    (80, 32, 17, True, {"sigma": 1.0, "trusted": True, "same": False, "dtype": torch.float16}),
]


@pytest.mark.parametrize("T,D,window,causal,options", COVERING)
def test_error_is_that_of_the_literal_version(T, D, window, causal, options):
    check(T, D, window=window, causal=causal, **options)


PRODUCT = list(
    itertools.product(
        (1, 2, 63, 64, 65, 113, 239, 512), (0, 1, 17, 64, "T"), (True, False), (16, 48, 64, 128), (True, False)
    )
)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(PRODUCT)), ids=lambda number: "-".join(map(str, PRODUCT[number])))
def test_error_over_the_whole_product(number, monkeypatch):
    """T, window, causal, D, equal norms: every combination; one head, as more are the covering selection's affair.

    The budget is that of `check`. Larger tiles where T is large keep the interpreter's time down.
    """
    T, window, causal, D, equal_norms = PRODUCT[number]
    if T > 113:
        monkeypatch.setattr(triton_launch, "INTERPRETER_TILES", (64, 64))
    turn = number // 2 + T  # dtype, σ, sharing and strides take turns over the product
    check(
        T,
        D,
        window=T if window == "T" else window,
        causal=causal,
        equal_norms=equal_norms,
        dtype=DTYPES[turn % 3],
        sigma=SIGMAS[turn % 4],
        same=turn % 5 < 3,
        strided=turn % 7 == 0,
        trusted=equal_norms and turn % 2 == 0,
        H=1,
    )


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
@pytest.mark.parametrize("number", range(len(COVERING)))
def test_tile_choices_on_the_gpu(number, monkeypatch):
    """The choices take turns over the cases; one that needs more memory than there is passes its turn on."""
    T, D, window, causal, options = COVERING[number]
    for turn in range(number, number + 3):
        for tuned in TUNED:
            choices = CHOICES[id(tuned)]
            monkeypatch.setattr(tuned, "configs", [choices[turn % len(choices)]])
        try:
            check(T, D, window=window, causal=causal, **options)
            return
        except OutOfResources:
            continue
    pytest.fail("three choices in a row do not fit")


@pytest.mark.parametrize("window", [0, 17])
def test_a_row_alone_returns_its_own_value(window):
    z, _, v, bandwidth = leaves(65, 16, sigma=0.1, dtype=torch.bfloat16)
    y = results((z, z, v, bandwidth), window=window)[0]
    assert torch.equal(y[:, 0], v[:, 0])
    if window == 0:
        assert torch.equal(y, v)


def test_far_features_and_large_offsets_do_not_overflow():
    z, _, v, bandwidth = leaves(64, 16, equal_norms=False, sigma=0.1)
    far = (1000 * z.detach()).requires_grad_()
    assert all(torch.isfinite(t).all() for t in results((far, far, v, bandwidth)))


def test_tiles_outside_the_window_are_never_visited(monkeypatch):
    """NaN behind a window reaches no sum, though a masked tile that was visited would multiply it."""
    q, k, v, bandwidth = leaves(192, 16, same=False, equal_norms=False, H=1)
    for poisoned in (k, v):
        poisoned.data[:, :64] = torch.nan
    dy = torch.ones_like(v)
    dy[:, :128] = 0
    y, lse = triton_ops._attention(q, k, v, bandwidth, True, 17, True)
    assert torch.isfinite(y[:, 128:]).all()
    gradients = triton_ops._attention_backward(
        dy[:, 128:], *(t[:, 128:] for t in (q, k, v)), bandwidth, y[:, 128:], lse[:, 128:], True, 17, True
    )
    assert all(torch.isfinite(g).all() for g in gradients)


def test_keys_that_are_the_queries_collect_one_gradient():
    z, _, v, bandwidth = leaves(65, 16, equal_norms=False)
    shared = results((z, z, v, bandwidth), window=20)
    apart = results((z, z.detach().clone().requires_grad_(), v, bandwidth), window=20)
    torch.testing.assert_close(shared[1], apart[1] + apart[2], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(shared[3], apart[4], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("same", [True, False])
def test_the_operators_keep_the_rules_of_custom_operators(same, monkeypatch):
    monkeypatch.undo()  # the checker compares tensors it made by torch.empty
    q, k, v, bandwidth = leaves(20, 16, same=False, H=1)
    k = None if same else k
    torch.library.opcheck(triton_ops._attention, (q, k, v, bandwidth, True, 5, True))
    y, lse = (t.detach() for t in triton_ops._attention(q, k, v, bandwidth, True, None, False))
    inputs = (t if t is None else t.detach() for t in (q, k, v, bandwidth))
    torch.library.opcheck(triton_ops._attention_backward, (torch.ones_like(y), *inputs, y, lse, True, None, False))


def test_compiles_to_one_graph(monkeypatch):
    monkeypatch.undo()
    torch._dynamo.reset()
    inputs = leaves(40, 16, H=1)

    def function(z, v, log_bandwidth):
        return gaussian_attention(z * 2, z * 3, v, log_bandwidth.exp(), window=9, backend="triton")

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    z, _, v, bandwidth = inputs
    outcomes = []
    for f in (function, compiled):
        y = f(z, v, bandwidth)
        outcomes.append([y, *torch.autograd.grad(y.square().sum(), [z, v, bandwidth])])
    for a, e in zip(*outcomes, strict=True):
        torch.testing.assert_close(a, e)


def test_float64_is_refused_with_the_reason():
    z, _, v, bandwidth = leaves(4, 16, dtype=torch.float64)
    with pytest.raises(ValueError, match="'triton' cannot run .* bfloat16, float16 or float32, got torch.float64"):
        gaussian_attention(z, z, v, bandwidth, backend="triton")
