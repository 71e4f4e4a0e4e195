"""Fetches FineWeb-Edu, shuffled and in nanochat's format, from the Hugging Face hub.

    python -m nanogka.data.fineweb -n 240             240 training shards and the validation shard
    python -m nanogka.data.fineweb -n 240 --verify    reads all of them again and re-fetches what is damaged

A shard is about 250 million characters, 50 million tokens, 100 MB. The validation shard is the repository's last one,
fetched first and pinned by name in the folder's corpus.json, which also keeps the size and sha256 of what was verified:
a second call starts where the first one ended, without a network if nothing is left to do.
"""

import argparse
import math
import shutil
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock, Timeout
from tqdm import tqdm

from nanogka.cli import add_flags, flag, from_flags
from nanogka.data.corpus import fineweb_folder
from nanogka.data.hub import (
    DiskError,
    FetchError,
    HubDataset,
    RemoteFile,
    StoppedError,
    UnreachableError,
    quiet_hub,
    sha256_of,
)
from nanogka.data.marker import read_marker, write_marker
from nanogka.cli import run_script
from nanogka.problems import Problems

REPO = "karpathy/fineweb-edu-100b-shuffle"
TRAINING_SHARDS = 1822
VALIDATION = f"shard_{TRAINING_SHARDS:05d}.parquet"  # the repository's last
LOCK = ".fetch.lock"  # held by the process that fetches into a folder

# A shard holds about 250 million characters, and the tokenizer makes a token of about 4.8 of them.
TOKENS_A_SHARD = 50_000_000
SHARD_BYTES = 100_000_000
TOKENIZER_SHARDS = 8  # what the tokenizer is trained on


@dataclass(frozen=True)
class FetchSettings:
    """What to fetch and how; each field is a flag."""

    shards: int | None = flag(None, f"training shards wanted, 1 to {TRAINING_SHARDS}; validation is one more")
    out: str = flag("", "folder (default: NANOGKA_BASE_DIR/corpora/fineweb-edu)")
    verify: bool = flag(False, "read every shard on the disk again, and re-fetch what is damaged")
    order: str = flag("", "numbers of training shards to fetch first, with commas, the most wanted first")
    workers: int = flag(4, "downloads at the same time")
    retries: int = flag(5, "further attempts after one that brought nothing, with growing pauses")
    endpoint: str = flag("", "address of the hub or a mirror (default: HF_ENDPOINT, or the public hub)")

    @property
    def folder(self) -> Path:
        return Path(self.out).expanduser() if self.out else fineweb_folder()


def shard_names(n: int, order: Iterable[int] = ()) -> list[str]:
    """The validation shard, then the first `n` training shards, those in `order` before the others."""
    return [VALIDATION, *(f"shard_{i:05d}.parquet" for i in dict.fromkeys((*order, *range(n))) if i < n)]


def shards_needed(tokens: int) -> int:
    """Training shards that hold `tokens`, with a tenth to spare, and that suffice for the tokenizer."""
    return min(TRAINING_SHARDS, max(TOKENIZER_SHARDS, math.ceil(1.1 * tokens / TOKENS_A_SHARD)))


@dataclass
class Outcome:
    """How a fetch ended: shards that are there and verified, and what is wrong with the others."""

    wanted: list[str]
    ok: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    fetched: int = 0

    @property
    def complete(self) -> bool:
        return len(self.ok) == len(self.wanted)


