"""The sha256 of corpora's files, computed once and kept in NANOGKA_BASE_DIR/hashes.json."""

import hashlib
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

from filelock import FileLock

from nanogka.files import atomic_write
from nanogka.runtime import base_dir

KEPT = "hashes.json"
LONG = 5_000_000_000  # bytes to read that are worth a line
TICK = 2.0  # seconds in which a file may change twice without showing it in its time
THREADS = 4


def hash_files(files: Sequence[Path]) -> list[str]:
    """The sha256 (hex) of each file; one whose size, time and inode are as they were is not read again.

    Of several processes that ask at once one reads, the others wait. Where nothing can be kept, all read.

    Raises:
        OSError: if a file cannot be read.
    """
    kept = base_dir() / KEPT
    states = [_state(file) for file in files]
    with ExitStack() as stack:
        if any(found[0] != state for found, state in zip(_look_up(kept, files), states)):
            with suppress(OSError):
                kept.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(FileLock(kept.with_name(f".{KEPT}.lock")))
        found = _look_up(kept, files)
        missing = [i for i, state in enumerate(states) if found[i][0] != state]
        if (size := sum(states[i][0] for i in missing)) > LONG:
            print(f"reading {size / 1e9:.0f} GB once, to know the text again", file=sys.stderr, flush=True)
        with ThreadPoolExecutor(THREADS) as pool:
            for i, digest in zip(missing, pool.map(sha256_of, [files[i] for i in missing])):
                found[i] = (states[i], digest)
        settled = {i for i in missing if time.time() - states[i][1] / 1e9 > TICK}
        if settled:
            with suppress(OSError):
                _write(kept, _read(kept) | {str(files[i].resolve()): found[i] for i in settled})
    return [digest for _, digest in found]


def sha256_of(file: Path) -> str:
    """The sha256 of a file's content (hex). Raises OSError."""
    digest = hashlib.sha256()
    with open(file, "rb") as opened:
        while block := opened.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _state(file: Path) -> list[int]:
    status = file.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def _look_up(kept: Path, files: Sequence[Path]) -> list:
    known = _read(kept)
    return [known.get(str(file.resolve()), (None, "")) for file in files]


def _read(kept: Path) -> dict:
    """Read the kept [state, sha256] by path; nothing if the file is damaged, as its first line shows."""
    try:
        checksum, _, text = kept.read_text(encoding="utf-8").partition("\n")
    except (OSError, ValueError):
        return {}
    return json.loads(text) if checksum == _checksum(text) else {}


def _write(kept: Path, hashes: dict) -> None:
    text = json.dumps(hashes, indent=1)
    atomic_write(kept, f"{_checksum(text)}\n{text}")


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
