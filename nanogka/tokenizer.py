"""Byte-level BPE, trained with `tokenizers` and encoded with tiktoken. Both give the same ids.

tiktoken encodes faster but cannot train. The file that `tokenizers` reads is the one that other programs expect.

Byte-pair encoding starts from bytes and repeatedly merges the most frequent pair of neighbors into a new token. Text
is first cut into pieces (words, numbers, white space) by a pattern, and no merge crosses a cut, so "dog." and "dog!"
share the token "dog". Ids: the 256 bytes, then the merges in the order they were learned, then the special tokens.

tiktoken keeps a piece that is a token, and joins any two neighbors whose concatenation is a token. `tokenizers` joins
only listed pairs. `tokenizer.json` therefore sets `ignore_merges` and lists every way to split a token, so that both
libraries give the same ids.

Text never encodes to special tokens: `encode("<|bos|>")` gives the ids of seven ordinary characters.
"""

import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import tiktoken
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from nanogka.common.files import atomic_write, base_dir, expand_path, first_line, read_json

DEFAULT_VOCAB_SIZE = 32768  # as in nanochat: GPT-4's 100,000 would be most of the parameters of a small model

BOS = "<|bos|>"
SPECIAL_TOKENS = (
    BOS,
    "<|user_start|>",
    "<|user_end|>",
    "<|assistant_start|>",
    "<|assistant_end|>",
    "<|python_start|>",
    "<|python_end|>",
    "<|output_start|>",
    "<|output_end|>",
)
MIN_VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)
ALIGNMENT = 64  # matrix products with the head are slower on GPUs for a vocabulary that is not a multiple of it
SHORT_TEXT = 200  # characters; a shorter text is encoded before a thread could take it over
DERIVED_META = ("vocab_size", "special_tokens", "fingerprint")  # entries of meta.json that are not in `Tokenizer.meta`

# The pieces of text, after GPT-4's pattern. Two things are spelled so that Oniguruma (tokenizers) and fancy-regex
# (tiktoken) cannot disagree or fail: contractions without a case-insensitive group (Unicode case folding would let
# other letters in), and white space in bounded runs (unbounded ones overflow the backtracking stack on many blanks).
SPLIT_PATTERN = "|".join(
    (
        r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])",  # English contractions
        r"[^\r\n\p{L}\p{N}]?+\p{L}+",  # a word, with one space or mark before it
        r"\p{N}{1,2}",  # digits by twos as in nanochat, where GPT-4 has threes: fewer ids go to numbers
        r" ?[^\s\p{L}\p{N}]++[\r\n]*",  # punctuation, with the line ends after it
        r"\s{0,127}[\r\n]",  # white space up to a line end
        r"\s{1,128}(?!\S)",  # white space but for the last blank, which goes with the next word
        r"\s{1,128}",
    )
)


def byte_alphabet() -> list[str]:
    """The printable character for each of the 256 bytes in `tokenizer.json` (GPT-2's convention)."""
    # The file is JSON text, so each byte of a token is written as one visible character.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    stand_ins = itertools.count(0x100)
    return [chr(byte) if byte in printable else chr(next(stand_ins)) for byte in range(256)]


def check_text(text: str) -> str:
    """Return `text`. Raises ValueError for a lone surrogate, which UTF-8 cannot encode."""
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ValueError(
                f"text: got a lone surrogate U+{ord(text[error.start]):04X} at position {error.start} of {len(text)},"
                " expected Unicode text (a surrogate is half of a character)"
            ) from None
    return text


def tokenizer_folder(name: str) -> Path:
    """The folder of the tokenizer `name` under `base_dir()/tokenizers`. A name with a slash is a path."""
    return expand_path(name) if os.sep in name or "/" in name else base_dir() / "tokenizers" / name