class Fetch:
    """One call's work on one folder; `run` does it all."""

    def __init__(
        self,
        hub: HubDataset,
        folder: Path,
        names: list[str],
        *,
        verify: bool = False,
        workers: int = 4,
        say: Callable[[str], None] = print,
    ) -> None:
        """`names`: the validation shard first."""
        self.hub, self.folder, self.verify, self.workers, self.say = hub, folder, verify, workers, say
        self.outcome = Outcome(names)
        self.bar: tqdm | None = None
        marker = read_marker(folder) or {}
        self.known: dict[str, dict] = dict(marker.get("files", {}))
        self.described: dict[str, dict] = dict(marker.get("described", {}))
        self.revision = marker.get("revision")
        self._lock = threading.Lock()

    def run(self) -> Outcome:
        """Fetches what is missing; what could not be fetched is in the outcome, not raised."""
        try:
            missing = self._missing()
            if not missing:
                return self.outcome
            remote = self.hub.describe(missing)
            self.revision = self.hub.revision
            self.described.update({file.name: _identity(file) for file in remote.values()})
            self._note()  # now: who waits for the shards knows by it what will come
            for name in missing:
                if name not in remote:
                    self.outcome.problems.append(f"{name}: {self.hub.repo} has no such file")
            files = self._adopt([remote[name] for name in missing if name in remote])
            self._check_space(files)
            with quiet_hub(), self._progress(files):
                self._download(files)
        except FetchError as error:
            self.outcome.problems.append(str(error))
        return self.outcome

    def _missing(self) -> list[str]:
        """The wanted shards that are not on the disk as they were verified; fills in `outcome.ok`."""
        there = [
            name
            for name in self.outcome.wanted
            if name in self.known and _size(self.folder / name) == self.known[name]["size"]
        ]
        if self.verify:
            good = self._each(there, lambda name: self._holds(name, self.known[name]["sha256"]), "verify")
            for name, same in zip(there, good):
                if not same:
                    self.say(f"{name}: damaged, its content has changed since it was verified")
                    del self.known[name]
            if not all(good):
                self._note()  # now, so that a later call without --verify knows as well
            there = [name for name, same in zip(there, good) if same]
        self.outcome.ok.update(there)
        return [name for name in self.outcome.wanted if name not in self.outcome.ok]

    def _adopt(self, files: list[RemoteFile]) -> list[RemoteFile]:
        """Those of `files` that must be downloaded: not the ones on the disk already, whoever put them there."""
        whole = [file for file in files if _size(self.folder / file.name) == file.size]
        good = self._each(whole, lambda file: self._holds(file.name, file.sha256), "check")
        for file in (file for file, same in zip(whole, good) if same):
            self._accept(file)
        return [file for file in files if file.name not in self.outcome.ok]

    def _holds(self, name: str, sha256: str) -> bool:
        """Whether a shard on the disk has this content; one that cannot be read has not."""
        try:
            return sha256_of(self.folder / name) == sha256
        except DiskError:
            return False

    def _check_space(self, files: list[RemoteFile]) -> None:
        """Better no download than one that the disk cannot hold. Raises DiskError."""
        here = sum(min(file.size, sum(_size(p) for p in _partials(self.folder, file))) for file in files)
        needed, free = sum(file.size for file in files) - here, shutil.disk_usage(self.folder).free
        if needed > free:
            raise DiskError(f"{self.folder}: {needed / 1e9:.1f} GB to fetch and {free / 1e9:.1f} GB free")

    def _download(self, files: list[RemoteFile]) -> None:
        # Alone and first: without the validation shard no other is of use.
        if files and files[0].name == VALIDATION:
            self._one(files[0])
        self._each([file for file in files if file.name != VALIDATION], self._one)

    def _one(self, file: RemoteFile) -> None:
        """Downloads one file, and notes how that ended; what stops this one may stop all."""
        if self.hub.stop.is_set():
            return
        try:
            self.hub.download(file, self.folder, self._advance)
            self._accept(file)
            with self._lock:
                self.outcome.fetched += 1
            if self.bar is None or self.bar.disable:
                so_far = f"{len(self.outcome.ok)} of {len(self.outcome.wanted)}"
                self.say(f"{file.name}: {file.size / 1e6:,.1f} MB, {so_far}")
        except StoppedError:
            pass
        except FetchError as error:
            with self._lock:
                self.outcome.problems.append(str(error))
            if isinstance(error, (DiskError, UnreachableError)):
                self.hub.stop.set()

    def _accept(self, file: RemoteFile) -> None:
        """`file` is on the disk and verified."""
        with self._lock:
            self.known[file.name] = _identity(file)
            self.outcome.ok.add(file.name)
            self._note()

    def _note(self) -> None:
        source = f"{self.hub.endpoint}/datasets/{self.hub.repo}"
        lists = {"files": dict(sorted(self.known.items())), "described": dict(sorted(self.described.items()))}
        try:
            write_marker(self.folder, validation=VALIDATION, source=source, revision=self.revision, **lists)
        except OSError as error:
            raise DiskError(f"{self.folder}: corpus.json cannot be written ({error.strerror or error})") from error

    def _each(self, items: Iterable, action: Callable, what: str = "") -> list:
        """`action` of each item, by the workers; an interrupt stops them after their present block."""
        items = list(items)
        with ThreadPoolExecutor(self.workers) as pool:
            try:
                done = pool.map(action, items)
                return list(tqdm(done, what, len(items), disable=None, unit="shard") if what and items else done)
            except BaseException:
                self.hub.stop.set()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _progress(self, files: list[RemoteFile]):
        if not files:
            return nullcontext()
        total = sum(file.size for file in files)
        self.bar = tqdm(total=total, desc="fetch", unit="B", unit_scale=True, disable=None, smoothing=0.05)
        return self.bar

    def _advance(self, n: int) -> None:
        with self._lock:
            self.bar.update(n)


