"""FineWeb-Edu while it is being fetched: the plan is fixed, its shards arrive.

    corpus = open_arriving(folder, shards=62, order=permutation(62, seed, 0).tolist())

A process of its own fetches what is missing (`nanogka.data.fineweb`), and the loader waits for a shard when its turn
comes. Order of documents, names of rows and fingerprint follow from the planned shards alone, whichever are there.
"""

import atexit
import hashlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout

from nanogka.data.corpus import check_split
from nanogka.data.fineweb import LOCK, VALIDATION, shard_names
from nanogka.data.layout import Layout
from nanogka.data.marker import read_marker
from nanogka.data.parquet import ParquetCorpus, row_groups

POLL = 0.2
GRACE = 300.0  # seconds without anybody fetching before that counts as the end: a fetch takes a while to start
LOG = "fetch.log"
# A block is named by shard and row group, a row by block and place; so neither depends on other shards.
GROUPS, ROWS = 1 << 20, 1 << 24


class ArrivingCorpus(ParquetCorpus):
    """The validation shard and the first `shards` training shards of FineWeb-Edu; of the latter any may be missing.

    Args:
        folder: where they arrive; its corpus.json must describe all of them, and the validation shard be there.
        shards: training shards planned.
        fetch: who fetches them.
    """

    def __init__(self, folder: Path, shards: int, fetch: "BackgroundFetch | ForeignFetch") -> None:
        self.path, self.fetch, self.planned = folder, fetch, shards
        validation, *training = shard_names(shards)
        self.shards = [folder / name for name in (*training, validation)]
        self._prepare_reading()
        self._rows: dict[int, np.ndarray] = {}
        described, digest = _described(folder), hashlib.sha256()
        for name in (*training, validation):
            digest.update(f"{name}\0{described[name]['size']}\0{described[name]['sha256']}\n".encode())
        self.fingerprint = digest.hexdigest()

    def layout(self, split: str) -> Layout:
        train = check_split(split) == "train"
        return _ArrivingLayout(self, range(self.planned) if train else range(self.planned, self.planned + 1))

    def blocks(self, split: str) -> tuple[np.ndarray, np.ndarray]:
        raise ValueError(f"--data: got {str(self.path)!r} while its shards arrive; takes them one by one (layout)")

    def is_there(self, shard: int) -> bool:
        """Whether a shard has arrived and was verified. Raises ValueError if it will not come."""
        file = self.shards[shard]
        if shard in self._rows or _is_there(self.path, file.name):
            return True
        reason = self.fetch.over()
        if reason is None or _is_there(self.path, file.name):  # it may have come before the end
            return reason is not None
        raise ValueError(
            f"--data: {file.name} is missing in {self.path}, and nobody is fetching it any more ({reason}); when that"
            " is mended, the same command with --resume auto goes on"
        )

    def rows(self, shard: int) -> np.ndarray:
        """Rows in each row group of a shard that is there."""
        if shard not in self._rows:
            rows = np.array(row_groups(self.shards[shard]), np.int64)
            if len(rows) > GROUPS or rows.max(initial=0) > ROWS:
                raise ValueError(f"{self.shards[shard]}: takes at most {GROUPS:,} row groups of {ROWS:,} rows")
            self._rows[shard] = rows
        return self._rows[shard]

    def describe(self) -> str:
        there = sum(_is_there(self.path, file.name) for file in self.shards[:-1])
        rest = "" if there == self.planned else f", {there} of them there, the rest being fetched ({self.path / LOG})"
        return f"{self.path}: {self.planned} training shards{rest}; validation {VALIDATION}"

    def close(self) -> None:
        self.fetch.close()

    def _place(self, split: str, block: int) -> tuple[int, int]:
        return divmod(block, GROUPS)

    def _block_and_row(self, split: str, document: int) -> tuple[int, int]:
        return divmod(document, ROWS)


