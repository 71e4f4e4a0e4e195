"""A model that has read a text."""

import pytest
from generate_models import byte_tokenizer, small_model

from nanogka.runs import LoadedRun
from nanogka.visualize.capture import TracedRun
from nanogka.visualize.run import read_text

TEXT = "the cat, the hat 😀\n$a$ <b>&amp;</b>"


@pytest.fixture
def read(tmp_path):
    """`read(text, pattern)`: the trace of a `TracedRun` of a small model with random weights, 3 layers of 2 heads."""

    def call(text: str = TEXT, pattern: str = "G", **shape) -> TracedRun:
        tokenizer = byte_tokenizer([b" the", "😀".encode()])
        shape = {"sequence_len": 64, "vocab_size": tokenizer.vocab_size} | shape
        model = small_model(pattern, **shape)
        config = {"settings": {}, "model": model.config.to_dict()}
        folder = tmp_path / f"<!--<script>{pattern}"  # a name that would end the script that holds the data
        run = LoadedRun(folder, config, tokenizer, 7, folder / "checkpoints", model)
        return read_text(run, text, 10_000)

    return call
