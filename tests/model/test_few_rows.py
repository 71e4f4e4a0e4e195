"""Products of few rows: right whatever the sizes, strides and threads; by torch where the kernel does not run."""

import functools
import logging

import pytest
import torch

from nanogka import native
from nanogka.model import GPT, GPTConfig, few_rows
from nanogka.model.layers import Linear

DTYPES = (torch.float32, torch.bfloat16)
ROWS = (1, 2, 3, 4, 5, 8, 9, 16, 17, 40, 64)


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def draw(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def run_here():
    assert few_rows.why_not() is None
    return few_rows


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("features,outputs", [(1, 1), (12, 3), (24, 7), (70, 65), (129, 200), (384, 513)])
def test_products_and_logits_against_float64(dtype, features, outputs):
    weight = (draw(outputs, features) * 5 * features**-0.5).to(dtype)  # logits of all sizes up to the cap
    for rows in ROWS:
        x = draw(rows, features, seed=rows, dtype=dtype)
        exact = x.double() @ weight.double().t()
        y, logits = run_here().linear(x, weight), few_rows.capped_logits(x, weight, 15.0)
        assert (y.dtype, logits.dtype) == (dtype, torch.float32)
        assert (y.double() - exact).norm() <= 2 * torch.finfo(dtype).eps * exact.norm()
        torch.testing.assert_close(logits.double(), 15 * torch.tanh(exact / 15), atol=5e-6, rtol=0)


@pytest.mark.parametrize("rows", ROWS)
def test_a_sum_that_is_exact_is_rounded_once_to_nearest_ties_to_even(rows):
    generator = torch.Generator().manual_seed(rows)
    x, weight = (torch.randint(-15, 16, shape, generator=generator).float() for shape in ((rows, 48), (100, 48)))
    exact = x @ weight.t()
    assert (exact.abs() > 512).any()  # where bfloat16 has not every integer
    y = run_here().linear(x.bfloat16(), weight.bfloat16())
    assert torch.equal(y, exact.bfloat16())
    assert torch.equal(few_rows.linear(x, weight), exact)


@pytest.mark.parametrize("rows", ROWS)
def test_leading_dimensions_and_strides(rows):
    x, weight = draw(rows, 1, 48)[..., ::2], draw(24, 40).t()
    y = run_here().linear(x, weight)
    assert y.shape == (rows, 1, 40)
    torch.testing.assert_close(y, x @ weight.t(), atol=1e-5, rtol=0)
    same = x[:1].expand(rows, 1, 24)
    assert torch.equal(few_rows.linear(same, weight), few_rows.linear(same.contiguous(), weight.contiguous()))


@pytest.mark.parametrize("rows", [1, 3, 20])
def test_large_logits_reach_the_cap_and_a_row_of_nan_stays_alone(rows):
    x = torch.ones(rows + 1, 16)
    x[0] = torch.nan
    weight = torch.cat([torch.full((9, 16), 1e4), torch.full((9, 16), -1e4), torch.zeros(1, 16)])
    logits = run_here().capped_logits(x, weight, 15.0)
    assert logits[0].isnan().all()
    expected = torch.tensor([15.0] * 9 + [-15.0] * 9 + [0.0])
    assert torch.equal(logits[1:], expected.expand(rows, 19))


def test_the_number_of_threads_changes_no_bit():
    threads, answers = torch.get_num_threads(), []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            answers.append([run_here().linear(draw(rows, 200), draw(301, 200)) for rows in ROWS])
    finally:
        torch.set_num_threads(threads)
    for other in answers[1:]:
        assert all(torch.equal(a, b) for a, b in zip(answers[0], other))


def test_the_operators_keep_the_rules_of_custom_operators():
    run_here()
    for dtype in DTYPES:
        x, weight = draw(3, 20, dtype=dtype), draw(9, 20, dtype=dtype)
        torch.library.opcheck(few_rows.linear_op, (x, weight))
        torch.library.opcheck(few_rows.logits_op, (x, weight, 15.0))


def test_what_is_not_for_it():
    x, weight = draw(3, 20), draw(9, 20)
    assert few_rows.taken(x, weight) == (few_rows.why_not() is None)
    assert not few_rows.taken(x[:0], weight)
    assert not few_rows.taken(draw(few_rows.MOST + 1, 20), weight)
    assert not few_rows.taken(x, weight.bfloat16())
    assert not few_rows.taken(x, draw(20, 9).t())  # would be copied for each product
    assert not few_rows.taken(x[:, :19], weight)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        Linear(20, 9)(x[:, :19])
    assert not few_rows.taken(x.double(), weight.double())
    assert not few_rows.taken(x.to("meta"), weight.to("meta"))
    with torch.enable_grad():
        assert not few_rows.taken(x, weight)


@pytest.mark.parametrize("failure", ["unbuilt", "wrong"])
def test_where_it_does_not_run_torch_multiplies_and_the_reason_is_logged(failure, monkeypatch, caplog):
    config = GPTConfig(n_layer=1, n_head=1, n_embd=32, vocab_size=50, sequence_len=16)
    model, hidden = GPT(config, seed=0), draw(2, 1, 32)
    model.lm_head.weight.copy_(draw(50, 32))
    expected = run_here() and model.unembed(hidden)

    def load(source):
        raise OSError("no compiler")

    def twice(x, weight):
        return 2 * x @ weight.t()

    if failure == "unbuilt":
        monkeypatch.setattr(native, "load", load)
    else:
        monkeypatch.setattr(few_rows, "linear_op", twice)
    monkeypatch.setattr(few_rows, "why_not", functools.cache(few_rows.why_not.__wrapped__))
    reason = "OSError: no compiler" if failure == "unbuilt" else "products disagree with float64: 1 rows, torch.float32"
    with caplog.at_level(logging.INFO):
        torch.testing.assert_close(model.unembed(hidden), expected, atol=1e-5, rtol=0)
    assert f"products of few rows on a CPU: torch (C++: {reason}" in caplog.text
    monkeypatch.setattr(few_rows, "linear_op", None)  # not called
    linear = Linear(32, 8)
    linear.weight.copy_(draw(8, 32))
    torch.testing.assert_close(linear(hidden), hidden @ linear.weight.t())
