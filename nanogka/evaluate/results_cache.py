"""Predictions kept on disk, so that an evaluation that was stopped goes on and a repeated one costs nothing.

    cache = ResultsCache(folder, {"weights": sha256, "tokenizer": fingerprint, …}, rank)

A cache holds chunks of predictions under two keys: the settings that all tasks share (weights, tokenizer, dtype, …:
they name the folder) and a task's own (its items, examples, format). Nothing is found if either differs, so that a
result is never taken for another's.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from nanogka.evaluate.scores import Prediction
from nanogka.evaluate.task import TaskData
from nanogka.files import annotate_oserror, atomic_write

# Raised when the same inputs would give other predictions, or the lines are written otherwise.
FORMAT = 3
DIGEST_LENGTH = 16


def fingerprint(value: object) -> str:
    """sha256 (hex) of a JSON value."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def task_key(data: TaskData, count: int) -> str:
    """A fingerprint of all that the predictions of `count` of a task's items depend on, apart from the model."""
    task = data.task
    lines = [data.line(index) for index in range(len(data.items))]
    return fingerprint([task.name, task.type, task.shots, task.delimiter, count, lines, list(data.items)])


class ResultsCache:
    """Chunks of predictions in `folder`/<key of `settings`>, a line each with its checksum, a file for each rank.

    All files are read at the start, whichever rank and however many wrote them, unless `anew`; of two lines about the
    same chunk the last counts.

    Attributes:
        folder: where this evaluation's files are.
        reused: chunks found so far.
        damaged: lines that are not as they were written, passed over; one cut short by the end of a process is not.
    """

    def __init__(self, folder: Path, settings: Mapping[str, object], rank: int = 0, anew: bool = False) -> None:
        settings = {"format": FORMAT, **settings}
        self.folder = folder / fingerprint(settings)[:16]
        self.reused = self.damaged = 0
        self._done: dict[tuple[str, int], tuple[list[Prediction], float]] = {}
        self.folder.mkdir(parents=True, exist_ok=True)
        if rank == 0:
            atomic_write(self.folder / "settings.json", json.dumps(settings, indent=1) + "\n")
        for file in () if anew else sorted(self.folder.glob("rank*.jsonl")):
            self._read(file)
        self._file = _open_to_append(self.folder / f"rank{rank}.jsonl")

    def find(self, key: str, first: int) -> tuple[list[Prediction], float] | None:
        """The predictions of the chunk of task `key` that begins at item `first`, and the seconds they took."""
        found = self._done.get((key, first))
        self.reused += found is not None
        return found

    def add(self, key: str, first: int, predictions: Sequence[Prediction], seconds: float) -> None:
        """Keep a chunk, at once safe from the end of this process."""
        chunk = {"task": key, "first": first, "seconds": seconds}
        text = json.dumps(chunk | {"predictions": [asdict(prediction) for prediction in predictions]})
        with annotate_oserror(Path(self._file.name)):
            self._file.write(f"{self._digest(text)} {text}\n".encode())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _read(self, file: Path) -> None:
        lines = file.read_text(encoding="utf-8", errors="replace").split("\n")
        for number, line in enumerate(lines, 1):
            digest, _, text = line.partition(" ")
            if digest == self._digest(text):
                chunk = json.loads(text)
                predictions = [Prediction(**prediction) for prediction in chunk["predictions"]]
                self._done[chunk["task"], chunk["first"]] = predictions, chunk["seconds"]
            elif number < len(lines):
                self.damaged += 1

    def _digest(self, text: str) -> str:
        """Of a line in this folder: one that was moved here from another evaluation's does not fit."""
        return hashlib.sha256(f"{self.folder.name} {text}".encode()).hexdigest()[:DIGEST_LENGTH]


def _open_to_append(file: Path):
    """The file, truncated after its last whole line if a killed process left part of one."""
    if file.is_file() and (content := file.read_bytes()) and not content.endswith(b"\n"):
        file.write_bytes(content[: content.rfind(b"\n") + 1])
    return file.open("ab", buffering=0)
