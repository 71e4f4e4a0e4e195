"""Where evaluation bundles come from: a path, or a download that is kept in `NANOGKA_BASE_DIR`.

nanochat publishes its bundle as a .zip at `NANOCHAT_BUNDLE_URL`. Any .zip in the same layout works.
"""

import os
import shutil
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

from nanogka.common.errors import Errors
from nanogka.common.files import base_dir, sha256_of
from nanogka.evaluate.bundle import Bundle, open_bundle
from nanogka.evaluate.settings import URL_VARIABLE
from nanogka.evaluate.task import TaskData

NANOCHAT_BUNDLE_URL = "https://karpathy-public.s3.us-west-2.amazonaws.com/eval_bundle.zip"
# Several independent projects record this hash of the file at that address (the latest in June 2026).
NANOCHAT_BUNDLE_SHA256 = "90a7c19e28ee7a52b4f6e1f87658deb9fde7f63deba2379045bdb1fe9ea5d200"
TIMEOUT_SECONDS = 30
PAUSES = (1, 5, 15)  # seconds before further attempts


def open_source(choice: str) -> Bundle | None:
    """Open the bundle that `--eval-bundle` names; None for "none", and for "auto" if none has been downloaded."""
    if choice in ("auto", "none"):
        kept = downloaded_bundle()
        return open_bundle(kept) if choice == "auto" and kept.exists() else None
    if choice == "download":
        choice = fetch_bundle(os.environ.get(URL_VARIABLE) or NANOCHAT_BUNDLE_URL, downloaded_bundle())
    return open_bundle(choice)


def open_core_tasks(choice: str, core: Sequence[str], max_per_task: int | None, errors: Errors) -> list[TaskData]:
    """Read the tasks of CORE that the bundle has, and check that there are enough items for the examples."""
    bundle = errors.capture(lambda: require_bundle(choice, "CORE"))
    if bundle is None:
        return []
    names = [name for name in core if name in bundle.tasks]
    errors.require(bool(names), "--eval-bundle", choice, "a bundle with tasks of CORE")
    found = [errors.capture(lambda name=name: bundle.load(name).check_enough_items(max_per_task)) for name in names]
    return [data for data in found if data is not None]


def require_bundle(choice: str, purpose: str) -> Bundle:
    """`open_source`; ValueError if there is no bundle."""
    bundle = open_source(choice)
    if bundle is None:
        raise ValueError(f"--eval-bundle: got {choice!r}, expected a folder, a .zip or download for {purpose}")
    return bundle


def downloaded_bundle() -> Path:
    """Where a download is kept: the folder `eval_bundle` if somebody unpacked it, else the .zip."""
    folder = base_dir() / "eval_bundle"
    return folder if folder.is_dir() else folder.with_suffix(".zip")


def fetch_bundle(url: str, file: Path) -> Path:
    """Download the .zip at `url` to `file`, unless it exists. It gets that name only if it is a bundle.

    Every rank may call this: one downloads, the others wait. Raises OSError if the download fails several times.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_name(f".{file.name}.lock")):
        if file.exists():
            return file
        for pause in (*PAUSES, None):
            try:
                _download(url, file)
                break
            except (OSError, ValueError) as error:
                final = isinstance(error, ValueError) or 400 <= getattr(error, "code", 500) < 500
                if pause is None or final:
                    reason = getattr(error, "reason", None) or error
                    raise OSError(f"could not fetch {url}: {reason}") from error
            time.sleep(pause)
    return file


def _download(url: str, file: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=f".{file.name}-", dir=file.parent) as scratch:
        partial = Path(scratch) / file.name
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response, partial.open("wb") as out:
            shutil.copyfileobj(response, out)
        received, expected = partial.stat().st_size, response.headers.get("Content-Length")
        if expected is not None and received != int(expected):  # urllib does not report a connection that was cut
            raise OSError(f"got {received} of {expected} bytes")
        if url == NANOCHAT_BUNDLE_URL and (found := sha256_of(partial)) != NANOCHAT_BUNDLE_SHA256:
            raise ValueError(f"got a file with SHA-256 {found}, expected {NANOCHAT_BUNDLE_SHA256}")
        open_bundle(partial)
        os.replace(partial, file)
