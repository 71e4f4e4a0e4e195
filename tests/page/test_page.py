"""A model as a page: in Chromium it computes, tokenizes, generates and shows what the Python model does."""

import json
import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from generate_models import byte_tokenizer, save_run, small_model
from page_models import make_run, scripted_run, unicode_texts

from nanogka.data.conversation import ChatFormat, Conversation
from nanogka.generate.calculator import calculate
from nanogka.generate.engine import Engine
from nanogka.generate.settings import SamplingParams
from nanogka.model import GPT, GPTConfig
from nanogka.page import build
from nanogka.page.build import TEXT, build_page
from nanogka.page.weights import pack, with_rounded_weights
from nanogka.runs import LoadedRun
from nanogka.tokenizer import Tokenizer
from scripts import export as export_script
from scripts import page as page_script

ALL_OPTIONS = {"qk_affine": True, "short_conv": 3, "successor_keys": True, "learned_temperature": True}
READY = "typeof shown !== 'undefined' && Boolean(shown) && !busy && !stale && !writing"


def wait(browser) -> None:
    """Wait until the page has read its text and written all that it was asked to."""
    poll = "check = () => (" + READY + ") ? done(true) : performance.now() < end ? setTimeout(check, 20) : done(false)"
    assert browser.evaluate(f"new Promise((done) => {{ let end = performance.now() + 50000, {poll}; check(); }})")


@pytest.fixture
def show(tmp_path, browser):
    """`show(run)`: open the page of a run and wait until it has read its text."""

    def call(run: LoadedRun, weights: str = "auto", text: str = TEXT) -> None:
        path = tmp_path / "model.html"
        path.write_text(build_page(run, weights, text, run.examples).html, encoding="utf-8")
        browser.open(path)
        wait(browser)

    return call


def engine(browser, expression: str, *values: object) -> object:
    """What `expression` gives in the page's engine, with `values` as `$0`, `$1` …"""
    # The worker's own lines are left out: they would take the page's messages.
    source = browser.evaluate("document.getElementById('engine').textContent").replace("onmessage =", "const unused =")
    given = "".join(f"const ${i} = {json.dumps(value)};" for i, value in enumerate(values))
    return browser.evaluate(f"(() => {{ {source}\n{given} return {expression}; }})()")


MODELS = [("G", {}), ("S", {}), ("D", {}), ("D", ALL_OPTIONS), ("GSV", {"smear": True})]
FORMS = [("february", "int8"), ("july", "float16")], [("february", "float16"), ("july", "int8")]


@pytest.mark.parametrize(
    "pattern, options, network, weights", [(*m, *form) for i, m in enumerate(MODELS) for form in FORMS[i % 2]]
)
def test_logits_are_those_of_the_model_with_rounded_weights(tmp_path, browser, pattern, options, network, weights):
    run = make_run(tmp_path, pattern, network=network, **options)
    built = build_page(run, weights)
    path = tmp_path / "model.html"
    path.write_text(
        built.html.replace('id="weights">', 'id="kept">'), encoding="utf-8"
    )  # the page itself lets go of it
    browser.open(path)
    ids = torch.randint(0, 256, (1, 60), generator=torch.Generator().manual_seed(1))
    read = """(() => {
        const bytes = Uint8Array.from(atob(document.getElementById("kept").textContent), (c) => c.charCodeAt(0));
        const network = new Network(spec, bytes.buffer), trained = network.trained(), whole = network.newState(64);
        whole.ids = $0;
        const all = network.unembed(network.forward(whole, 0, trained)), parts = network.newState(64), steps = [];
        for (const end of [7, 8, 9, 40, 60]) {
            const start = parts.ids.length;
            parts.ids = $0.slice(0, end);
            steps.push(...network.unembed(network.forward(parts, start, trained)));
        }
        return [[...all], steps];
    })()"""
    whole, in_steps = engine(browser, read, ids[0].tolist())
    with torch.no_grad():
        expected = with_rounded_weights(run.model, pack(run.model, weights))(ids)[0].flatten().numpy()
    np.testing.assert_allclose(whole, expected, atol=1e-4, rtol=0)
    np.testing.assert_allclose(in_steps, expected, atol=1e-4, rtol=0)


