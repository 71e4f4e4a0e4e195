"""Fetches FineWeb-Edu, shuffled and in nanochat's format, from the Hugging Face hub.

    python -m nanogka.data.fineweb -n 240             240 training shards and the validation shard
    python -m nanogka.data.fineweb -n 240 --verify    reads all of them again and re-fetches what is damaged

A shard is about 250 million characters, 50 million tokens, 100 MB. Each is downloaded aside, compared with the sha256
that the hub states, and only then given its name. The validation shard is the repository's last one; the folder's
manifest names it, and records size and sha256 of every verified shard: a second call fetches only what is missing, and
needs no network if nothing is.
"""

import errno
import math
import os
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from tqdm import tqdm

from nanogka.cli import flag, run
from nanogka.data.corpus import ParquetCorpus, fineweb_folder, first_line, read_manifest, write_manifest
from nanogka.data.hashes import sha256_of
from nanogka.problems import Problems

REPO = "karpathy/fineweb-edu-100b-shuffle"
TRAINING_SHARDS = 1822
VALIDATION = f"shard_{TRAINING_SHARDS:05d}.parquet"  # the repository's last

# A shard holds about 250 million characters, and the tokenizer makes a token of about 4.8 of them.
TOKENS_PER_SHARD = 50_000_000
TOKENIZER_SHARDS = 8  # for training the tokenizer

WORKERS = 4  # downloads at the same time
RETRIES = 5  # further attempts after a failure, with pauses that double from PAUSE seconds on
PAUSE = 1.0
LOCK = ".fetch.lock"  # held by the process that fetches into a folder
DOWNLOADS = ".fetch"  # where files are until they are verified
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}


class FetchError(OSError):
    """Shards could not be fetched; the text names each, with the reason, on a line of its own."""


def shard_names(n: int) -> list[str]:
    """The validation shard, then the first `n` training shards."""
    return [VALIDATION, *(f"shard_{i:05d}.parquet" for i in range(n))]


def shards_needed(tokens: int) -> int:
    """The number of training shards that hold `tokens`, with a tenth to spare, and suffice for the tokenizer."""
    return min(TRAINING_SHARDS, max(TOKENIZER_SHARDS, math.ceil(1.1 * tokens / TOKENS_PER_SHARD)))


def open_fineweb(shards: int, folder: Path | None = None) -> ParquetCorpus:
    """The corpus of the first `shards` training shards, whichever others have been fetched as well.

    Raises:
        ValueError: if one is missing or damaged.
    """
    folder = folder or fineweb_folder()
    return ParquetCorpus(folder, [folder / name for name in shard_names(shards)])


def fetch_fineweb(
    shards: int,
    folder: Path | None = None,
    *,
    workers: int = WORKERS,
    endpoint: str = "",
    verify: bool = False,
    say: Callable[[str], None] = print,
) -> int:
    """Fetch what is missing of the first `shards` training shards and the validation shard.

    Several processes may call this at once: one fetches, the others wait and then find everything there.

    Args:
        folder: where to; None for `fineweb_folder()`.
        endpoint: address of the hub; by default HF_ENDPOINT or the public hub.
        verify: whether to read again, and compare, the shards that are there.

    Returns:
        The number of shards downloaded.

    Raises:
        FetchError: if any shard is missing at the end.
        ValueError: if the folder's manifest cannot be read.
    """
    folder = folder or fineweb_folder()
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"another process is fetching into {folder}: waiting for it")
        lock.acquire()
    try:
        return _Fetch(folder, shard_names(shards), workers, endpoint, say).run(verify)
    finally:
        shutil.rmtree(folder / DOWNLOADS, ignore_errors=True)
        lock.release()


