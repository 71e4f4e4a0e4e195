"""Files of a dataset repository on the Hugging Face hub, each verified before it gets its name.

    hub = HubDataset("karpathy/fineweb-edu-100b-shuffle")
    for file in hub.describe(["shard_00000.parquet"]).values():
        hub.download(file, folder)

The hub says each file's size and sha256. A download goes into a hidden partial file beside its target and is renamed
when both agree; what a broken connection left is continued from its last byte, also by a later process. (The hub
library's own `hf_hub_download` throws an unfinished file away, which is why its `http_get` is called instead.)
"""

import errno
import hashlib
import os
import random
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import huggingface_hub
from huggingface_hub import constants, hf_hub_url
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import (
    HfHubHTTPError,
    are_progress_bars_disabled,
    build_hf_headers,
    disable_progress_bars,
    enable_progress_bars,
)

T = TypeVar("T")

PATHS_A_CALL = 100
LONGEST_WAIT = 60.0  # seconds between two attempts, at most
BLOCK_BYTES = 1 << 20
# The library's HTTP client has changed twice; requests' errors are OSErrors, those of the others have a base each.
NETWORK_ERRORS = (
    OSError,
    *(sys.modules[client].HTTPError for client in ("httpx", "httpx2") if client in sys.modules),
)


class FetchError(OSError):
    """A file could not be fetched; the text is one line that says which and why."""


class UnreachableError(FetchError):
    """The hub did not answer, or broke off every time: other files will fare no better."""


class DiskError(FetchError):
    """The disk took no more (full, read-only, …): other files will fare no better."""


class StoppedError(Exception):
    """The download was told to stop; what came is kept for the next time."""


@dataclass(frozen=True)
class RemoteFile:
    """A file as the hub describes it: `size` in bytes, `sha256` in hexadecimal."""

    name: str
    size: int
    sha256: str


class HubDataset:
    """One dataset repository at one commit; safe to use from several threads after `describe`.

    Attributes:
        repo: owner/name.
        endpoint: the hub's address.
        revision: a branch's name until `describe` has been called, then the commit.
    """

    def __init__(
        self,
        repo: str,
        *,
        endpoint: str | None = None,
        revision: str = "main",
        retries: int = 5,
        wait: float = 1.0,
        stop: threading.Event | None = None,
    ) -> None:
        """`endpoint`: None is the public hub or HF_ENDPOINT. `retries`: further attempts after one without any
        progress, the first after about `wait` seconds, each later one after twice as long."""
        self.repo, self.revision = repo, revision
        self.endpoint = (endpoint or constants.ENDPOINT).rstrip("/")
        self.retries, self.wait = retries, wait
        self.stop = stop or threading.Event()
        self._api = huggingface_hub.HfApi(endpoint=self.endpoint)

    def describe(self, names: Sequence[str]) -> dict[str, RemoteFile]:
        """Size and sha256 of those of `names` that the repository has, at one commit.

        Raises:
            FetchError: if the hub has no such repository.
            UnreachableError: if it cannot be asked.
        """
        options = {"repo_type": "dataset"}
        info = self._persist(lambda: self._api.repo_info(self.repo, revision=self.revision, **options), "")
        self.revision = info.sha or self.revision
        found = {}
        for start in range(0, len(names), PATHS_A_CALL):
            part = list(names[start : start + PATHS_A_CALL])
            for path in self._persist(
                lambda part=part: self._api.get_paths_info(self.repo, part, revision=self.revision, **options), ""
            ):
                if getattr(path, "lfs", None) is None:
                    raise FetchError(f"{self.endpoint}: gives no sha256 for {path.path} of {self.repo}")
                found[path.path] = RemoteFile(path.path, path.lfs.size, path.lfs.sha256)
        return found

    def download(self, file: RemoteFile, folder: Path, progress: Callable[[int], None] = lambda n: None) -> None:
        """Fetches `file` into `folder`, verified; a wrong hash is fetched once more.

        `progress` is told of bytes as they come, and of negative numbers where bytes turn out to be worthless.

        Raises:
            FetchError: as `UnreachableError`, as `DiskError`, or if what comes is not what the hub describes.
            StoppedError: once `stop` is set.
        """
        partial = folder / f".{file.name}.{file.sha256[:12]}.partial"
        found = ""
        for _ in range(2):
            self._complete(file, partial, progress)
            found = sha256_of(partial)
            if found == file.sha256:
                _settle(partial, folder / file.name)
                for stale in folder.glob(f".{file.name}.*.partial"):  # of an earlier version of the file
                    stale.unlink(missing_ok=True)
                return
            partial.unlink()
            progress(-file.size)
        raise FetchError(f"{file.name}: came twice with the wrong content: sha256 {found}, takes {file.sha256}")

    def _complete(self, file: RemoteFile, partial: Path, progress: Callable[[int], None]) -> None:
        """Brings `partial` to its full size, continuing what is there."""
        url = hf_hub_url(
            self.repo, file.name, repo_type="dataset", revision=self.revision, endpoint=self.endpoint
        )
        first = _size(partial)
        progress(first)

        def append() -> None:
            if _size(partial) > file.size:  # a server without range requests sent it from the start, behind our part
                progress(-_size(partial))
                partial.unlink()
            at = _size(partial)
            if at == file.size:
                return
            with _Sink(partial, progress, self.stop) as sink:
                sink.seek(at)
                headers = {**build_hf_headers(), "Accept-Encoding": "identity"}  # sizes are those of the file itself
                http_get(url, sink, resume_size=at, headers=headers, expected_size=file.size)
            if _size(partial) != file.size:
                raise OSError(f"got {_size(partial):,} of {file.size:,} bytes")

        self._persist(append, f"{file.name}: ", lambda: _size(partial))

    def _persist(self, action: Callable[[], T], what: str, reached: Callable[[], int] = lambda: 0) -> T:
        """`action()`, repeated after network errors with growing pauses; progress (`reached`) renews its patience."""
        failures, best = 0, reached()
        while True:
            try:
                return action()
            except (DiskError, StoppedError):
                raise
            except NETWORK_ERRORS as error:
                status = getattr(getattr(error, "response", None), "status_code", None)
                # 416 comes when the partial file is none of this server's; the size check removes it.
                if isinstance(error, HfHubHTTPError) and status and status < 500 and status not in (408, 416, 429):
                    answer = f"{self.endpoint} answers {status} for {self.repo}: {_line(error)}"
                    raise FetchError(what + answer) from error
                failures = 1 if reached() > best else failures + 1
                best = max(best, reached())
                if failures > self.retries:
                    raise UnreachableError(f"{what}no success with {self.endpoint}: {_line(error)}") from error
            pause = min(LONGEST_WAIT, self.wait * 2 ** (failures - 1)) * random.uniform(0.75, 1.25)
            if self.stop.wait(pause):
                raise StoppedError


