"""The tokenizer: two libraries and a naive encoder agree, text survives, bad input is refused with the reason."""

import json
import random
import socket
import subprocess
import sys

import numpy as np
import pytest
import tiktoken
import tokenizers

from nanogka.tokenizer import BOS, MIN_VOCAB_SIZE, SHORT_TEXT, SPECIAL_TOKENS, SPLIT_PATTERN, Tokenizer
from scripts.tok_eval import SAMPLES

CONTRACTIONS = "The quick brown fox can't jump, we'll see; they've said HE'S 12345 years old.\n\n\t\tEnd  "
TEXTS = [*SAMPLES.values(), CONTRACTIONS] * 3


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS, 700)


def test_a_text_that_yields_fewer_ids_than_asked_gets_a_multiple_of_64_and_others_the_exact_number(tokenizer):
    """The last merges are dropped, so the tokenizer is the one that was asked for with this size."""
    exact = [Tokenizer.train(TEXTS, size) for size in (MIN_VOCAB_SIZE, 301, 700)]
    assert [one.vocab_size for one in exact] == [MIN_VOCAB_SIZE, 301, 700]
    cut = Tokenizer.train(TEXTS, 10_000)
    assert 700 < cut.vocab_size < 10_000
    assert cut.vocab_size % 64 == 0
    assert cut.fingerprint == Tokenizer.train(TEXTS, cut.vocab_size).fingerprint
    assert Tokenizer.train(TEXTS, cut.vocab_size + 1).vocab_size == cut.vocab_size + 1  # the text has more pairs
    assert Tokenizer.train(["aaaa aaaa"], 700).vocab_size in range(MIN_VOCAB_SIZE, 320)  # too few for any multiple


def random_text(rng: random.Random) -> str:
    """Up to 60 characters or fragments of very different kinds."""
    kinds = [
        ["a", "e", "th", "ing", " the", "The", "'s", "'LL", "'ve", "’s", "'ſ", "ß", "İ"],
        [" ", "  ", "\t", "\n\n"],
        ["\n", "\r\n", "\r", "\u00a0", "\u2003", "\u3000", "\x85", "\u200b", "\x1c"],
        [str(rng.randrange(10**6))],
        ["²", "Ⅷ", "٣", "৫", "½", "㉝"],
        [*SPECIAL_TOKENS, "<|endoftext|>"],
        ["\U0001f469\u200d\U0001f467", "\U0001f1eb\U0001f1ee", "\U0001f44d\U0001f3fd", "☕️"],
        ["e\u0301", "Z\u0351\u036a", "\u202e", "\ufeff", "\x00", "\x07"],
        ".,;:!?-_()[]{}/\\\"'`~@#$%^&*+=<>|",
        [chr(rng.randrange(0x4E00, 0x9FFF))],
        [chr(rng.choice((rng.randrange(0xD800), rng.randrange(0xE000, 0x110000))))],
    ]
    return "".join(rng.choice(rng.choice(kinds)) * rng.choice((1, 1, 1, 2, 5)) for _ in range(rng.randrange(60)))


def naive_bpe(piece: bytes, ranks: dict[bytes, int]) -> list[int]:
    """A piece that is a token is one; else the neighbors that spell the lowest token are joined, leftmost first."""
    if piece in ranks:
        return [ranks[piece]]
    parts = [piece[i : i + 1] for i in range(len(piece))]
    while True:
        pairs = [(ranks[a + b], i) for i, (a, b) in enumerate(zip(parts, parts[1:])) if a + b in ranks]
        if not pairs:
            return [ranks[part] for part in parts]
        _, i = min(pairs)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]


def pieces_of(text: str) -> list[str]:
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(SPLIT_PATTERN), behavior="isolated")
    return [piece for piece, _ in split.pre_tokenize_str(text)]


