"""A corpus of the user's own `.txt` and `.jsonl` files.

A line of a `.jsonl` file is one document: an object with the text under `text`. A `.txt` file is one document if it is
small; a bigger one is cut at blank lines (at line ends or between characters where there are none) into documents of
about 8 KB, so that a single book works. The files are scanned once when the corpus is opened; what stays in memory is
24 bytes a document, and documents are read from the files when they are needed.

About 5 % of the documents are validation, chosen by a hash of their text: adding a file moves none of the others.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from nanogka.data.corpus import Corpus, check_split, document_or_none
from nanogka.data.order import hash_text

DOCUMENT_BYTES = 8192  # a longer .txt is cut at the first blank line beyond this
LONGEST_BYTES = 4 * DOCUMENT_BYTES  # … or here, if there is no blank line
VAL_SHARE = 0.05
BLOCK_ROWS = 256


class TextCorpus(Corpus):
    """Text files; see the module. `skipped` counts the documents without text."""

    SUFFIXES = (".txt", ".jsonl")

    def __init__(self, path: str | Path, files: Sequence[Path]) -> None:
        """Scans `files`.

        Raises:
            ValueError: on a line that is no document, bytes that are no UTF-8, or fewer than two different documents.
        """
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
                f"--data: got {str(self.path)!r} with {len(set(hashes))} documents, takes at least two different ones,"
                f" since one is validation (a .txt is cut into documents of about {DOCUMENT_BYTES // 1024} KB)"
            )
        self._hashes = np.array(hashes, np.uint64)
        self._places = {}
        places, is_val = np.array(places, np.int64), choose_validation(self._hashes)
        self._places["val"] = places[is_val]
        # Documents of one file are alike: taking them in order of hash mixes the files before any loader shuffles.
        order = np.argsort(self._hashes[~is_val], kind="stable")
        self._places["train"] = places[~is_val][order]
        digest = hashlib.sha256(np.sort(self._hashes).tobytes())
        for file in self.files:
            digest.update(f"{file.name}\0{file.stat().st_size}\n".encode())
        self.fingerprint = digest.hexdigest()

    def blocks(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        n = len(self._places[check_split(split)])
        starts = np.arange(0, n, BLOCK_ROWS)
        return np.minimum(n - starts, BLOCK_ROWS), np.zeros(len(starts), np.int64)

    def read(self, split: str, block: int, rows: Sequence[int] | None = None) -> list[str | None]:
        places = self._places[check_split(split)][block * BLOCK_ROWS : (block + 1) * BLOCK_ROWS]
        chosen = range(len(places)) if rows is None else [int(row) for row in rows]
        texts: list[str | None] = [None] * len(chosen)
        by_file: dict[int, list[int]] = {}
        for i, row in enumerate(chosen):
            by_file.setdefault(int(places[row][0]), []).append(i)
        for number, indices in by_file.items():
            file = self.files[number]
            with open(file, "rb") as opened:
                for i in indices:
                    _, start, length = map(int, places[chosen[i]])
                    opened.seek(start)
                    texts[i] = _text_of(file, start, opened.read(length))
        return texts

    def locate(self, split: str, document: int) -> str:
        number, start, length = map(int, self._places[check_split(split)][document])
        return f"{self.files[number].name}, bytes {start} to {start + length}"

    def describe(self) -> str:
        size = sum(file.stat().st_size for file in self.files)
        skipped = f", {self.skipped} without text skipped" if self.skipped else ""
        return (
            f"{self.path}: {len(self.files)} text files ({size / 1e6:,.1f} MB), {len(self._places['train']):,} training"
            f" documents, {len(self._places['val']):,} validation documents{skipped}"
        )


def choose_validation(hashes: np.ndarray) -> np.ndarray:
    """Which documents are validation, (N,) bool: by their hash alone; equal documents always fall on the same side."""
    is_val = hashes < np.uint64(int(VAL_SHARE * 2**64))
    if not is_val.any():
        is_val = hashes == hashes.min()
    if is_val.all():
        is_val = hashes != hashes.max()
    return is_val


def _text_of(file: Path, start: int, data: bytes) -> str | None:
    """The text of a document, None if there is nothing in it. Raises ValueError naming file and place."""
    if file.suffix == ".jsonl":
        return _json_text(file, start, data)
    try:
        return document_or_none(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        at = error.start
        raise ValueError(f"{file}: byte {start + at} (0x{data[at]:02x}) is no UTF-8; save the file as UTF-8") from None


def _json_text(file: Path, start: int, data: bytes) -> str | None:
    """The text of one line, None if it is empty. Raises ValueError naming file and line."""
    try:
        value = json.loads(data)
        text = value["text"]
        if not isinstance(text, str):
            raise TypeError
        text.encode("utf-8")
        return document_or_none(text)
    except UnicodeDecodeError:
        problem = "is no UTF-8"
    except UnicodeEncodeError:
        problem = "has a lone surrogate in its text, which stands for no character"
    except json.JSONDecodeError as error:
        problem = f"is no JSON ({error.msg} at column {error.colno})"
    except (KeyError, TypeError):
        problem = 'takes an object such as {"text": "..."}'
    raise ValueError(f"{file}: line {_line_number(file, start)} {problem}; it begins {data[:60]!r}")


def _line_number(file: Path, start: int) -> int:
    with open(file, "rb") as opened:
        return sum(chunk.count(b"\n") for chunk in _chunks(opened, start)) + 1


def _chunks(opened, size: int) -> Iterator[bytes]:
    while size > 0 and (chunk := opened.read(min(size, 1 << 20))):
        size -= len(chunk)
        yield chunk


def _cut_jsonl(file: Path) -> Iterator[tuple[int, bytes]]:
    """(byte offset, bytes) of every line."""
    with open(file, "rb") as opened:
        start = _skip_mark(opened)
        for line in opened:
            yield start, line
            start += len(line)


def _cut_txt(file: Path) -> Iterator[tuple[int, bytes]]:
    """(byte offset, bytes) of every document of a text file, cut between characters."""
    with open(file, "rb") as opened:
        start = _skip_mark(opened)
        data = b""
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
    """How many bytes at the end belong to a character that goes on after them (0 to 3)."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if back < needed else 0
        if byte < 0x80:
            return 0
    return 0


def _skip_mark(opened) -> int:
    """Passes a UTF-8 byte order mark at the start of a file; returns the position."""
    if opened.read(3) != b"\xef\xbb\xbf":
        opened.seek(0)
    return opened.tell()