class _Fetch:
    """One call's work on one folder. A record is a shard's `size` and `sha256`."""

    def __init__(self, folder: Path, names: list[str], workers: int, endpoint: str, say: Callable) -> None:
        self.folder, self.names, self.workers, self.say = folder, names, workers, say
        self.endpoint: str | None = endpoint.rstrip("/") or None
        manifest = read_manifest(folder) or {}
        self.verified: dict[str, dict] = manifest.get("files", {})  # records by name
        self.revision, self.source = manifest.get("revision"), manifest.get("source", REPO)
        self.problems: list[str] = []
        self.fetched = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def run(self, verify: bool) -> int:
        if verify:
            self._verify()
        missing = [name for name in self.names if not self._is_there(name)]
        if missing:
            try:
                files = self._describe(missing)
                self._check_space(files)
                self._download_all(files)
            except FetchError as error:
                self.problems.append(str(error))
        there = sum(map(self._is_there, self.names))
        if there < len(self.names):
            more = [f"and {len(self.problems) - 9} more"] if len(self.problems) > 10 else []
            lines = [*self.problems[: 9 if more else 10], *more, f"{there} of {len(self.names)} ok in {self.folder}"]
            raise FetchError("\n".join(lines))
        return self.fetched

    def _is_there(self, name: str) -> bool:
        try:
            return name in self.verified and (self.folder / name).stat().st_size == self.verified[name]["size"]
        except OSError:
            return False

    def _verify(self) -> None:
        """Read all shards that are there; forget those whose content has changed."""
        names = [name for name in self.names if self._is_there(name)]
        with ThreadPoolExecutor(self.workers) as pool:
            good = pool.map(lambda name: self._holds(name, self.verified[name]["sha256"]), names)
            for name, same in tqdm(zip(names, good), "verify", len(names), disable=None, unit="shard"):
                if not same:
                    self.say(f"{name}: damaged, its content has changed since it was verified")
                    self._record({key: value for key, value in self.verified.items() if key != name})

    def _holds(self, name: str, sha256: str) -> bool:
        """True if a shard on the disk can be read and has this content."""
        try:
            return sha256_of(self.folder / name) == sha256
        except OSError:
            return False

    def _describe(self, names: list[str]) -> dict[str, dict]:
        """The hub's records of those of `names` that it has; pins `revision` to one commit."""
        import huggingface_hub

        api = huggingface_hub.HfApi(endpoint=self.endpoint)
        info = _persist(lambda: api.dataset_info(REPO, files_metadata=True), REPO, api.endpoint, self._stop)
        self.revision, self.source = info.sha, f"{api.endpoint}/datasets/{REPO}"
        lfs = {file.rfilename: file.lfs for file in info.siblings or [] if file.lfs is not None}
        self.problems += [f"{name}: {REPO} has no such file" for name in names if name not in lfs]
        return {name: {"size": lfs[name].size, "sha256": lfs[name].sha256} for name in names if name in lfs}

    def _check_space(self, files: dict[str, dict]) -> None:
        there = {path.name: path.stat().st_size for path in self.folder.glob("*.parquet")}
        needed = sum(record["size"] for name, record in files.items() if there.get(name) != record["size"])
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise FetchError(f"{self.folder}: {needed / 1e9:.1f} GB to fetch and {free / 1e9:.1f} GB free")

    def _download_all(self, files: dict[str, dict]) -> None:
        """Download by several threads; daemons, since an interrupt should not wait for 100 MB each."""
        import huggingface_hub.utils

        huggingface_hub.utils.disable_progress_bars()  # ours shows all files together
        waiting = deque(files.items())
        total = sum(record["size"] for record in files.values())
        with tqdm(total=total, desc="fetch", unit="B", unit_scale=True, disable=None) as bar:

            def work() -> None:
                while not self._stop.is_set():
                    try:
                        name, record = waiting.popleft()
                    except IndexError:
                        return
                    self._one(name, record, bar)

            threads = [threading.Thread(target=work, daemon=True) for _ in range(self.workers)]
            for thread in threads:
                thread.start()
            try:
                while any(thread.is_alive() for thread in threads):
                    time.sleep(0.05)
            finally:
                self._stop.set()

    def _one(self, name: str, record: dict, bar: tqdm) -> None:
        """See to it that one shard is there and recorded, or add to the problems."""
        try:
            here = self._holds(name, record["sha256"])  # it may have come from elsewhere
            if not here:
                self._download(name, record["sha256"])
            with self._lock:
                self.fetched += not here
                self._record({**self.verified, name: record})
                bar.update(record["size"])
                if bar.disable:
                    self.say(f"{name}: {sum(map(self._is_there, self.names))} of {len(self.names)}")
        except Exception as error:  # whatever it is, nobody would hear of it in this thread
            text = str(error) if isinstance(error, FetchError) else f"{name}: {first_line(error)}"
            with self._lock:
                self.problems.append(text)

    def _download(self, name: str, sha256: str) -> None:
        """Download one shard aside, compare it, and give it its name. Raises FetchError."""
        import huggingface_hub

        place = {"repo_type": "dataset", "revision": self.revision, "local_dir": self.folder / DOWNLOADS}

        def attempt() -> None:
            path = Path(huggingface_hub.hf_hub_download(REPO, name, endpoint=self.endpoint, **place))
            found = sha256_of(path)
            if found != sha256:
                path.unlink()
                raise _WrongContentError(f"came with the wrong content: sha256 {found}, takes {sha256}")
            with open(path, "rb") as opened:
                os.fsync(opened.fileno())
            os.replace(path, self.folder / name)

        _persist(attempt, name, self.endpoint or "the hub", self._stop)

    def _record(self, verified: dict[str, dict]) -> None:
        self.verified = dict(sorted(verified.items()))
        options = {"source": self.source, "revision": self.revision, "files": self.verified}
        write_manifest(self.folder, validation=VALIDATION, **options)