def fetch(settings: FetchSettings, hub: HubDataset, say: Callable[[str], None] = print) -> Outcome:
    """Fetches into `settings.folder`, alone: a second process waits until the first has ended.

    Raises:
        OSError: if the folder cannot be made. ValueError: if its corpus.json cannot be read.
    """
    folder = settings.folder
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"another process is fetching into {folder}: waiting for it")
        lock.acquire()
    try:
        names = shard_names(settings.shards, _numbers(settings.order))
        return Fetch(hub, folder, names, verify=settings.verify, workers=settings.workers, say=say).run()
    finally:
        lock.release()


def check(settings: FetchSettings, problems: Problems) -> None:
    """Records every setting out of range (one that is no number was recorded before)."""
    if not any(line.startswith("--shards") for line in problems.lines):
        wanted = settings.shards is not None and 1 <= settings.shards <= TRAINING_SHARDS
        problems.check(wanted, "-n", settings.shards, f"an integer from 1 to {TRAINING_SHARDS}")
    ordered = _numbers(settings.order) is not None
    problems.check(ordered, "--order", settings.order, "numbers of shards with commas, such as 17,3,40")
    problems.check(settings.workers >= 1, "--workers", settings.workers, "an integer of at least 1")
    problems.check(settings.retries >= 0, "--retries", settings.retries, "an integer of at least 0")
    web = not settings.endpoint or settings.endpoint.startswith(("http://", "https://"))
    problems.check(web, "--endpoint", settings.endpoint, "an address that begins with http:// or https://")
    blocked = next((p for p in (settings.folder, *settings.folder.parents) if p.exists()), None)
    problems.check(blocked is None or blocked.is_dir(), "--out", str(settings.folder), "a folder, not a file")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(
        prog="fineweb", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("-n", dest="shards", metavar="INT", help="the same as --shards")
    add_flags(p, FetchSettings)
    return p


def run(args: argparse.Namespace) -> int:
    """Checks the arguments, fetches, prints; returns the exit code."""
    problems = Problems()
    settings = from_flags(FetchSettings, args, problems)
    check(settings, problems)
    problems.raise_any()
    hub = HubDataset(REPO, endpoint=settings.endpoint or None, retries=settings.retries)
    outcome = fetch(settings, hub, lambda line: print(line, flush=True))
    for line in outcome.problems:
        print(f"fineweb: {line}", file=sys.stderr)
    print(f"{len(outcome.ok)} of {len(outcome.wanted)} ok ({outcome.fetched} fetched now) in {settings.folder}")
    return 0 if outcome.complete else 1


def main(argv: list[str] | None = None) -> int:
    """Runs the script; returns the exit code."""
    args = parser().parse_args(argv)
    return run_script(lambda: run(args), "fineweb")


def _numbers(text: str) -> list[int] | None:
    """The numbers in a text such as 17,3,40; None if it is none."""
    words = [word.strip() for word in text.split(",")] if text else []
    return list(map(int, words)) if all(word.isdecimal() for word in words) else None


def _identity(file: RemoteFile) -> dict:
    return {"size": file.size, "sha256": file.sha256}


def _partials(folder: Path, file: RemoteFile) -> list[Path]:
    return list(folder.glob(f".{file.name}.{file.sha256[:12]}.partial"))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


if __name__ == "__main__":
    sys.exit(main())
