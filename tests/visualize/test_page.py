"""The page: its data are those of the forward pass, and it does what it says, in Chromium."""

import base64
import json
import re
from urllib.parse import parse_qs

import numpy as np
import pytest

from nanogka.visualize import page
from nanogka.visualize.capture import clearest_look_back, token_labels
from nanogka.visualize.page import write_page
from nanogka.web.page import as_data


def data_of(path) -> dict:
    """The data that a page holds."""
    text = path.read_text(encoding="utf-8")
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def unpacked(model) -> np.ndarray:
    """(matrices, T, T) weights as the page knows them."""
    length = len(model["tokens"])
    largest = np.frombuffer(base64.b64decode(model["largest"]), "<f4").reshape(-1, length)
    shares = np.frombuffer(base64.b64decode(model["weights"]), np.uint8).reshape(len(largest), -1)
    weights = np.zeros((len(largest), length, length))
    weights[:, np.tri(length, dtype=bool)] = (shares / 255) ** 2
    return weights * largest[..., None]


def test_the_data_are_those_of_the_forward_pass(read, tmp_path):
    trace = read(pattern="GD")
    model = data_of(write_page([trace], tmp_path / "index.html"))["models"][0]
    weights = np.concatenate([a.weights.numpy() for a in trace.captured.attention.values()])
    largest = weights.max(-1, keepdims=True)
    assert (np.abs(np.sqrt(unpacked(model)) - np.sqrt(weights)) <= np.sqrt(largest) / 509).all()
    assert model["tokens"] == trace.labels
    assert model["bits"][-1] == pytest.approx(trace.captured.bits[-1].tolist(), abs=0.006)
    assert [layer["sigma"] is None for layer in model["layers"]] == [False, True, False]
    words = [model["words"][place] for place in model["lens"][0]]
    assert words == token_labels(trace.run.tokenizer, trace.captured.likeliest[0, :, 0].tolist())


def test_a_long_text_is_cut_to_what_a_page_can_hold(read, tmp_path, monkeypatch):
    trace = read("x" * 30)
    monkeypatch.setattr(page, "MAX_WEIGHTS", 6 * 50)  # 6 heads, triangles of 50 bytes
    model = data_of(write_page([trace], tmp_path / "index.html"))["models"][0]
    assert (len(model["tokens"]), model["cut"]) == (10, True)
    expected = np.concatenate([a.weights[:, :10, :10].numpy() for a in trace.captured.attention.values()])
    np.testing.assert_allclose(unpacked(model), expected, atol=5e-3)


def shown(browser) -> list[float]:
    """The numbers that color the tokens of the first model."""
    return browser.evaluate(
        "[...document.querySelector('section').querySelectorAll('.token')].map(e => +e.dataset.value)"
    )


def alphas(browser) -> np.ndarray:
    """How strongly each token of the text is colored."""
    alpha = "+(e.style.backgroundColor.match(/[\\d.]+(?=\\)$)/) ?? 0)"
    return np.array(browser.evaluate(f"[...document.querySelectorAll('.token')].map(e => {alpha})"))


def state(browser) -> dict:
    """The fragment of the address."""
    return {name: values[0] for name, values in parse_qs(browser.evaluate("location.hash.slice(1)")).items()}


def test_a_person_can_ask_where_a_token_looks(read, tmp_path, browser):
    trace = read()
    path, length = write_page([trace], tmp_path / "index.html", token=5), len(trace.labels)
    weights = np.stack([a.weights.numpy() for a in trace.captured.attention.values()])
    browser.open(path)
    assert (state(browser)["t"], state(browser)["l"], state(browser)["h"]) == ("5", "2", "0")
    np.testing.assert_allclose(shown(browser), weights[2, 0, 5], atol=5e-3)
    browser.mouse("move", ".token[data-i='9']")  # hovering shows another row, and leaves the address alone
    np.testing.assert_allclose(shown(browser), weights[2, 0, 9], atol=5e-3)
    assert state(browser)["t"] == "5"
    assert browser.evaluate("document.querySelector('.token.chosen').dataset.i") == "9"
    browser.mouse("click", ".token[data-i='7']")
    browser.mouse("click", "button[title='layer 1, head 1']")
    np.testing.assert_allclose(shown(browser), weights[1, 1, 7], atol=5e-3)
    browser.key("ArrowRight")
    browser.key("ArrowUp")
    browser.key("ArrowLeft", shift=True)
    np.testing.assert_allclose(shown(browser), weights[0, 0, 8], atol=5e-3)
    assert (state(browser)["t"], state(browser)["l"], state(browser)["h"]) == ("8", "0", "0")

    others = np.where(np.arange(length) == 8, 0, weights[0, 0, 8])
    scaled = np.minimum(1, weights[0, 0, 8] / others.max())  # the token itself may exceed the scale
    np.testing.assert_allclose(alphas(browser) ** 2, scaled, atol=0.02)  # by default
    browser.mouse("click", "#rescale")
    np.testing.assert_allclose(alphas(browser) ** 2, weights[0, 0, 8], atol=6e-3)
    browser.open(path, "#t=6&l=1&h=1&view=to&by=induction&rescale=1")  # a link to a state
    np.testing.assert_allclose(shown(browser), weights[1, 1, :, 6], atol=5e-3)
    browser.evaluate("location.hash = '#t=999&l=-4&h=x&view=bits&by=none'")
    browser.evaluate("new Promise((done) => setTimeout(done, 100))")
    assert (state(browser)["t"], state(browser)["l"], state(browser)["h"]) == (str(length - 1), "0", "0")
    np.testing.assert_allclose(shown(browser)[1:], trace.captured.bits[-1], atol=0.006)
    assert browser.complaints() == []