class _ArrivingLayout(Layout):
    """Some of the shards of an `ArrivingCorpus`."""

    def __init__(self, corpus: ArrivingCorpus, shards: range) -> None:
        self.corpus, self.shards, self.rows = corpus, np.array(shards, np.int64), None

    def ready(self, shard: int) -> bool:
        return self.corpus.is_there(shard)

    def name(self, shard: int) -> str:
        return f"{self.corpus.shards[shard].name} to arrive in {self.corpus.path}"

    def blocks(self, shard: int) -> tuple[np.ndarray, np.ndarray]:
        rows = self.corpus.rows(shard)
        return shard * GROUPS + np.arange(len(rows), dtype=np.int64), rows

    def first_row(self, block: int) -> int:
        return block * ROWS

    def block_of(self, row: int) -> tuple[int, int]:
        return row // ROWS, row // ROWS // GROUPS


def open_arriving(folder: Path, shards: int, order: Sequence[int], fetches: bool = True) -> ArrivingCorpus:
    """Open the corpus while it arrives: returns as soon as it is described and the validation shard is there.

    Args:
        folder, shards: see `ArrivingCorpus`.
        order: numbers of the shards that are wanted first.
        fetches: whether this process sees to it that what is missing is fetched; else another one does.

    Raises:
        ValueError: if the fetch ends before that, with its reason.
    """
    names = shard_names(shards)
    if all(_is_there(folder, name) for name in names):
        return ArrivingCorpus(folder, shards, ForeignFetch(folder))
    fetch = BackgroundFetch(folder, shards, order) if fetches else ForeignFetch(folder)
    while not (set(names) <= set(_described(folder)) and _is_there(folder, VALIDATION)):
        if (reason := fetch.over()) is not None:
            raise ValueError(f"--data: FineWeb-Edu cannot be fetched into {folder} ({reason})")
        time.sleep(POLL)
    return ArrivingCorpus(folder, shards, fetch)


class BackgroundFetch:
    """A process that fetches; what it says goes to `fetch.log` in the folder.

    It has a session of its own, so that what is sent to the training's terminal or group does not reach it. It ends
    with the training, unless that is killed: then it comes to its own end, and a next training waits for it.
    """

    RETRIES = 12  # with growing pauses, a quarter of an hour in which training may go on with what is there

    def __init__(self, folder: Path, shards: int, order: Sequence[int]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / LOG
        words = ["-n", str(shards), "--out", str(folder), "--retries", str(self.RETRIES)]
        words += ["--order", ",".join(map(str, order))] if len(order) else []
        self.log.unlink(missing_ok=True)  # an earlier training's fetch may still be writing to it
        with open(self.log, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "nanogka.data.fineweb", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        atexit.register(self.close)

    def over(self) -> str | None:
        """None while it runs; then how it ended."""
        code = self._process.poll()
        return None if code is None else f"the fetch ended with exit code {code}: {_last_words(self.log)}"

    def close(self) -> None:
        """End it; what came of a shard is kept for the next time."""
        atexit.unregister(self.close)
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


class ForeignFetch:
    """A fetch that another process does, seen by the lock that it holds."""

    def __init__(self, folder: Path) -> None:
        self._lock, self._log = FileLock(folder / LOCK, thread_local=False), folder / LOG
        self._guard = threading.Lock()
        self._seen = time.monotonic()

    def over(self) -> str | None:
        """None while somebody fetches, or did a while ago; then what was last said."""
        with self._guard:
            try:
                with self._lock.acquire(timeout=0):
                    pass
            except Timeout:
                self._seen = time.monotonic()
            idle = time.monotonic() - self._seen
        return None if idle < GRACE else f"nobody for {idle:.0f} s: {_last_words(self._log)}"

    def close(self) -> None:
        """Nothing: the other process knows when to end."""


def _described(folder: Path) -> dict[str, dict]:
    """Size and sha256 of the shards that the hub has described so far, by name."""
    marker = read_marker(folder) or {}
    return {**marker.get("described", {}), **marker.get("files", {})}


def _is_there(folder: Path, name: str) -> bool:
    """Whether a shard was verified and still has its size."""
    known = (read_marker(folder) or {}).get("files", {}).get(name)
    try:
        return known is not None and (folder / name).stat().st_size == known["size"]
    except OSError:
        return False


def _last_words(log: Path) -> str:
    """What a fetch said was wrong, or its last line."""
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        return f"there is no {log}"
    problems = [line.removeprefix("fineweb: ") for line in lines if line.startswith("fineweb: ")]
    return "; ".join(problems[:3]) or (lines[-1] if lines else "it said nothing")