def test_rounding_keeps_half_a_step_and_is_reported(tmp_path):
    run = make_run(tmp_path, "S")
    for weights, largest in (("int8", 1 / 253), ("float16", 2**-11)):
        packed = pack(run.model, weights)
        for name, value in run.model.state_dict().items():
            error = (value - packed.rounded[name]).abs()
            assert bool((error <= largest * value.abs().amax(-1, keepdim=True)).all()), name
        page = build_page(run, weights)
        ids = torch.tensor([[run.tokenizer.bos_id, *run.tokenizer.encode(TEXT)][:64]])
        with torch.no_grad():
            original, rounded = run.model(ids[:, :-1]), with_rounded_weights(run.model, packed)(ids[:, :-1])
        assert page.largest_difference == pytest.approx((original - rounded).abs().max().item())
        assert 0 < page.largest_difference < {"int8": 1, "float16": 0.05}[weights]


def test_ids_are_those_of_the_tokenizer_on_random_unicode(tmp_path, browser, show):
    texts = unicode_texts(1000)
    tokenizer = Tokenizer.train(texts[:500] * 2 + ["the cat sees the old house. "] * 9, 900)
    show(make_run(tmp_path, tokenizer=tokenizer))
    found = engine(browser, "$0.map((text) => new Tokenizer(spec.tokenizer).encode(text))", texts[-500:])
    assert found == [tokenizer.encode(text) for text in texts[-500:]]
    assert engine(browser, "new Tokenizer(spec.tokenizer).decode($0)", tokenizer.encode(texts[7])) == texts[7]


def test_the_calculator_gives_what_python_does(tmp_path, browser, show):
    rng = random.Random(0)
    given = ["", "abc", '"banana".count("a")', "'aé'.count('')", '"a" + "b"', "'a'.count('b'", "1,000 + 1", "2 + 4 + 3"]
    given += "7//2 -7//2 7%-3 -7.5//2 1/3 2**3 012 0.1+0.2 1e5 1e16 1e-5 1/0 1.5%0 --2 ((1) (1+2)*3 3..5 1e400".split()
    given += [
        '" ".join(" banana")',
        "'-'.join('é')",
        "' '.join(3)",
        "1 + ' '.join('a')",
        "' '.join('a') + 1",
        "' '.join",
    ]
    given += [f"'{'a' * n}'.join('bcdef')" for n in (98, 99, 100)]
    given += ["1/32", "-1/32", "2/3", "3/1000000", "-7/3", "84213/9", "1e15*2.0", "0.00004", "0.00005"]
    given += ["0.0//-5", "5.0%-5", "-0.0", "99999999999999999999*3", "2 3", " 4 "]
    for _ in range(400):
        numbers = [rng.choice([str(rng.randrange(1000)), f"{rng.random() * 99:.2f}"]) for _ in range(rng.randint(1, 4))]
        given.append("".join(part + rng.choice([" + ", "-", "*", " / ", "//", "%"]) for part in numbers) + "7")
    show(make_run(tmp_path))
    assert engine(browser, "$0.map(calculate)", given) == [calculate(text) for text in given]


def weights_of(model: GPT, ids: list[int]) -> np.ndarray:
    """(L, H, T, T) A of a model."""
    inputs, found = torch.tensor([ids]), []
    keep = [
        b.mixer.register_forward_hook(lambda m, a, _: found.append(m.attention_weights(*a[:2])[0]))
        for b in model.blocks
    ]
    with torch.no_grad():
        model(inputs)
    for hook in keep:
        hook.remove()
    return torch.stack(found).numpy()


def bits(model: GPT, ids: list[int]) -> np.ndarray:
    """(T − 1,) bits of each token after the first."""
    with torch.no_grad():
        log_p = model(torch.tensor([ids]))[0].log_softmax(-1)
    return -log_p[range(len(ids) - 1), ids[1:]].numpy() / np.log(2)


def assert_shown(browser, model: GPT, ids: list[int]) -> None:
    """The page shows the attention and the bits of `model` on `ids`."""
    wait(browser)
    expected = weights_of(model, ids)
    found = np.array(browser.evaluate("[...shown.attention]")).reshape(expected.shape)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(browser.evaluate("shown.bits.slice(1)"), bits(model, ids), atol=2e-4)
    per_byte = bits(model, ids).sum() / len(TEXT.encode()[: len(ids) - 1])  # a token of this text is a byte
    assert browser.evaluate("document.querySelector('#score strong').textContent") == f"{per_byte:.3f}"


CARD = "document.querySelector('[data-head=\"1 1\"]')"


def drag(browser, halvings: float) -> None:
    """Move the slider of σ of layer 1, head 1."""
    browser.evaluate(
        f"(r => {{ r.value = {halvings}; r.dispatchEvent(new Event('input')) }})({CARD}.querySelector('[type=range]'))"
    )


