"""From names to items: which tasks an evaluation runs, and where their items come from: bundle, hub or text."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from nanogka.data import Corpus
from nanogka.evaluate.bundle import Bundle, open_bundle
from nanogka.evaluate.download import NANOCHAT_BUNDLE_URL, DownloadError, fetch_bundle
from nanogka.evaluate.hub import HubTasks, open_hub
from nanogka.evaluate.prompts import check_enough_items
from nanogka.evaluate.scores import PAPER_TASKS
from nanogka.evaluate.task import Task, TaskData
from nanogka.problems import Problems
from nanogka.runtime import base_dir
from tasks import CORE, TASKS, passages

URL_VARIABLE = "NANOGKA_EVAL_BUNDLE_URL"
SHA256_VARIABLE = "NANOGKA_EVAL_BUNDLE_SHA256"
HUB = "hub"  # or hub:FOLDER
BUNDLE_HELP = "a folder or .zip in nanochat's layout; auto, download, hub, hub:FOLDER or none"

# The tasks that need no bundle, by name: each is made from texts.
FROM_TEXT = {"true_continuation": passages.true_continuation, "last_word": passages.last_word}

T = TypeVar("T")


@dataclass(frozen=True)
class BundleSource:
    """Where the bundle comes from.

    Attributes:
        choice: a folder or .zip; "none"; "download"; "auto": what is in `cached`, else a download if there is a URL;
            "hub": the Hugging Face hub; "hub:FOLDER": local copies of its datasets.
        cached: the folder of a downloaded bundle.
        url, sha256: of the .zip to download; None for nanochat's, and for unchecked.
    """

    choice: str
    cached: Path
    url: str | None = None
    sha256: str | None = None

    @property
    def may_download(self) -> bool:
        """Whether `find_bundle` would fetch something."""
        asked = self.choice == "download" or (self.choice == "auto" and self.url is not None)
        return asked and not self.cached.exists()


def bundle_source(choice: str, url: str = "", sha256: str = "") -> BundleSource:
    """What `choice` means on this machine; `url` and `sha256` are the environment's where they are empty."""
    url, sha256 = url or os.environ.get(URL_VARIABLE), sha256 or os.environ.get(SHA256_VARIABLE)
    return BundleSource(choice, base_dir() / "eval_bundle", url, sha256)


def find_bundle(
    source: BundleSource, needed: bool, notes: list[str], declared: Mapping[str, Task] = TASKS
) -> Bundle | HubTasks | None:
    """The bundle (or the hub in its place); None, with a note unless that was the choice, where `auto` finds none.

    `declared`: tasks that it may have beyond what its core.yaml lists, and those that the hub has.

    Raises:
        ValueError: if the bundle is malformed, or `needed` and not to be had.
        DownloadError: if a download that was asked for fails.
    """
    missing = "no evaluation bundle: tasks from the validation text only (--eval-bundle FOLDER, ZIP or download)"
    kind, _, folder = source.choice.partition(":")
    if kind == HUB:
        return open_hub(declared, Path(folder).expanduser() if folder else None)
    if source.choice not in ("auto", "download", "none"):
        return open_bundle(source.choice, declared)
    if source.may_download or (source.choice != "none" and source.cached.exists()):
        try:
            folder = fetch_bundle(source.url or NANOCHAT_BUNDLE_URL, source.cached, source.sha256)
            return open_bundle(folder, declared)
        except DownloadError as error:
            if needed or source.choice == "download":
                raise
            missing = f"no evaluation bundle: {error}"
    if needed:
        takes = "a folder, a .zip, download or hub"
        what = "core" if declared is TASKS else f"a task of {', '.join(declared)}"
        raise ValueError(f"--eval-bundle: got {source.choice!r}, but {what} takes a bundle: {takes}")
    if source.choice == "auto":
        notes.append(missing)
    return None


def default_names(bundle: Bundle | HubTasks | None, core: bool, text: bool = True) -> list[str]:
    """The tasks of an evaluation that names none.

    Those made from text if there is any, the paper's six and the bundle's tasks outside CORE; with `core` all that the
    bundle has.
    """
    in_bundle = bundle.tasks if bundle else ()
    from_text = FROM_TEXT if text else ()
    return [*from_text, *(name for name in in_bundle if core or name in PAPER_TASKS or name not in CORE)]


def load_tasks(
    names: Sequence[str], bundle: Bundle | HubTasks | None, corpus: Corpus | None, max_items: int | None = None
) -> list[TaskData]:
    """The items of the tasks, read and checked; those made from text from the corpus' validation split.

    Raises:
        ValueError: with every problem of every task: unknown, malformed, or too few items for its examples.
    """
    problems, loaded = Problems(), []
    known = [*(FROM_TEXT if corpus else ()), *(bundle.tasks if bundle else ())]
    for name in dict.fromkeys(names):
        if name in FROM_TEXT and corpus:
            data = problems.attempt(lambda make=FROM_TEXT[name]: make(corpus.documents("val")))
        elif name in known:
            data = problems.attempt(lambda name=name: bundle.load(name))
        else:
            problems.check(False, "--tasks", name, ", ".join(known) + ("" if bundle else " (there is no bundle)"))
            continue
        if data is not None:
            count = len(data.items) if max_items is None else min(len(data.items), max_items)
            problems.attempt(lambda data=data, count=count: check_enough_items(data, count))
            loaded.append(data)
    problems.raise_any()
    return loaded
