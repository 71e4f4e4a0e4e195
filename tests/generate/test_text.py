"""Streaming text: whole characters, nothing of a stop string, in the end exactly the text of the bytes."""

import random

import pytest
from generate_models import byte_tokenizer

from nanogka.generate.text import TextStream

TEXT = "naïve 日本語 — 👩‍👩‍👧 ok 🇩🇪\n中文字符 é\u0301 done 😀"


def pieces_of(data, rng):
    """`data` cut at random places."""
    cuts = sorted(rng.sample(range(1, len(data)), rng.randint(0, len(data) // 2)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)])]


def stream_of(pieces, **kwargs):
    extra = list(dict.fromkeys(piece for piece in pieces if len(piece) > 1))
    tokenizer = byte_tokenizer(extra)
    ids = {piece: 256 + i for i, piece in enumerate(extra)}
    stream = TextStream(tokenizer, **kwargs)
    return stream, [tokenizer.bos_id, *(ids.get(piece, piece[0]) for piece in pieces)]  # a special token is silent


@pytest.mark.parametrize("seed", range(8))
def test_any_bytes_give_what_decoding_them_at_once_gives(seed):
    rng = random.Random(seed)
    data = bytes(rng.choice([rng.randrange(256), 0xF0, 0x9F, 0xE4, 0x80, 0x41]) for _ in range(60))
    stream, tokens = stream_of(pieces_of(data, rng))
    assert "".join(map(stream.push, tokens)) + stream.finish() == data.decode("utf-8", "replace")
    assert stream.decoded == len(data.decode("utf-8", "replace"))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("stops", [[], ["语 —"], ["本語"], ["ok 🇩", "ok"], ["not there", "done 😀!"], ["\n"]])
def test_characters_come_whole_and_text_ends_before_the_first_stop_string(seed, stops):
    stream, tokens = stream_of(pieces_of(TEXT.encode(), random.Random(seed)), stop_strings=stops)
    so_far = ""
    for token in tokens:
        so_far += stream.push(token)
        assert TEXT.startswith(so_far)
        if stream.stopped:
            break
    so_far += stream.finish()
    ends = [TEXT.find(stop) for stop in stops if stop in TEXT]
    assert stream.stopped == bool(ends)
    assert so_far == (TEXT[: min(ends)] if ends else TEXT)


def test_a_token_with_two_stop_strings_ends_before_the_first_of_them():
    stream, tokens = stream_of([b"one, two; three"], stop_strings=[";", ","])
    assert ("".join(map(stream.push, tokens)), stream.stopped) == ("one", True)