@pytest.mark.parametrize("pattern", ["S", "G", "D"])
def test_sigma_a_cut_and_successor_keys_change_what_the_model_computes(tmp_path, browser, show, pattern):
    run = make_run(tmp_path, pattern, tokenizer=byte_tokenizer(), sequence_len=128, windows="L")
    show(run, "float16")
    model = with_rounded_weights(run.model, pack(run.model, "float16"))
    ids = [run.tokenizer.bos_id, *run.tokenizer.encode(TEXT)]
    assert_shown(browser, model, ids)
    before = bits(model, ids)
    assert browser.evaluate("document.getElementById('reset').disabled")

    mixer = model.blocks[1].mixer
    if pattern != "D":  # the baseline has no σ of its own to change in Python
        drag(browser, 1.5)
        mixer.log_bandwidth.data[1] += 1.5 * np.log(2)
        assert_shown(browser, model, ids)
    browser.mouse("click", "[data-head='1 1'] [type=checkbox]")
    mixer.c_proj.weight.data[:, 32:] = 0  # the columns that read head 1
    assert_shown(browser, model, ids)
    np.testing.assert_allclose(browser.evaluate("shown.before.slice(1)"), before, atol=2e-4)
    change = (bits(model, ids).sum() - before.sum()) / len(TEXT.encode())
    text = browser.evaluate("document.querySelector('#score em').textContent")
    assert float(text.split()[0].replace("−", "-")) == pytest.approx(change, abs=0.0011)
    if pattern == "S":
        browser.mouse("click", ".layer:last-child > .row [type=checkbox]")
        model.blocks[2].mixer.successor_keys = False
        assert_shown(browser, model, ids)
    browser.mouse("click", "#reset")
    wait(browser)
    np.testing.assert_allclose(browser.evaluate("shown.bits.slice(1)"), before, atol=2e-4)
    assert browser.evaluate(
        f"[{CARD}.querySelector('[type=range]').value, {CARD}.querySelector('[type=checkbox]').checked]"
    ) == ["0", False]
    assert browser.complaints() == []


def test_a_text_is_continued_as_in_python(tmp_path, browser, show):
    run = make_run(tmp_path, "S", sequence_len=128)
    show(run, "float16", "the cat")
    browser.evaluate("document.getElementById('temperature').value = 0")
    browser.mouse("click", "#write")
    wait(browser)
    model = with_rounded_weights(run.model, pack(run.model, "float16"))
    expected = Engine(model, run.tokenizer).generate("the cat", max_tokens=256, temperature=0)
    assert browser.evaluate("document.getElementById('source').value") == "the cat" + expected
    assert "per second" in browser.evaluate("document.getElementById('speed').textContent")


def test_writing_can_be_stopped(tmp_path, browser, show):
    run = make_run(tmp_path, "G", sequence_len=4096)
    show(run, "float16", "the cat")
    # Many tokens are asked for, none of them the end, and the page itself stops at the first: neither a slow test
    # nor a model that ends early may look like a page that stops.
    browser.evaluate("""(() => {
        const sent = worker.postMessage.bind(worker), piece = receive.piece;
        worker.postMessage = (message) => sent(message.type === "write" ? { ...message, most: 4000 } : message);
        $("temperature").value = 0;
        receive.piece = (values) => {
            receive.piece = piece;
            piece(values);
            label = $("write").textContent;
            $("write").click();
        };
    })()""")
    browser.mouse("click", "#write")
    wait(browser)
    assert browser.evaluate("label") == "Stop"
    assert browser.evaluate("document.getElementById('write').textContent") == "Continue"
    assert 1 <= int(browser.evaluate("document.getElementById('speed').textContent").split()[0]) < 4000


