"""The engine of a page, run by node: token ids, the calculator, sampling, changes, scores."""

import copy
import random
import shutil

import numpy as np
import pytest
import torch
from generate_models import byte_tokenizer, small_model
from page_models import EXTRA, make_run, scripted_run, unicode_texts

from nanogka.generate.calculator import calculate
from nanogka.page import lesson
from nanogka.page.build import describe
from nanogka.page.engine import run_engine
from nanogka.page.lesson import GAUSSIAN, SUCCESSOR, lesson_rows
from nanogka.page.weights import with_rounded_weights
from nanogka.tokenizer import Tokenizer

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="needs node")


def run(loaded, script: str, weights: str = "float32", **values):
    """What a script returns in the engine of a page of a run."""
    spec, packed = describe(loaded, weights, "x")
    return run_engine(script, spec, packed.data, **values)


def test_ids_are_those_of_python_and_a_long_word_takes_time_linear_in_its_length(tmp_path):
    texts = unicode_texts(600)
    letters = "".join(random.Random(1).choices("acgt", k=4000))
    tokenizer = Tokenizer.train(texts * 2 + ["the cat sees the old house. " + letters] * 9, 900)
    loaded = make_run(tmp_path, tokenizer=tokenizer)
    asked = [*texts[-200:], letters, "a" * 5000]
    script = """const seconds = (text) => { const began = process.cpuUsage().user; tokenizer.encode(text);
        return (process.cpuUsage().user - began) / 1e6; };
        seconds(long.slice(0, 20000));
        return [asked.map((text) => tokenizer.encode(text)), seconds(long)];"""
    ids, seconds = run(loaded, script, asked=asked, long=letters * 50)
    assert ids == [tokenizer.encode(text) for text in asked]
    assert seconds < 2  # of 200,000 letters; a quadratic way takes half a minute


def test_only_the_part_of_a_text_that_can_matter_is_tokenized(tmp_path):
    script = """let longest = 0;
        const { match } = String.prototype;
        String.prototype.match = function (pattern) {
            longest = Math.max(longest, this.length);
            return match.call(this, pattern);
        };
        const changes = network.trained(), text = "the cat ".repeat(1e5), turns = [{ prompt: text, ids: [] }];
        const seen = [{ text }, { turns, draft: "" }].map((source) => read({ source, changes, most: 256 }));
        return [longest, seen.map(({ ids, cut }) => [ids.length, cut])];"""
    longest, seen = run(make_run(tmp_path), script)
    assert seen == [[64, True]] * 2  # the context
    assert longest < 2000


NUMBERS = (
    "0 1 7 12 00 012 0.5 .5 5. 1e5 1e16 1e308 5e-324 1e400 9007199254740993 99999999999999999999 3.14 -0.0 0.0 1,000"
)
TEXTS = ['"banana"', "'aé'", '""', "'a'", '"😀x😀"', '"a" "na"', '"a\nb"', "'1,0'", '"""a"""', r"'\n'"]


def expression(rng: random.Random, depth: int) -> str:
    """An expression, or what is nearly one."""
    kind = rng.random()
    if depth == 0 or kind < 0.3:
        return rng.choice(NUMBERS.split()) if rng.random() < 0.5 else str(rng.randrange(10 ** rng.randint(1, 22)))
    if kind < 0.75:
        operator = rng.choice(["+", " - ", "*", " / ", "//", " % ", "**", "\u00a0+", "\n-", "\t*"])
        return expression(rng, depth - 1) + operator + expression(rng, depth - 1)
    if kind < 0.9:
        return rng.choice(["-{}", "+{}", "({})", " {}\x1c", "{}\ufeff"]).format(expression(rng, depth - 1))
    call = rng.choice(["{}.count({})", "{} . count( {} )", "{}.count({},)", "({}).count(({}))", "({}.count)({})"])
    return call.format(rng.choice(TEXTS), rng.choice(TEXTS))


def test_the_calculator_never_gives_another_value_than_python():
    rng = random.Random(0)
    given = [expression(rng, rng.randint(0, 4)) for _ in range(4000)]
    given += ["1e308*10//2", "1/5e-324//3", "5.//(-1e308*10)", "-7.5//2", "7.5%-2", "-0.0%3", "123456789012345678901/7"]
    found = run_engine("return given.map(calculate);", given=given)
    values = [calculate(text) for text in given]
    assert [(text, one) for text, one, value in zip(given, found, values) if one not in (None, value)] == []
    assert all(one is not None for one, text, value in zip(found, given, values) if value and text.isascii() and
               not any(odd in text for odd in ("\n", '"""', "\\", "\x1c")))  # fmt: skip
    assert sum(one is not None for one in found) > 1000