class Tokenizer:
    """A vocabulary with special tokens. Make one with `train` or `load`."""

    def __init__(self, tokens: Sequence[bytes], special_tokens: dict[str, int], *, meta: dict | None = None) -> None:
        """`tokens[i]` has the bytes of ordinary token i, in the order of merging. Special ids follow."""
        assert sorted(special_tokens.values()) == list(range(len(tokens), len(tokens) + len(special_tokens)))
        self.meta = dict(meta or {})  # description of the training text, for meta.json
        self.special_tokens = dict(special_tokens)
        self.vocab_size = len(tokens) + len(special_tokens)
        self.bos_id = special_tokens[BOS]  # begins every document and every packed row
        self._n_ordinary = len(tokens)
        self.longest_token = max(map(len, tokens), default=1)  # in bytes: bounds the tokens of a text from below
        names = sorted(special_tokens, key=special_tokens.__getitem__)
        self._bytes = [*tokens, *(name.encode() for name in names)]
        ranks = {token: rank for rank, token in enumerate(tokens)}
        # Given no special tokens, tiktoken finds none in text; given the ranks, it downloads nothing.
        self._encoding = tiktoken.Encoding("nanogka", pat_str=SPLIT_PATTERN, mergeable_ranks=ranks, special_tokens={})
        digest = hashlib.sha256(SPLIT_PATTERN.encode())
        for token in self._bytes:
            digest.update(len(token).to_bytes(4, "little") + token)
        digest.update(self._n_ordinary.to_bytes(4, "little"))
        self.fingerprint = digest.hexdigest()  # equal ones give equal ids

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int = DEFAULT_VOCAB_SIZE) -> "Tokenizer":
        """Learn merges from `texts`. The same texts give the same tokenizer.

        Only pairs that occur at least twice are merged: a token that occurs once teaches its embedding nothing. So a
        short text gives a smaller vocabulary, of which the last merges are dropped until its size is a multiple of
        `ALIGNMENT`. A `vocab_size` that the text reaches stays exact.
        """
        documents = characters = n_bytes = 0

        def counted() -> Iterator[str]:
            nonlocal documents, characters, n_bytes
            for text in texts:
                documents, characters = documents + 1, characters + len(text)
                n_bytes += len(check_text(text).encode("utf-8"))
                yield text

        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size - len(SPECIAL_TOKENS),
            min_frequency=2,
            initial_alphabet=byte_alphabet(),
            special_tokens=[],
            show_progress=False,
        )
        raw = _empty_hf()
        raw.train_from_iterator(counted(), trainer)
        if not n_bytes:
            raise ValueError("texts: got no text to train a tokenizer on, expected at least one document with text")
        learned = _by_id(raw.get_vocab(with_added_tokens=False))
        # The bytes get their own values as ids, whatever order the trainer gave them.
        tokens = [bytes([byte]) for byte in range(256)] + [token for token in learned if len(token) > 1]
        size = len(tokens) + len(SPECIAL_TOKENS)
        aligned = size // ALIGNMENT * ALIGNMENT
        if size < vocab_size and aligned >= MIN_VOCAB_SIZE:
            tokens = tokens[: aligned - len(SPECIAL_TOKENS)]  # no earlier merge needs a later one
        special = {name: len(tokens) + i for i, name in enumerate(SPECIAL_TOKENS)}
        meta = {
            "requested_vocab_size": vocab_size,
            "trained_on": {"documents": documents, "characters": characters, "bytes": n_bytes},
        }
        return cls(tokens, special, meta=meta)

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, without a document token."""
        return self._encoding.encode_ordinary(check_text(text))

    def encode_batch(self, texts: Sequence[str], num_threads: int | None = None) -> list[list[int]]:
        """The ids of each text. Long texts are shared by `num_threads` threads (default: one per core, at most 8)."""
        texts = [check_text(text) for text in texts]
        if sum(map(len, texts)) < SHORT_TEXT * len(texts):
            return [self._encoding.encode_ordinary(text) for text in texts]
        return self._encoding.encode_ordinary_batch(texts, num_threads=num_threads or min(8, os.cpu_count() or 1))

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of `ids`. A special token gives its name. A character may be cut at either end."""
        ids = [int(i) for i in ids]
        for i in ids:
            if not 0 <= i < self.vocab_size:
                raise ValueError(f"ids: got {i}, expected ids from 0 to {self.vocab_size - 1}")
        return b"".join(map(self._bytes.__getitem__, ids))

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`. Bytes that are not UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def token_bytes(self) -> np.ndarray:
        """The number of bytes of each id, (V,) int32, 0 for special tokens.

        Bits per byte divide the loss by these, so that models with different vocabularies are comparable.
        """
        lengths = np.fromiter(map(len, self._bytes), np.int32, self.vocab_size)
        lengths[self._n_ordinary :] = 0
        return lengths

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json and meta.json to a folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        about = {name: getattr(self, name) for name in DERIVED_META} | self.meta
        # meta.json last: `load` compares its fingerprint with that of the other file.
        for name, content in (("tokenizer.json", self._to_json()), ("meta.json", about)):
            atomic_write(folder / name, json.dumps(content, ensure_ascii=False, indent=1) + "\n")

    @classmethod
    def load(cls, folder: str | Path) -> "Tokenizer":
        """Read a tokenizer that `save` wrote. Raises ValueError naming the missing or damaged file."""
        path = Path(folder) / "tokenizer.json"
        if not path.is_file():
            raise ValueError(
                f"tokenizer: got {folder}, which has no tokenizer.json; train one with `python -m scripts.tok_train`"
            )
        try:
            content = read_json(path)
            vocab = content["model"]["vocab"]
            tokens = _by_id(vocab)
            special = {entry["content"]: entry["id"] for entry in content["added_tokens"]}
            pattern = content["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"]
            ids = sorted(vocab.values()) + sorted(special.values())
            if ids != list(range(len(ids))) or BOS not in special:
                raise ValueError(f"ids are not 0 to {len(ids) - 1}, or {BOS} is missing")
            if pattern != SPLIT_PATTERN:  # a foreign pattern may never end
                raise ValueError("its split pattern is not ours")
        except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
            reason = f"{type(error).__name__} {first_line(error)}"
            raise ValueError(f"tokenizer: {path} is not one that scripts.tok_train wrote ({reason})") from error
        meta_path = path.with_name("meta.json")
        meta = read_json(meta_path) if meta_path.exists() else {}
        meta_only = {name: value for name, value in meta.items() if name not in DERIVED_META}
        tokenizer = cls(tokens, special, meta=meta_only)
        if meta.get("fingerprint", tokenizer.fingerprint) != tokenizer.fingerprint:
            raise ValueError(f"tokenizer: {meta_path} was written for another tokenizer.json than the one next to it")
        return tokenizer

    def to_hf(self) -> tokenizers.Tokenizer:
        """This tokenizer as an object of `tokenizers`. Special tokens in text are ordinary text for it, too."""
        hf = tokenizers.Tokenizer.from_str(json.dumps(self._to_json()))
        hf.encode_special_tokens = True  # a setting of the object that the file cannot hold
        return hf

    def _to_json(self) -> dict:
        content = json.loads(_empty_hf().to_str())
        alphabet = byte_alphabet()
        printed = ["".join(alphabet[byte] for byte in token) for token in self._bytes[: self._n_ordinary]]
        content["model"]["vocab"] = {token: i for i, token in enumerate(printed)}
        content["model"]["merges"] = list(_all_merges(printed))
        content["model"]["ignore_merges"] = True
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        content["added_tokens"] = [{"id": i, "content": name, **flags} for name, i in self.special_tokens.items()]
        return content


def _by_id(vocab: Mapping[str, int]) -> list[bytes]:
    """The bytes of every token of a vocabulary in the byte alphabet, in the order of their ids."""
    to_byte = {char: byte for byte, char in enumerate(byte_alphabet())}
    return [bytes(to_byte[char] for char in token) for token in sorted(vocab, key=vocab.__getitem__)]


def _empty_hf() -> tokenizers.Tokenizer:
    hf = tokenizers.Tokenizer(models.BPE())
    split = pre_tokenizers.Split(tokenizers.Regex(SPLIT_PATTERN), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    hf.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    hf.decoder = decoders.ByteLevel()
    return hf


def _all_merges(tokens: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Every pair of tokens whose concatenation is a token, in the order of these tokens, so that earlier merges win."""
    known = set(tokens)
    for token in tokens:
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in known and right in known:
                yield left, right