@contextmanager
def quiet_hub():
    """No progress bars of the hub library inside: ours shows all files together."""
    were_off = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if not were_off:
            enable_progress_bars()


def sha256_of(path: Path) -> str:
    """The sha256 of a file in hexadecimal. Raises DiskError if it cannot be read."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as opened:
            while block := opened.read(BLOCK_BYTES):
                digest.update(block)
    except OSError as error:
        raise _disk_error(path, error) from error
    return digest.hexdigest()


class _Sink:
    """A partial file that reports what is written to it and tells the disk's errors from the network's."""

    def __init__(self, path: Path, progress: Callable[[int], None], stop: threading.Event) -> None:
        self.path, self.progress, self.stop = path, progress, stop
        self.name = str(path)  # for the accelerated download that older versions of the hub library can be told to use
        try:
            self.file = open(path, "r+b" if path.exists() else "w+b")  # noqa: SIM115 (closed in __exit__)
        except OSError as error:
            raise _disk_error(path, error) from error

    def write(self, data: bytes) -> int:
        if self.stop.is_set():
            raise StoppedError
        try:
            written = self.file.write(data)
        except OSError as error:
            raise _disk_error(self.path, error) from error
        self.progress(written)
        return written

    def seek(self, *place: int) -> int:
        return self.file.seek(*place)

    def tell(self) -> int:
        return self.file.tell()

    def truncate(self, size: int | None = None) -> int:
        # http_get calls this where the server began again from the start
        self.file.flush()
        before = _size(self.path)
        after = self.file.truncate(size)
        self.progress(after - before)
        return after

    def __enter__(self) -> "_Sink":
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            self.file.close()  # writes what is buffered, and may find the disk full
        except OSError as error:
            raise _disk_error(self.path, error) from error


def _settle(partial: Path, target: Path) -> None:
    """Gives a verified file its name once it is safe on the disk."""
    try:
        with open(partial, "rb") as opened:
            os.fsync(opened.fileno())
        os.replace(partial, target)
    except OSError as error:
        raise _disk_error(target, error) from error


def _disk_error(path: Path, error: OSError) -> DiskError:
    why = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else error.strerror or str(error)
    return DiskError(f"{path.parent}: {why} ({path.name})")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
