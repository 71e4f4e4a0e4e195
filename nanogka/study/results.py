"""Finished jobs: one JSON object per line of a file, found again by all that decides the numbers in it."""

import json
import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from nanogka.cli import flags_of
from nanogka.train.settings import FREE_ON_RESUME, TrainSettings

# What a line needs, and what decides its numbers beside the settings: fingerprints of the training corpus, of the
# tokenizer and of the second validation corpus, and how many tokens of each split are measured.
NAMES = frozenset({"id", "family", "size", "settings", "val_bpb"})
PROTOCOL = ("corpus", "tokenizer", "confirm", "measure_tokens")


def decisive(settings: dict) -> dict:
    """The settings that decide the losses of a run; an absent one had today's default, None is the same as absent."""
    known = {name: one.default for name, one in flags_of(TrainSettings).items()} | settings
    return {name: value for name, value in known.items() if name not in FREE_ON_RESUME and value is not None}


class Results:
    """The finished jobs of one protocol.

    Args:
        rows: of the file; those of another protocol are left out.
        protocol: the values of `PROTOCOL`; by default those of the last row. A row without one of them fits any value.
    """

    def __init__(self, rows: Sequence[dict], protocol: dict | None = None) -> None:
        if protocol is None:
            protocol = {name: rows[-1][name] for name in PROTOCOL if name in rows[-1]} if rows else {}
        self.protocol = protocol
        self._rows: list[tuple[dict, dict]] = []
        for row in rows:
            self.add(row)
        self.others = len(rows) - len(self._rows)

    @property
    def rows(self) -> list[dict]:
        """All rows of this protocol."""
        return [row for _, row in self._rows]

    def add(self, row: dict) -> None:
        """Take a row into account if it is of this protocol."""
        if all(row.get(name, value) == value for name, value in self.protocol.items()):
            self._rows.append((decisive(row["settings"]), row))

    def find(self, settings: dict) -> dict | None:
        """The row of a run with these settings, the last one of several."""
        return next((row for known, row in reversed(self._rows) if known == settings), None)


def read_results(path: Path, names: Collection[str] = NAMES) -> list[dict]:
    """The lines of a results file that have all of `names`.

    Damaged lines, such as one that a crash cut short, are left out and counted on stderr.
    """
    rows, damaged = [], 0
    for line in path.read_bytes().splitlines() if path.is_file() else []:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict) and set(names) <= set(row) and isinstance(row.get("settings", {}), dict):
            rows.append(row)
        else:
            damaged += 1
    if damaged:
        print(f"{path}: {damaged} damaged lines left out", file=sys.stderr)
    return rows


def append_line(path: Path, content: dict) -> None:
    """Append one JSON object as a line, in one write that is on the disk before this returns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    cut = path.is_file() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
    line = ("\n" if cut else "") + json.dumps(content, allow_nan=False) + "\n"
    with path.open("ab", buffering=0) as file:
        file.write(line.encode())
        os.fsync(file.fileno())