class _WrongContentError(Exception):
    pass


def _persist(action: Callable, what: str, endpoint: str, stop: threading.Event):
    """`action()`, repeated after failures that may pass.

    Raises:
        FetchError: after the last attempt, or at once where another is of no use. `stop` is set as well where other
            files would fare no better: the disk is full, the hub does not answer.
    """
    attempt = 0
    while True:
        try:
            return action()
        except Exception as error:  # the library's HTTP client has changed twice: its errors have no common type
            status = getattr(getattr(error, "response", None), "status_code", None)
            if isinstance(error, OSError) and error.errno in DISK_ERRORS:
                stop.set()
                why = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror
                raise FetchError(f"{what}: {why}") from error
            if status is not None and 400 <= status < 500 and status not in (408, 429):
                raise FetchError(f"{what}: {endpoint} answers {status}: {first_line(error)}") from error
            if attempt == RETRIES or stop.is_set():
                if isinstance(error, _WrongContentError):
                    raise FetchError(f"{what}: {error}") from error
                stop.set()
                raise FetchError(f"{what}: no success with {endpoint}: {first_line(error)}") from error
        stop.wait(PAUSE * 2**attempt)
        attempt += 1


# ---- the command ----


@dataclass(frozen=True)
class FetchSettings:
    """Settings of a fetch; each field is a flag."""

    shards: int | None = flag(None, f"training shards, 1 to {TRAINING_SHARDS}; validation is one more", short="n")
    out: str = flag("", "folder (default: NANOGKA_BASE_DIR/corpora/fineweb-edu)")
    verify: bool = flag(False, "read every shard on the disk again, and re-fetch what is damaged")
    workers: int = flag(WORKERS, "downloads at the same time")
    endpoint: str = flag("", "address of the hub or a mirror (default: HF_ENDPOINT, or the public hub)")

    @property
    def folder(self) -> Path:
        return Path(self.out).expanduser() if self.out else fineweb_folder()


def fetch(settings: FetchSettings, problems: Problems) -> None:
    """Check the settings, fetch, and say how many shards there are."""
    if not any(line.startswith("--shards") for line in problems.lines):
        wanted = settings.shards is not None and 1 <= settings.shards <= TRAINING_SHARDS
        problems.check(wanted, "--shards", settings.shards, f"an integer from 1 to {TRAINING_SHARDS}")
    problems.check(settings.workers >= 1, "--workers", settings.workers, "an integer of at least 1")
    web = not settings.endpoint or settings.endpoint.startswith(("http://", "https://"))
    problems.check(web, "--endpoint", settings.endpoint, "an address that begins with http:// or https://")
    folder = settings.folder
    blocked = next((path for path in (folder, *folder.parents) if path.exists()), None)
    problems.check(blocked is None or blocked.is_dir(), "--out", str(folder), "a folder, not a file")
    problems.raise_any()
    options = {"workers": settings.workers, "endpoint": settings.endpoint, "verify": settings.verify}
    fetched = fetch_fineweb(settings.shards, folder, **options, say=lambda line: print(line, flush=True))
    n = settings.shards + 1
    print(f"{n} of {n} ok ({fetched} fetched now) in {folder}")


def main(argv: list[str] | None = None) -> int:
    """Run the command; return the exit code."""
    return run(FetchSettings, fetch, "nanogka.data.fineweb", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