def test_both_libraries_and_a_naive_encoder_agree_and_text_survives(tokenizer):
    hf = tokenizer.to_hf()
    ranks = {tokenizer.decode_bytes([i]): i for i in range(tokenizer.vocab_size - len(SPECIAL_TOKENS))}
    rng = random.Random(1)
    texts = ["", *TEXTS, *(random_text(rng) for _ in range(1500))]
    vocabulary = [token.decode("utf-8", "ignore") for token in ranks]
    texts += ["".join(rng.choices(vocabulary, k=20)) for _ in range(500)]
    for text, ids in zip(texts, tokenizer.encode_batch(texts, num_threads=2)):
        assert ids == tokenizer.encode(text)
        assert ids == hf.encode(text).ids, repr(text)
        assert ids == [i for piece in pieces_of(text) for i in naive_bpe(piece.encode(), ranks)], repr(text)
        assert tokenizer.decode(ids) == text == tokenizer.decode_bytes(ids).decode()
        assert hf.decode(ids) == text
    long = [" ".join(texts[first : first + 60]) for first in range(0, len(texts), 60)]
    assert sum(map(len, long)) > SHORT_TEXT * len(long)  # these go to threads
    assert tokenizer.encode_batch(long, num_threads=2) == [tokenizer.encode(text) for text in long]


@pytest.mark.parametrize("seed", range(2))
def test_vocabularies_full_of_alternative_merges_agree(seed):
    rng = random.Random(seed)
    words = ["".join(rng.choices("abé", k=rng.randrange(1, 9))) for _ in range(60)]
    tokenizer = Tokenizer.train([" ".join(rng.choices(words, k=400))], MIN_VOCAB_SIZE + 200)
    hf = tokenizer.to_hf()
    for _ in range(400):
        text = "".join(rng.choices("abé ", k=rng.randrange(1, 40)))
        assert tokenizer.encode(text) == hf.encode(text).ids, text


def test_a_piece_that_is_a_token_is_one_token_although_no_merges_lead_there():
    tokens = [bytes([i]) for i in range(256)] + [b"bc", b"ab", b"cd", b"abcd"]
    special = {name: len(tokens) + i for i, name in enumerate(SPECIAL_TOKENS)}
    tokenizer = Tokenizer(tokens, special)
    assert tokenizer.encode("abcd") == tokenizer.to_hf().encode("abcd").ids == [259]
    assert tokenizer.encode("abcda") == tokenizer.to_hf().encode("abcda").ids == [97, 256, 100, 97]


@pytest.mark.slow  # it depends on the versions of the two libraries alone
@pytest.mark.parametrize("kind", [r"\p{L}", r"\p{N}", r"\s"])
def test_both_libraries_put_every_code_point_in_the_same_class(kind):
    everything = "".join(chr(i) for i in range(0x110000) if not 0xD800 <= i < 0xE000)
    ranks = {bytes([i]): i for i in range(256)}
    found = tiktoken.Encoding(kind, pat_str=kind, mergeable_ranks=ranks, special_tokens={})
    split = tokenizers.pre_tokenizers.Split(tokenizers.Regex(kind), behavior="removed", invert=True)
    ours = "".join(piece for piece, _ in split.pre_tokenize_str(everything))
    assert ours == found.decode(found.encode_ordinary(everything))