def test_a_chat_model_replies_and_its_calls_are_answered(tmp_path, browser, show):
    run = scripted_run(tmp_path)
    run.folder.mkdir()
    (run.folder / "examples.json").write_text('["Why </b>?", "Who?"]')
    show(run)
    offered = browser.evaluate("[...document.querySelectorAll('#questions button')].map((b) => b.textContent)")
    assert offered == ["Why </b>?", "Who?"]  # the run's own questions; the first is typed in already
    assert browser.evaluate("document.getElementById('draft').value") == offered[0]
    browser.evaluate(
        "document.getElementById('draft').value = 'How <b>much</b>?'; document.getElementById('temperature').value = 0"
    )
    browser.mouse("click", "#write")
    wait(browser)
    said = browser.evaluate("[...document.querySelectorAll('#messages p')].map((p) => p.textContent)")
    assert said == ["How <b>much</b>?", "calculator: 12*3 → 36", "yes"]
    assert (
        browser.evaluate("document.querySelector('#tokens .chosen').textContent") == "s"
    )  # of the reply, not its mark
    template = ChatFormat(run.tokenizer)
    prompt = template.render_prompt(Conversation.of("How <b>much</b>?"))
    steps = Engine(run.model, run.tokenizer).stream(
        [prompt], SamplingParams(temperature=0), stop_tokens=template.stop_ids, calculator=True
    )
    assert browser.evaluate("shown.ids") == prompt + [output.token for outputs in steps for output in outputs]
    # The score is that of the reply alone, and what the calculator wrote is not the model's.
    own = browser.evaluate("shown.bits.map((bit, i) => [bit, shown.labels[i]])")[len(prompt) :]
    letters = [bit for bit, label in own[:5] + own[9:] if len(label) == 1]
    assert browser.evaluate("shown.perByte") == pytest.approx(sum(letters) / len(letters), rel=1e-6)
    # Two calls in a row stay two, also if the first has no value.
    pieces = [{"part": "python", "opens": True}, {"part": "python", "text": "1/0"}, {"part": "text"}]
    pieces += [{"part": "python", "opens": True}, {"part": "python", "text": "2"}, {"part": "output", "text": "2"}]
    browser.evaluate("state.turns.push({ prompt: 'x', ids: [], text: '', calls: [] })")
    browser.evaluate(f"{json.dumps(pieces)}.forEach((piece) => receive.piece({{ text: '', ...piece }}))")
    calls = browser.evaluate("[...document.querySelectorAll('#messages .call')].map((p) => p.textContent)")
    assert calls[1:] == ["calculator: 1/0 → no result", "calculator: 2 → 2"]
    assert browser.evaluate("document.querySelectorAll('#messages b').length") == 0
    assert browser.complaints() == []


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script><img src=x onerror=alert(1)>😀\n\n\t\u202e {{spec}}", "a", ""]
)
def test_a_text_is_only_ever_shown(tmp_path, browser, show, text):
    run = make_run(tmp_path, "G", sequence_len=128)
    show(run, text="x")
    browser.evaluate(f"document.getElementById('source').value = {json.dumps(text)}; refresh()")
    wait(browser)
    seen = browser.evaluate(
        "[...document.querySelectorAll('#tokens span')].slice(1).map((s) => s.textContent).join('')"
    )
    parts = run.tokenizer.encode(text)  # bytes: a part of a character is written as \\xf0
    labels = [run.tokenizer.decode_bytes([i]).decode("utf-8", "backslashreplace") for i in parts]
    assert seen.replace("↵\n", "\n").replace("→\t", "\t") == "".join(labels)
    assert browser.evaluate("document.querySelectorAll('img, main script').length") == 0
    assert browser.evaluate("document.getElementById('about').textContent").startswith("<!--<script>")
    assert browser.complaints() == []


def press(browser, key: str, code: int) -> None:
    """Press a key that the browser itself reacts to."""
    for event in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=event, key=key, code=key, windowsVirtualKeyCode=code)


def test_everything_can_be_done_with_the_keyboard(tmp_path, browser, show):
    show(make_run(tmp_path, "G", sequence_len=128))
    last = browser.evaluate("shown.ids.length - 1")
    browser.evaluate("document.getElementById('tokens').focus()")
    press(browser, "ArrowLeft", 37)
    press(browser, "ArrowDown", 40)
    chosen = browser.evaluate(
        "[document.querySelector('#tokens .chosen').dataset.i, document.querySelector('.head.chosen').dataset.head]"
    )
    assert chosen == [str(last - 1), "0 1"]
    browser.evaluate(f"{CARD}.querySelector('[type=range]').focus()")
    press(browser, "ArrowRight", 39)
    wait(browser)
    ratio = browser.evaluate("state.changes[1].sigma[1] / trained[1].sigma[1]")
    assert ratio == pytest.approx(2**0.02)
    assert browser.evaluate("document.querySelector('.head.chosen').dataset.head") == "1 1"
    small = "[...document.querySelectorAll('main :is(button, input, textarea, select)')].filter((e) => e.tabIndex < 0)"
    assert browser.evaluate(f"{small}.length") == 0


