"""Runs with small models, and texts, for the tests of the page and of its engine."""

import random
import unicodedata

import torch
from generate_models import byte_tokenizer, small_model

from nanogka.model import GPT, GPTConfig
from nanogka.runs import LoadedRun

EXTRA = [b" the", "😀".encode(), b"ab", b"bc", b"abc", b"\xc3", b"10"]


def make_run(folder, pattern="G", kind="base", model=None, tokenizer=None, **options) -> LoadedRun:
    """A run with a small model in which every part matters."""
    tokenizer = tokenizer or byte_tokenizer(EXTRA)
    shape = {"sequence_len": 64, "vocab_size": tokenizer.vocab_size} | options
    model = model or small_model(pattern, **shape)
    config = {"settings": {}, "run": {"kind": kind}, "model": model.config.to_dict()}
    return LoadedRun(folder / "<!--<script>", config, tokenizer, 7, folder / "checkpoints", model)


def unicode_texts(count: int) -> list[str]:
    """Texts of assigned characters, of all kinds of blanks, of words and marks, and the edges of the pattern."""
    rng = random.Random(0)
    every = (chr(code) for code in range(0x110000))
    assigned = [c for c in every if unicodedata.category(c) not in ("Cn", "Co", "Cs")]
    blanks = [*"\t\n\r\v\f \x1c\x1f\x85\xa0\u1680\u2003\u200b\u2028\u2029\u202f\u3000\ufeff\u180e", "a", "1", "."]
    words = [
        "the",
        " the",
        "'s",
        "'LL",
        "é",
        "😀",
        "१२",
        "100",
        "ǅ",
        "\u0301",
        "  ",
        "\r\n",
        "日本",
        "…",
        "Ⅷ",
        "²",
        "abc",
    ]
    pools = [assigned, blanks, words, list(map(chr, range(256)))]
    texts = ["", " " * 300 + "x", "\n" * 200, "abc" * 300, "don't WE'LL 'ſ 'S it's", "x  \n\n  y"]
    return texts + ["".join(rng.choices(pools[i % 4], k=rng.randint(1, 40))) for i in range(count)]


def scripted_run(folder) -> LoadedRun:
    """A chat model that calls the calculator with 12*3 and then says yes: each token decides the next one."""
    tokenizer = byte_tokenizer()
    mark = {name[2:-2]: token for name, token in tokenizer.special_tokens.items()}
    chain = (
        [mark["assistant_start"], mark["python_start"], *b"12*3", mark["python_end"]],
        [mark["output_end"], *b"yes", mark["assistant_end"]],
    )
    model = GPT(
        GPTConfig(n_layer=2, n_head=2, n_embd=64, vocab_size=tokenizer.vocab_size, sequence_len=64)
    )  # layers add 0
    with torch.no_grad():
        model.lm_head.weight.zero_()
        for k, (token, following) in enumerate(pair for part in chain for pair in zip(part, part[1:])):
            model.embedding.weight[token] = torch.eye(64)[k]
            model.lm_head.weight[following, k] = 3
    return make_run(folder, kind="chat", model=model.eval(), tokenizer=tokenizer)