@pytest.mark.parametrize("unit", [" ", "\n \r", "a", "^", "7", "\u0301"])
def test_a_long_run_of_one_character_is_encoded_alike(tokenizer, unit):
    text = unit * (200_000 // len(unit))
    ids = tokenizer.encode(text)
    assert ids == tokenizer.to_hf().encode(text).ids
    assert tokenizer.decode(ids) == text


def test_special_tokens_never_come_out_of_text(tokenizer):
    first = min(tokenizer.special_tokens.values())
    ids = tokenizer.encode(" ".join(SPECIAL_TOKENS))
    assert max(ids) < first
    assert tokenizer.decode(ids) == " ".join(SPECIAL_TOKENS)
    assert list(tokenizer.special_tokens) == list(SPECIAL_TOKENS)
    assert sorted(tokenizer.special_tokens.values()) == list(range(first, tokenizer.vocab_size))
    assert tokenizer.bos_id == tokenizer.special_tokens[BOS]
    assert tokenizer.decode([tokenizer.bos_id]) == BOS


@pytest.mark.parametrize("text, position", [("ab\ud83d", 2), ("\udc00x", 0), ("é\ud83d\ude00", 1)])
def test_a_lone_surrogate_is_refused_with_its_position(tokenizer, text, position):
    wanted = f"lone surrogate U\\+{ord(text[position]):04X} at position {position} of {len(text)}"
    for call in (
        tokenizer.encode,
        lambda text: tokenizer.encode_batch(["fine", text]),
        lambda text: Tokenizer.train(["fine", text], 300),
    ):
        with pytest.raises(ValueError, match=wanted):
            call(text)


def test_token_bytes_are_the_bytes_each_id_decodes_to(tokenizer):
    lengths = tokenizer.token_bytes()
    decoded = [len(tokenizer.decode_bytes([i])) for i in range(tokenizer.bos_id)]
    assert lengths.tolist() == decoded + [0] * len(SPECIAL_TOKENS)
    assert lengths.dtype == np.int32
    text = SAMPLES["other languages"]
    assert lengths[tokenizer.encode(text)].sum() == len(text.encode())
    assert tokenizer.decode_bytes(range(256)) == bytes(range(256))


def test_a_cut_character_decodes_to_the_replacement_character_and_a_wrong_id_is_refused(tokenizer):
    ids = tokenizer.encode("\U0001f9ff")
    assert tokenizer.decode(ids[:1]) == "\ufffd"
    assert b"".join(tokenizer.decode_bytes([i]) for i in ids).decode() == "\U0001f9ff"
    for bad in (-1, tokenizer.vocab_size):
        with pytest.raises(ValueError, match=f"ids: got {bad}"):
            tokenizer.decode([0, bad])


def test_save_and_load_keep_everything_without_a_network(tokenizer, tmp_path, monkeypatch):
    for name in ("socket", "create_connection"):
        monkeypatch.setattr(socket, name, lambda *args, **options: pytest.fail("a connection was attempted"))
    folder = tmp_path / "a" / "b"
    tokenizer.save(folder)
    assert sorted(path.name for path in folder.iterdir()) == ["meta.json", "tokenizer.json"]
    loaded = Tokenizer.load(folder)
    for name in ("fingerprint", "vocab_size", "special_tokens", "meta"):
        assert getattr(loaded, name) == getattr(tokenizer, name)
    text = "".join(TEXTS)
    assert loaded.meta["trained_on"] == {"documents": len(TEXTS), "characters": len(text), "bytes": len(text.encode())}
    plain = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert loaded.encode(text) == plain.encode(text).ids == tokenizer.encode(text)
    assert plain.token_to_id(BOS) == tokenizer.bos_id
    assert json.loads((folder / "meta.json").read_text())["vocab_size"] == tokenizer.vocab_size


def test_a_damaged_or_missing_tokenizer_is_a_clear_error(tokenizer, tmp_path):
    with pytest.raises(ValueError, match="^tokenizer: .*tokenizer.json"):
        Tokenizer.load(tmp_path)
    tokenizer.save(tmp_path)
    file = tmp_path / "tokenizer.json"
    good = file.read_text()
    # The pattern x? matches the empty text, so that a library never ends or panics.
    for bad in (good.replace('"id": ', '"id": 9'), good.replace(json.dumps(SPLIT_PATTERN), '"x?"')):
        assert bad != good
        file.write_text(bad)
        with pytest.raises(ValueError, match="^tokenizer: .*/tokenizer.json"):
            Tokenizer.load(tmp_path)
    Tokenizer.train(TEXTS, 600).save(tmp_path / "other")
    file.write_text((tmp_path / "other" / "tokenizer.json").read_text())
    with pytest.raises(ValueError, match="^tokenizer: .*/meta.json"):
        Tokenizer.load(tmp_path)


def test_training_is_the_same_in_another_process(tokenizer):
    code = f"from nanogka.tokenizer import Tokenizer; print(Tokenizer.train({TEXTS!r}, 700).fingerprint)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == tokenizer.fingerprint
    assert Tokenizer.train([*TEXTS, "another text, another text"], 700).fingerprint != tokenizer.fingerprint