def test_nothing_is_cut_on_a_phone(tmp_path, browser, show):
    show(make_run(tmp_path, "G", sequence_len=128))
    try:
        browser.call("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=True)
        wide = "[...document.querySelectorAll('body, main, section, .head, #next button')]"
        assert browser.evaluate(f"{wide}.filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.id)") == []
        assert browser.evaluate("document.documentElement.scrollWidth") <= 390
    finally:
        browser.call("Emulation.clearDeviceMetricsOverride")


def test_default_pages_are_small_enough(tmp_path):
    script = (Path(__file__).parents[2] / "speedrun.sh").read_text(encoding="utf-8")
    laptop = script[script.index("\nelse\n") :]
    default = [int(re.search(rf"{name}:=(\d+)", laptop)[1]) for name in ("DEPTH", "VOCAB_SIZE", "SEQUENCE_LEN")]
    for (depth, vocab_size, context), weights, limit in ((default, "int8", 4e6), ((2, 1024, 512), "float16", 2e6)):
        config = GPTConfig.from_depth(depth, "successor", vocab_size=vocab_size, sequence_len=context)
        tokenizer = byte_tokenizer([f"{i:08}".encode() for i in range(vocab_size - 265)])
        page = build_page(make_run(tmp_path, model=GPT(config), tokenizer=tokenizer))
        assert page.weights == weights
        assert len(page.html.encode()) < limit


@pytest.mark.parametrize("size,kind", [(2_000_000, "float16"), (2_000_001, "int8")])
def test_weights_of_up_to_2_mb_are_exact(tmp_path, monkeypatch, size, kind):
    monkeypatch.setattr(build, "page_size", lambda model, bytes_per_weight: size)
    spec, packed = build.describe(make_run(tmp_path), "auto", TEXT)
    assert spec["weights"] == kind
    kinds = {entry["rows"] * entry["columns"]: entry["kind"] for entry in packed.entries}
    assert {kinds[count] for count in kinds if count <= 4096} == {"float32"}


def test_a_page_has_at_most_200_mb(tmp_path, monkeypatch):
    run, sizes = make_run(tmp_path), iter([200_000_000, 200_000_001])
    monkeypatch.setattr(build, "page_size", lambda *of: next(sizes))
    build_page(run, "float16")
    with pytest.raises(ValueError, match="larger than 200,000,000 bytes"):
        build_page(run, "float16")


def test_a_model_that_a_page_cannot_compute_is_refused(tmp_path):
    with pytest.raises(ValueError, match="mixer mixture, expected gaussian, successor, dot_product or value_less"):
        build_page(make_run(tmp_path, "M"))
    run = make_run(tmp_path)
    run.model.lm_head.weight.data[0, 0] = 1e6
    with pytest.raises(ValueError, match="lm_head.weight has a value that float16 cannot hold"):
        build_page(run, "float16")


def test_the_command_writes_a_page_and_says_what_rounding_changes(base, tmp_path, capsys):
    save_run(base / "runs" / "tiny", small_model("S"))
    assert page_script.main(["--run", "tiny", "--out", str(tmp_path / "a" / "b.html")]) == 0
    out = capsys.readouterr().out
    assert "rounding changes logits by at most" in out
    assert (tmp_path / "a" / "b.html").stat().st_size > 100_000
    assert page_script.main(["--run", "tiny"]) == 0
    assert (base / "runs" / "tiny" / "model.html").is_file()
    assert page_script.main(["--run", "tiny", "--out", str(tmp_path), "--text", ""]) == 2
    assert "--out" in capsys.readouterr().err


@pytest.mark.parametrize("data, flags, shown", [
    ("embedded:2,smoltalk", (), True), ("embedded,mine.jsonl:2", (), False), ("mine.jsonl", ("--own-questions",), True),
    ("embedded,hub:mine.jsonl", (), False),  # a data set of the hub may be private, or a folder of this machine
])  # fmt: skip
def test_questions_of_own_conversations_leave_only_on_request(base, tmp_path, capsys, data, flags, shown):
    folder = save_run(base / "runs" / "talk", small_model("S"), kind="chat", data=data)
    (folder / "examples.json").write_text('["What did Aunt May say?"]')
    for name, file in (("page", "model.html"), ("export", "README.md")):
        out = tmp_path / name / file
        command = page_script if name == "page" else export_script
        assert command.main(["--run", "talk", "--out", str(out if name == "page" else out.parent), *flags]) == 0
        assert ("Aunt May" in out.read_text(encoding="utf-8")) == shown
        told = capsys.readouterr().out
        assert (": 1 of" if shown else "mine.jsonl may be private") in told
