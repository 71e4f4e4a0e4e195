"""What an evaluation has done so far, on disk, so that one that was stopped goes on and a repeated one costs nothing.

    journal = Journal(folder, {"weights": sha256, "tokenizer": fingerprint, …}, rank)

A journal holds chunks of predictions under two keys: the settings that all share (which weights, tokenizer, dtype, …:
they name the folder) and a task's own (its items, examples, format). Where either differs nothing is found, so that a
result is never taken for another's.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from nanogka.evaluate.in_context import Prediction
from nanogka.evaluate.task import TaskData

# Raised when the same inputs would give other predictions.
FORMAT = 1


def fingerprint(value: object) -> str:
    """sha256 (hex) of a JSON value."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def task_key(data: TaskData, count: int) -> str:
    """What the predictions of `count` of a task's items depend on, apart from the model."""
    task = data.task
    lines = [data.line(index) for index in range(len(data.items))]
    return fingerprint([task.name, task.type, task.shots, task.delimiter, count, lines, list(data.items)])


class Journal:
    """Chunks of predictions in `folder`/<key of `settings`>, one JSON object a line, a file for each rank.

    All files are read at the start, whichever rank and however many wrote them, unless `anew`; of two lines about the
    same chunk the last counts. A line cut short is passed over.

    Attributes:
        folder: where this evaluation's files are.
        reused: chunks found so far.
    """

    def __init__(self, folder: Path, settings: Mapping[str, object], rank: int = 0, anew: bool = False) -> None:
        settings = {"format": FORMAT, **settings}
        self.folder = folder / fingerprint(settings)[:16]
        self.reused = 0
        self._done: dict[tuple[str, int], tuple[list[Prediction], float]] = {}
        self.folder.mkdir(parents=True, exist_ok=True)
        if rank == 0:
            (self.folder / "settings.json").write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
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
        line = {"task": key, "first": first, "seconds": seconds}
        line["predictions"] = [asdict(prediction) for prediction in predictions]
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _read(self, file: Path) -> None:
        for line in file.read_text(encoding="utf-8", errors="replace").split("\n"):
            try:
                chunk = json.loads(line)
                predictions = [Prediction(**prediction) for prediction in chunk["predictions"]]
                self._done[chunk["task"], chunk["first"]] = predictions, chunk["seconds"]
            except (ValueError, KeyError, TypeError):
                continue  # the last line of a process that was killed


def _open_to_append(file: Path):
    """The file, at the start of a line even where a killed process left half of one."""
    cut_short = file.is_file() and not file.read_bytes().endswith(b"\n") and file.stat().st_size > 0
    opened = file.open("a", encoding="utf-8")
    if cut_short:
        opened.write("\n")
    return opened
