"""A corpus of the user's own `.txt` and `.jsonl` files.

A line of a `.jsonl` file is one document: an object with the text under `text`. A `.txt` file is one document if it is
small; a bigger one is cut at blank lines (at line ends or between characters where there are none). The files are
scanned when the corpus is opened; 24 bytes per document stay in memory. About 5 % of the documents are validation,
chosen by a hash of their text: adding a file moves none of the others.
"""

import codecs
import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from nanogka.data.corpus import Blocks, Corpus, document_or_none
from nanogka.data.order import hash_text
from nanogka.tokenizer import check_text

DOCUMENT_BYTES = 8192  # a longer .txt is cut at the first blank line beyond this
LONGEST_BYTES = 4 * DOCUMENT_BYTES  # … or here, if there is no blank line
VAL_SHARE = 0.05
BLOCK_ROWS = 256


class TextCorpus(Corpus):
    SUFFIXES = (".txt", ".jsonl")

    def __init__(self, path: str | Path, files: Sequence[Path]) -> None:
        self.path = Path(path)
        self.files = sorted(files, key=lambda file: file.name)
        self.skipped = 0
        places, hashes = [], []
        for number, file in enumerate(self.files):
            cut = _cut_jsonl if file.suffix == ".jsonl" else _cut_txt
            for start, data in cut(file):
                text = _text_of(file, start, data)
                if text is None:
                    self.skipped += 1
                    continue
                places.append((number, start, len(data)))
                hashes.append(hash_text(text))
        if len(set(hashes)) < 2:
            raise ValueError(
                f"--data: got {str(self.path)!r} with {len(set(hashes))} documents, expected two different ones,"
                f" since one is validation (a .txt is cut into documents of about {DOCUMENT_BYTES // 1024} KB)"
            )
        hashes, places = np.array(hashes, np.uint64), np.array(places, np.int64)
        is_val = choose_validation(hashes)
        # Documents of one file are alike: taking them in order of hash mixes the files before any loader shuffles.
        order = np.argsort(hashes[~is_val], kind="stable")
        # per document: number of its file, byte offset, length in bytes
        self._places = {"train": places[~is_val][order], "val": places[is_val]}
        digest = hashlib.sha256(np.sort(hashes).tobytes())
        for file in self.files:
            digest.update(f"{file.name}\0{file.stat().st_size}\n".encode())
        self.fingerprint = digest.hexdigest()

    def blocks(self, split: str) -> Blocks:
        n = len(self._places[split])
        starts = np.arange(0, n, BLOCK_ROWS)
        return Blocks(np.minimum(n - starts, BLOCK_ROWS), np.zeros(len(starts), np.int64))

    def read(self, split: str, block: int, rows: Sequence[int] | None = None) -> list[str | None]:
        places = self._places[split][block * BLOCK_ROWS : (block + 1) * BLOCK_ROWS]
        if rows is not None:
            places = places[np.asarray(rows, np.int64)]
        texts: list[str | None] = [None] * len(places)
        for number in np.unique(places[:, 0]):
            file = self.files[number]
            with open(file, "rb") as opened:
                for i in np.flatnonzero(places[:, 0] == number):
                    _, start, length = map(int, places[i])
                    opened.seek(start)
                    texts[i] = _text_of(file, start, opened.read(length))
        return texts

    def locate(self, split: str, document: int) -> str:
        number, start, length = map(int, self._places[split][document])
        return f"{self.files[number].name}, bytes {start} to {start + length}"

    def describe(self) -> str:
        size = sum(file.stat().st_size for file in self.files)
        skipped = f", {self.skipped} without text skipped" if self.skipped else ""
        return (
            f"{self.path}: {len(self.files)} text files ({size / 1e6:,.1f} MB), {len(self._places['train']):,} training"
            f" documents, {len(self._places['val']):,} validation documents{skipped}"
        )


def choose_validation(hashes: np.ndarray) -> np.ndarray:
    """The mask (N,) bool of the validation documents, by their hashes (N,) uint64 alone: equal ones stay together."""
    is_val = hashes < np.uint64(int(VAL_SHARE * 2**64))
    if not is_val.any():
        is_val = hashes == hashes.min()
    if is_val.all():
        is_val = hashes != hashes.max()
    return is_val


def _text_of(file: Path, start: int, data: bytes) -> str | None:
    """The text of a document, None if it is blank."""
    if file.suffix == ".jsonl":
        return _json_text(file, start, data)
    try:
        return document_or_none(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        at = error.start
        raise ValueError(f"{file}: byte {start + at} (0x{data[at]:02x}) is not UTF-8; save the file as UTF-8") from None


def _json_text(file: Path, start: int, data: bytes) -> str | None:
    try:
        value = parse_json_line(data)
        if isinstance(value, dict) and isinstance(value.get("text"), str):
            return document_or_none(check_text(value["text"]))
        problem = 'expected an object such as {"text": "..."}'
    except ValueError as error:
        problem = f"is not valid JSON ({error})"
    raise ValueError(f"{file}: line {_line_number(file, start)} {problem}; it begins {data[:60]!r}")


def parse_json_line(data: bytes) -> object:
    """The JSON value in a line of UTF-8, with or without a byte order mark; ValueError without the line's place."""
    try:
        return json.loads(data.decode("utf-8-sig").rstrip("\r\n"))
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at column {error.colno}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _line_number(file: Path, start: int) -> int:
    with open(file, "rb") as opened:
        chunks = iter(lambda: opened.read(min(1 << 20, start - opened.tell())), b"")
        return 1 + sum(chunk.count(b"\n") for chunk in chunks)


def _cut_jsonl(file: Path) -> Iterator[tuple[int, bytes]]:
    """(byte offset, bytes) of every line."""
    with open(file, "rb") as opened:
        start = 0
        for line in opened:
            yield start, line
            start += len(line)


def _cut_txt(file: Path) -> Iterator[tuple[int, bytes]]:
    """(byte offset, bytes) of every document of a text file, cut between characters."""
    with open(file, "rb") as opened:
        start, data = 3, b""
        if opened.read(3) != b"\xef\xbb\xbf":  # a byte order mark
            start = opened.seek(0)
        # readline has a limit, so that a file without line ends is never in memory as a whole.
        while line := opened.readline(DOCUMENT_BYTES):
            data += line
            if (len(data) >= DOCUMENT_BYTES and not line.strip()) or len(data) >= LONGEST_BYTES:
                whole = len(data) - _incomplete_tail(data)
                yield start, data[:whole]
                start += whole
                data = data[whole:]
        if data:
            yield start, data


def _incomplete_tail(data: bytes) -> int:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(data)
    return len(decoder.getstate()[0])  # the bytes that it keeps until it sees the rest