def test_the_score_is_in_bits_per_byte_of_the_text(tmp_path):
    loaded = make_run(tmp_path, "S", sequence_len=64)
    text = "abé😀 the"  # tokens of one, two and four bytes
    ids = [loaded.tokenizer.bos_id, *loaded.tokenizer.encode(text)]
    assert len(ids) - 1 < len(text.encode())
    script = """const seen = read({ source: { text }, changes: network.trained(), most: 256 });
        return [seen.perByte, seen.ids];"""
    per_byte, seen = run(loaded, script, text=text)
    with torch.no_grad():
        log_p = loaded.model(torch.tensor([ids]))[0].double().log_softmax(-1)
    bits = -log_p[range(len(ids) - 1), ids[1:]].sum().item() / np.log(2)
    assert seen == ids
    assert per_byte == pytest.approx(bits / len(text.encode()), rel=1e-5)


def test_sampling_at_half_the_temperature_squares_the_probabilities(tmp_path):
    logits = [2.0, 1.0, 0.0, -1.0, -9.0]
    script = """const counts = Array(logits.length).fill(0);
        for (let i = 0; i < 40000; i++) counts[sample(Float32Array.from(logits), 0.5, 4)]++;
        return counts.map((count) => count / 40000);"""
    found = np.array(run_engine(script, logits=logits))
    weights = np.exp(2 * np.array(logits[:4]))  # exp(logit / T); the fifth is not among the four likeliest
    np.testing.assert_allclose(found, [*(weights / weights.sum()), 0], atol=0.012)


WRITE = """await write({ source, changes, temperature: 0, most: 24 });
    return posted.filter(({ type }) => type === "piece").map(({ id }) => id);"""


def test_a_text_written_after_a_change_of_the_first_layer_is_that_of_the_changed_model(tmp_path):
    loaded = make_run(tmp_path, "G", sequence_len=64)
    spec, packed = describe(loaded, "float32", "x")
    script = f"""const source = {{ text: "the cat sat on the mat" }}, changes = network.trained();
        await write({{ source, changes, temperature: 0, most: 24 }});
        posted.length = 0;
        changes[0].sigma = changes[0].sigma.map((sigma) => 30 * sigma);
        {WRITE}"""
    found = run_engine(script, spec, packed.data)
    model = with_rounded_weights(loaded.model, packed)
    expected = []
    for factor in (1, 30):
        model.blocks[0].mixer.log_bandwidth.data += np.log(factor)
        ids = [loaded.tokenizer.bos_id, *loaded.tokenizer.encode("the cat sat on the mat")]
        start = len(ids)
        with torch.no_grad():
            while len(ids) < start + 24:
                ids.append(int(model(torch.tensor([ids]))[0, -1, : loaded.tokenizer.vocab_size].argmax()))
        expected.append(ids[start:])
    assert expected[0] != expected[1]
    assert found == expected[1]


def test_a_reply_has_room_although_the_conversation_fills_the_context(tmp_path):
    loaded = scripted_run(tmp_path)  # a context of 64
    script = """const count = (turns, draft) => idsOf({ turns, draft }, 64).ids.length;
        const turns = [{ prompt: "x", ids: [120] }];
        while (count(turns, "how") < 63) turns[0].prompt += "x";
        const full = count(turns, "how"), source = { turns, draft: "how" }, changes = network.trained();
        await write({ source, changes, temperature: 0 });
        return [full, source.turns.length, posted.map(({ text }) => text ?? "").join("")];"""
    full, kept, reply = run(loaded, script)
    assert (full, kept) == (63, 0)  # the oldest turn has left
    assert reply == "12*336yes"


def test_the_lesson_has_a_number_for_each_exercise(tmp_path):
    tokenizer = byte_tokenizer(EXTRA)
    models = [small_model(kind, sequence_len=128, vocab_size=tokenizer.vocab_size) for kind in "SG"]
    successor, gaussian = (make_run(tmp_path, model=model, tokenizer=tokenizer) for model in models)
    rows = lesson_rows([successor, successor], [gaussian])
    assert len(rows) == len(SUCCESSOR) + len(GAUSSIAN)
    assert [row[0] for row in rows] == [line[0] for line in (*SUCCESSOR, *GAUSSIAN)]
    assert "nan" not in str(rows)
    assert rows[0][3].endswith(" bits")
    assert {row[3].split()[-1] for row in rows} == {"bits", "%", "byte"}


