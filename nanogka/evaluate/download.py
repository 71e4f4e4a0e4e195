"""Fetching an evaluation bundle once, verified, so that a half-finished download is never mistaken for one.

nanochat publishes its bundle as a .zip at `NANOCHAT_BUNDLE_URL`; any .zip in the same layout serves.
"""

import hashlib
import os
import shutil
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from pathlib import Path

from nanogka.evaluate.bundle import open_bundle

NANOCHAT_BUNDLE_URL = "https://karpathy-public.s3.us-west-2.amazonaws.com/eval_bundle.zip"
TIMEOUT_SECONDS = 30
BLOCK_BYTES = 1 << 20


class DownloadError(OSError):
    """The bundle could not be fetched; the text is one line that says from where and why."""


def fetch_bundle(url: str, folder: str | Path, sha256: str | None = None) -> Path:
    """Download the .zip at `url` and unpack it as `folder`; nothing is done if `folder` is there already.

    The archive's checksums are verified, its SHA-256 too where one is given, and the unpacked bundle is opened once;
    only then is it renamed to `folder`.

    Raises:
        DownloadError: if it cannot be fetched.
        ValueError: if what came is not the bundle it should be.
    """
    folder = Path(folder)
    if folder.exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        archive = Path(scratch) / "bundle.zip"
        digest = _download(url, archive)
        if sha256 and digest != sha256.lower():
            raise ValueError(f"{url}: SHA-256 is {digest}, takes {sha256.lower()}")
        unpacked = Path(scratch) / "unpacked"
        _unpack(archive, unpacked, url)
        root = open_bundle(unpacked).root
        try:
            os.replace(root, folder)
        except OSError:
            # another process was faster: its bundle is as good as ours
            if not folder.is_dir():
                raise
    return folder


def _download(url: str, file: Path) -> str:
    """Write what is at `url` to `file`; returns its SHA-256 in hexadecimal."""
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response, file.open("wb") as out:
            expected = response.headers.get("Content-Length")
            while block := response.read(BLOCK_BYTES):
                digest.update(block)
                out.write(block)
            received = out.tell()
    except (OSError, ValueError) as error:  # URLError and time-outs are OSErrors; a malformed URL is a ValueError
        reason = getattr(error, "reason", None) or error
        raise DownloadError(f"could not fetch {url}: {reason}") from error
    if expected is not None and received != int(expected):
        raise DownloadError(f"could not fetch {url}: got {received} of {expected} bytes")
    return digest.hexdigest()


def _unpack(archive: Path, folder: Path, url: str) -> None:
    """Unpack, verifying every member's checksum on the way."""
    try:
        with zipfile.ZipFile(archive) as content:
            content.extractall(folder)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise ValueError(f"{url}: not a good .zip archive: {error}") from error
