"""The sources of tasks' items: a bundle on disk, a bundle downloaded once, or (for chat tasks) the Hugging Face hub.

nanochat publishes its bundle as a .zip at `NANOCHAT_BUNDLE_URL`; any .zip in the same layout serves. It is kept packed
in `NANOGKA_BASE_DIR`, once it is complete and could be opened.
"""

import os
import shutil
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nanogka.common.errors import Errors
from nanogka.common.files import base_dir, expand_path
from nanogka.data.chat import load_dataset
from nanogka.evaluate.bundle import Bundle, open_bundle
from nanogka.evaluate.settings import URL_VARIABLE
from nanogka.evaluate.task import HubSource, Task, TaskData, item_problem

NANOCHAT_BUNDLE_URL = "https://karpathy-public.s3.us-west-2.amazonaws.com/eval_bundle.zip"
HUB = "hub"
TIMEOUT_SECONDS = 30
NO_BUNDLE = Bundle(Path(), {})


class DownloadError(OSError):
    """A bundle could not be fetched."""


def open_source(
    choice: str,
    declared: Mapping[str, Task],
    errors: Errors,
    needed: str = "",
    notes: list[str] | None = None,
    with_hub: bool = False,
) -> "Bundle | HubTasks | None":
    """Open the source that `--eval-bundle` names, None if it is to be refused; what is wrong is in `errors`.

    `declared`: tasks that the bundle may have beyond what its core.yaml lists, and those that the hub has. `needed`:
    what cannot be done without a source, empty if it is optional. `notes` receives a line if "auto" finds no bundle.
    Nothing is downloaded if `errors` has entries already.
    """
    if errors.lines and _must_download(choice):
        return None
    kind, _, folder = choice.partition(":")
    if kind == HUB:
        takes = "a folder, a .zip, download, auto or none: the hub has only the tasks of scripts.chat_eval"
        if not errors.require(with_hub, "--eval-bundle", choice, takes):
            return None
        on_hub = {name: task for name, task in declared.items() if task.hub is not None}
        return HubTasks(on_hub, expand_path(folder) if folder else None)
    return errors.capture(lambda: _open(choice, declared, needed, [] if notes is None else notes))


def open_core_tasks(
    choice: str, declared: Mapping[str, Task], core: Sequence[str], max_per_task: int | None, errors: Errors
) -> list[TaskData]:
    """The tasks of CORE (of the names `core`) that the bundle has, read and checked; the rest as of `open_source`."""
    source = open_source(choice, declared, errors, needed="core")
    if source is None:
        return []
    names = [name for name in core if name in source.tasks]
    errors.require(bool(names), "--eval-bundle", choice, "a bundle with tasks of CORE")
    found = [errors.capture(lambda name=name: source.load(name).check_enough_items(max_per_task)) for name in names]
    return [data for data in found if data is not None]


def downloaded_bundle() -> Path:
    """A folder `eval_bundle` that somebody unpacked, else the .zip."""
    folder = base_dir() / "eval_bundle"
    return folder if folder.is_dir() else folder.with_suffix(".zip")


def _must_download(choice: str) -> bool:
    asked = choice == "download" or (choice == "auto" and bool(os.environ.get(URL_VARIABLE)))
    return asked and not downloaded_bundle().exists()


def _open(choice: str, declared: Mapping[str, Task], needed: str, notes: list[str]) -> Bundle:
    if choice not in ("auto", "download", "none"):
        return open_bundle(choice, declared)
    missing = "tasks from the validation text only (--eval-bundle FOLDER, ZIP or download)"
    file = downloaded_bundle()
    if choice != "none" and (file.exists() or _must_download(choice)):
        try:
            url = os.environ.get(URL_VARIABLE) or NANOCHAT_BUNDLE_URL
            return open_bundle(fetch_bundle(url, file), declared)
        except DownloadError as error:
            if needed or choice == "download":
                raise
            missing = str(error)
    if needed:
        raise ValueError(f"--eval-bundle: got {choice!r}, but {needed} takes a bundle: a folder, a .zip or download")
    if choice == "auto":
        notes.append(f"no evaluation bundle: {missing}")
    return NO_BUNDLE


def fetch_bundle(url: str, file: Path) -> Path:
    """Download the .zip at `url` to `file`, unless it is there already; it gets that name only if it is a bundle."""
    if file.exists():
        return file
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{file.name}-", dir=file.parent) as scratch:
        partial = Path(scratch) / file.name
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response, partial.open("wb") as out:
                shutil.copyfileobj(response, out)
            received, expected = partial.stat().st_size, response.headers.get("Content-Length")
            if expected is not None and received != int(expected):  # urllib does not report a connection cut short
                raise OSError(f"got {received} of {expected} bytes")
        except (OSError, ValueError) as error:  # URLError and time-outs are OSErrors; a malformed URL is a ValueError
            raise DownloadError(f"could not fetch {url}: {getattr(error, 'reason', None) or error}") from error
        open_bundle(partial)
        os.replace(partial, file)
    return file


@dataclass(frozen=True)
class HubTasks:
    """Chat tasks read from the hub through `datasets`, or from copies in the folder `root`; `load` as of a bundle."""

    tasks: Mapping[str, Task]
    root: Path | None = None

    def load(self, name: str) -> TaskData:
        task = self.tasks[name]
        source = f"{task.hub.dataset} {task.hub.config}, {task.hub.split}"
        items = [_convert(task, row, f"{source}, row {number}") for number, row in enumerate(self._rows(task.hub), 1)]
        if not items:
            raise ValueError(f"{source}: no items")
        return TaskData(task, items, source)

    def _rows(self, hub: HubSource):
        location = hub.dataset, hub.config
        if self.root is not None:
            location = (str(self.root / hub.dataset / hub.config),)
            if not Path(*location).is_dir():
                raise ValueError(f"--eval-bundle: there is no folder {location[0]}")
        return load_dataset(hub.dataset, *location, split=hub.split)


def _convert(task: Task, row: dict, where: str) -> dict:
    try:
        item = task.hub.convert(row)
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"{where}: not as task {task.name} expects it: {type(error).__name__} {error}") from error
    if problem := item_problem(task.type, item):
        raise ValueError(f"{where}: {task.type}: {problem}")
    return item
