"""The sources of tasks' items: a bundle on disk, a bundle fetched once, or the Hugging Face hub.

    source = BundleSource.parse("auto")
    bundle = source.open(TASKS, needed=True, notes=[])      # a Bundle or HubTasks: `tasks` and `load(name)`

nanochat publishes its bundle as a .zip at `NANOCHAT_BUNDLE_URL`; any .zip in the same layout serves. It is kept as it
is in `NANOGKA_BASE_DIR`, and only once it is whole and verified.
"""

import hashlib
import os
import tempfile
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nanogka.evaluate.bundle import MAX_UNPACKED_BYTES, Bundle, check_archive, open_bundle
from nanogka.evaluate.prompts import check_enough_items
from nanogka.evaluate.task import Task, TaskData, item_problem
from nanogka.runtime import base_dir

NANOCHAT_BUNDLE_URL = "https://karpathy-public.s3.us-west-2.amazonaws.com/eval_bundle.zip"
URL_VARIABLE = "NANOGKA_EVAL_BUNDLE_URL"
SHA256_VARIABLE = "NANOGKA_EVAL_BUNDLE_SHA256"
BUNDLE_HELP = "a folder or .zip in nanochat's layout; auto, download, hub, hub:FOLDER or none"
TIMEOUT_SECONDS = 30
BLOCK_BYTES = 1 << 20


class DownloadError(OSError):
    """A bundle or dataset could not be fetched; the text is one line that says from where and why."""


@dataclass(frozen=True)
class BundleSource:
    """The choice of a bundle.

    Attributes:
        choice: a folder or .zip; "none"; "download"; "auto": the downloaded bundle, fetched first if there is a URL;
            "hub": the Hugging Face hub; "hub:FOLDER": local copies of its datasets.
        url, sha256: of the .zip to download; None for nanochat's, and for unchecked.
    """

    choice: str
    url: str | None = None
    sha256: str | None = None

    @staticmethod
    def parse(choice: str, url: str = "", sha256: str = "") -> "BundleSource":
        """The source of that choice; an empty `url` or `sha256` is the environment's."""
        return BundleSource(choice, url or os.environ.get(URL_VARIABLE), sha256 or os.environ.get(SHA256_VARIABLE))

    @property
    def cached(self) -> Path:
        """The downloaded bundle: a folder `eval_bundle` that somebody unpacked, else the .zip."""
        folder = base_dir() / "eval_bundle"
        return folder if folder.is_dir() else folder.with_suffix(".zip")

    @property
    def may_download(self) -> bool:
        """True if `open` would fetch something."""
        asked = self.choice == "download" or (self.choice == "auto" and self.url is not None)
        return asked and not self.cached.exists()

    def open(self, declared: Mapping[str, Task], needed: str, notes: list[str]) -> "Bundle | HubTasks | None":
        """The bundle (or the hub in its place); None, with a note unless that was the choice, where `auto` finds none.

        Args:
            declared: tasks that it may have beyond what its core.yaml lists, and those that the hub has.
            needed: what cannot be done without a bundle; empty if it is optional.

        Raises:
            ValueError: if the bundle is malformed, or `needed` and not to be had.
            DownloadError: if a download that was asked for fails.
        """
        missing = "no evaluation bundle: tasks from the validation text only (--eval-bundle FOLDER, ZIP or download)"
        kind, _, folder = self.choice.partition(":")
        if kind == "hub":
            return HubTasks.of(declared, Path(folder).expanduser() if folder else None)
        if self.choice not in ("auto", "download", "none"):
            return open_bundle(self.choice, declared)
        if self.may_download or (self.choice != "none" and self.cached.exists()):
            try:
                file = fetch_bundle(self.url or NANOCHAT_BUNDLE_URL, self.cached, self.sha256)
                return open_bundle(file, declared)
            except DownloadError as error:
                if needed or self.choice == "download":
                    raise
                missing = f"no evaluation bundle: {error}"
        if needed:
            takes = "a folder, a .zip, download or hub"
            raise ValueError(f"--eval-bundle: got {self.choice!r}, but {needed} takes a bundle: {takes}")
        if self.choice == "auto":
            notes.append(missing)
        return None


def load_enough(load: Callable[[], TaskData], max_items: int | None) -> TaskData:
    """Load a task. Raises ValueError if, cut to `max_items`, it has too few items for its examples."""
    data = load()
    check_enough_items(data, len(data.items) if max_items is None else min(len(data.items), max_items))
    return data