def test_the_lessons_ranges_are_over_the_runs_and_their_heads(monkeypatch):
    every = dict.fromkeys((name for _, _, name, _, _ in (*SUCCESSOR, *GAUSSIAN)), 1.0)
    one = every | {"bits": [126.4, 32.0, 17.0, 11.0], "followed": [0.46, 0.9], "cutLayers": [0.1, 1.068]}
    other = every | {"bits": [114.0, 46.0, 29.0, 29.0], "followed": [0.98, 0.7], "cutLayers": [0.2, -0.874]}
    monkeypatch.setattr(lesson, "measure", {"one": one, "other": other}.__getitem__)
    rows = {(model, quantity): value for _, model, quantity, value in lesson_rows(["one", "other"], ["other"])}
    assert rows["successor", "bits of the first copy"] == "114 to 126 bits"
    assert rows["successor", "bits of the fourth copy"] == "11 to 29 bits"
    assert rows["successor", "weight on what followed, per head"] == "46 to 98 %"
    assert rows["successor", "the last layer's heads cut"] == "-0.87 to +1.07 bits per byte"
    assert rows["gaussian", "bits of the second copy"] == "46 bits"
    assert rows["gaussian", "weight on what followed, per head"] == "70 to 98 %"


def test_the_lessons_numbers_are_the_losses_of_the_changed_models(tmp_path):
    tokenizer, text = byte_tokenizer(EXTRA), lesson.TEXT
    model = small_model("S", sequence_len=128, vocab_size=tokenizer.vocab_size)
    found = lesson.measure(make_run(tmp_path, model=model, tokenizer=tokenizer), weights="float32")
    ids = torch.tensor([[tokenizer.bos_id, *tokenizer.encode(text)]])
    layers, heads, size = range(3), range(2), 32

    def bits(change=lambda blocks: None):
        changed = copy.deepcopy(model)
        with torch.no_grad():
            change(changed.blocks)
            log_p = changed(ids)[0, :-1].double().log_softmax(-1)
        return -log_p.gather(1, ids[0, 1:, None])[:, 0] / np.log(2)

    def cost(change):
        return (bits(change).sum() - bits().sum()).item() / len(text.encode())

    def spread(factor, some=layers):
        return cost(lambda blocks: [blocks[l].mixer.log_bandwidth.add_(np.log(factor)) for l in some])

    def cut(some, parts=heads):  # what W_O reads of a head
        return cost(lambda blocks: [blocks[l].mixer.c_proj.weight[:, size * h : size * (h + 1)].zero_()
                                    for l in some for h in parts])  # fmt: skip

    def without_keys(some):
        return cost(lambda blocks: [setattr(blocks[l].mixer, "successor_keys", False) for l in some])

    expected = {
        "cutHeads": [cut([layer], [head]) for layer in layers for head in heads],
        "cutLayers": [cut([layer]) for layer in layers],
        "cutAll": cut(layers),
        "keysOffLast": without_keys([2]),
        "keysOffAll": without_keys(layers),
        "wideLast": spread(4, [2]),
        "narrowLast": spread(1 / 4, [2]),
        "wideAll": spread(2),
        "narrowAll": spread(1 / 4),
        "widestAll": spread(4),
    }
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-4), name
    assert all(abs(value) > 1e-3 for value in np.hstack(list(expected.values())))
    starts = np.cumsum([0, *(len(tokenizer.decode_bytes([one])) for one in ids[0, 1:-1].tolist())])
    copies = np.bincount(starts * 4 // len(text), weights=bits().numpy())
    assert found["bits"] == pytest.approx(copies.tolist(), rel=1e-4)


def test_the_shares_of_a_head_are_means_of_its_weights(tmp_path):
    script = """return texts.map((text) => {
        const { ids, shares, attention } = read({ source: { text }, changes: network.trained(), most: 256 });
        return [ids, shares, Array.from(attention)];
    });"""
    repeated, once = run(make_run(tmp_path, "S"), script, texts=["kif dovu. kif dovu. kif", "abc"])
    ids, shares, attention = map(np.array, repeated)
    n = len(ids)
    weights = attention.reshape(6, n, n)
    np.testing.assert_allclose(weights.sum(2), 1, rtol=1e-5)
    same = ids[:, None] == ids[None, :]  # of what looks and what is looked at
    earlier = np.tri(n, k=-1, dtype=bool)
    after = np.zeros((n, n), bool)
    after[:, 1:] = same[:, :-1]
    repeats = (same & earlier).any(1).sum()
    assert 0 < repeats < n
    for column, mask, count in ((0, np.eye(n, dtype=bool), n), (1, same & earlier, repeats),
                                (2, after & earlier & ~same, repeats)):  # fmt: skip
        np.testing.assert_allclose(shares[:, column], (weights * mask).sum((1, 2)) / count, rtol=1e-5)
    assert [head[1:] for head in once[1]] == [[None, None]] * 6