def test_it_opens_where_a_head_looks_back_and_shows_that_token(read, tmp_path, browser):
    trace = read("the cat sat " * 60, sequence_len=400)
    browser.open(write_page([trace], tmp_path / "index.html"))
    t, layer, head = clearest_look_back(trace.captured, len(trace.labels))
    assert state(browser) | {"t": str(t), "l": str(layer), "h": str(head)} == state(browser)
    inside = "(([box, token]) => token.top >= box.top && token.bottom <= box.bottom)"
    rects = "['.text', '.token.chosen'].map(q => document.querySelector(q).getBoundingClientRect())"
    assert browser.evaluate(f"{inside}({rects})")
    assert browser.complaints() == []


def test_the_bits_of_a_reply_leave_out_what_the_calculator_inserted(read, tmp_path, browser):
    trace = read("the cat sat on the mat")
    path = write_page([trace], tmp_path / "index.html")
    before, data, after = re.split(r'(?<=id="data">)(.*?)(?=</script>)', path.read_text(encoding="utf-8"), flags=re.S)
    document = json.loads(data)
    model = document["models"][0]
    model["reply"] = 3
    model["tokens"][5], model["tokens"][7] = "<|output_start|>", "<|output_end|>"
    path.write_text(before + as_data(document) + after, encoding="utf-8")
    browser.open(path)
    bits = model["bits"][-1]  # of tokens 1, 2, …
    mean = np.mean([bits[i - 1] for i in range(3, len(model["tokens"])) if i not in (5, 6, 7)])
    facts = browser.evaluate("document.querySelector('.facts').textContent")
    assert f", {mean:.2f} bits per token of the reply, " in facts


def test_predictions_and_reasons_are_next_to_the_text(read, tmp_path, browser):
    trace = read()
    browser.open(write_page([trace], tmp_path / "index.html", token=4))
    tables = browser.evaluate(
        "[...document.querySelectorAll('table')].map(t => [...t.rows].map(r => [...r.cells].map(c => c.textContent)))"
    )
    why, following, lens = tables[1:4]
    attention = trace.captured.attention[2]
    row = attention.weights[0, 4]
    first = int(row.argmax())
    distance = float((-2 * attention.largest_logit[0, 4]).clamp_min(0).sqrt())
    assert why[0] == ["token", "weight", "tokens back", "‖q − k‖", "in σ"]
    assert [float(cell) for cell in why[1][1:3]] == pytest.approx([float(row[first]), 4 - first], rel=0.01)
    assert float(why[1][4]) == pytest.approx(distance, abs=0.051)
    probabilities = trace.captured.probabilities[:, 4]
    assert [float(cells[1].rstrip(" %")) for cells in following] == pytest.approx(
        (100 * probabilities[-1]).tolist(), abs=0.6
    )
    assert [float(cells[3]) for cells in lens[1:]] == pytest.approx(trace.captured.bits[:, 4].tolist(), rel=0.01)
    assert browser.complaints() == []


def test_axes_have_numbers_and_nothing_is_cut_on_a_phone(read, tmp_path, browser):
    trace = read()
    browser.open(write_page([trace], tmp_path / "index.html"))
    for side in ("across", "down"):
        numbers = browser.evaluate(f"[...document.querySelectorAll('.framed .{side} span')].map(e => +e.textContent)")
        assert (numbers[0], numbers[-1]) == (0, len(trace.labels) - 1)
    try:
        browser.call("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=False)
        cut = "[...document.querySelectorAll('.heads, main, header')].filter(e => e.scrollWidth > e.clientWidth).length"
        assert browser.evaluate(cut) == 0
    finally:
        browser.call("Emulation.clearDeviceMetricsOverride")


def test_two_models_read_one_text(read, tmp_path, browser):
    traced = [read(pattern="G"), read(pattern="D", sequence_len=8)]
    browser.open(write_page(traced, tmp_path / "index.html", token=6))
    chosen = browser.evaluate("[...document.querySelectorAll('.token.chosen')].map(e => +e.dataset.i)")
    assert chosen == [6, 6]
    assert browser.evaluate("document.querySelectorAll('section svg').length") == 0  # no metrics, no σ over training
    browser.mouse("click", "section:nth-of-type(2) .token[data-i='3']")
    np.testing.assert_allclose(shown(browser), traced[0].captured.attention[2].weights[0, 3], atol=5e-3)
    assert browser.complaints() == []


@pytest.mark.parametrize("text", ["<script>alert(1)</script><img src=x onerror=alert(1)>😀\n\n\t\u202e {{data}}", "a"])
def test_a_text_is_only_ever_shown(read, tmp_path, browser, text):
    trace = read(text)
    browser.open(write_page([trace], tmp_path / "index.html"))
    seen = browser.evaluate("document.querySelector('.text').textContent")
    assert seen.replace("↵\n", "\n").replace("→\t", "\t") == "".join(trace.labels)
    assert browser.evaluate("document.querySelectorAll('img, main script').length") == 0
    assert browser.complaints() == []