def fetch_bundle(url: str, file: Path, sha256: str | None = None) -> Path:
    """Download the .zip at `url` to `file`, unless it is there already.

    The archive's checksums are verified, its SHA-256 too if one is given, and the bundle is opened once; only then is
    it renamed to `file`.

    Raises:
        DownloadError: if it cannot be fetched.
        ValueError: if what came is not the bundle it should be.
    """
    if file.exists():
        return file
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{file.name}-", dir=file.parent) as scratch:
        partial = Path(scratch) / file.name
        digest = _download(url, partial)
        if sha256 and digest != sha256.lower():
            raise ValueError(f"{url}: SHA-256 is {digest}, takes {sha256.lower()}")
        check_archive(partial)
        open_bundle(partial)
        os.replace(partial, file)
    return file


def _download(url: str, file: Path) -> str:
    """Write the content of `url` to `file`; returns its SHA-256 in hexadecimal."""
    digest, received = hashlib.sha256(), 0
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response, file.open("wb") as out:
            expected = response.headers.get("Content-Length")
            while block := response.read(BLOCK_BYTES):
                digest.update(block)
                received += out.write(block)
                if received > MAX_UNPACKED_BYTES:
                    raise ValueError(f"more than {MAX_UNPACKED_BYTES:,} bytes")
    except (OSError, ValueError) as error:  # URLError and time-outs are OSErrors; a malformed URL is a ValueError
        reason = getattr(error, "reason", None) or error
        raise DownloadError(f"could not fetch {url}: {reason}") from error
    if expected is not None and received != int(expected):
        raise DownloadError(f"could not fetch {url}: got {received} of {expected} bytes")
    return digest.hexdigest()


@dataclass(frozen=True)
class HubTasks:
    """The tasks that can be had from the hub through `datasets`; `load` as a bundle's.

    The items come in the hub's order. Where that is not the bundle's, other items serve as examples and are left out by
    a maximum, so that scores differ within their standard error.

    Attributes:
        tasks: those that state their place on the hub, by name.
        root: the folder of local copies (root/Rowan/hellaswag/…), None for the hub itself.
    """

    tasks: Mapping[str, Task]
    root: Path | None = None

    @staticmethod
    def of(declared: Mapping[str, Task], root: Path | None = None) -> "HubTasks":
        """The declared tasks that have a `hub`."""
        return HubTasks({name: task for name, task in declared.items() if task.hub is not None}, root)

    def load(self, name: str) -> TaskData:
        """Fetch (or find in the cache of `datasets`), convert and check the items of one task.

        Raises:
            ValueError: if there is no such task here, or a row is not as expected; the text names the row.
            DownloadError: if the hub cannot be reached or does not have it; one line.
        """
        if name not in self.tasks:
            raise ValueError(f"task {name!r} is not on the hub; there are {', '.join(self.tasks)}")
        task = self.tasks[name]
        source = f"{task.hub.dataset} {task.hub.config}".strip() + f", {task.hub.split}"
        items = [_convert(task, row, f"{source}, row {number}") for number, row in enumerate(self._rows(task.hub), 1)]
        if not items:
            raise ValueError(f"{source}: no items")
        return TaskData(task, items, source)

    def _rows(self, hub):
        import datasets  # a quarter of a second, and only this needs it

        arguments = [hub.dataset, hub.config] if hub.config else [hub.dataset]
        if self.root is not None:
            folder = self.root / hub.dataset / hub.config
            if not folder.is_dir():
                raise ValueError(f"--eval-bundle: there is no folder {folder}")
            arguments = [str(folder)]
        datasets.disable_progress_bars()
        try:
            return datasets.load_dataset(*arguments, split=hub.split)
        except Exception as error:  # the errors of the network, the hub and a dataset's format have no common type
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise DownloadError(f"could not fetch {hub.dataset} from the Hugging Face hub: {reason}") from error


def _convert(task: Task, row: dict, where: str) -> dict:
    try:
        item = task.hub.convert(row)
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"{where}: not as task {task.name} expects it: {type(error).__name__} {error}") from error
    if problem := item_problem(task.type, item):
        raise ValueError(f"{where}: {task.type}: {problem}")
    return item
