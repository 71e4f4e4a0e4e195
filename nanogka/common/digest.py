"""A hash of everything that decides a result: an equal hash says that the result need not be made again."""

import hashlib
import json
from collections.abc import Iterable
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from nanogka.common.files import MAX_DATA_BYTES, sha256_of


def digest(values: object, code: Iterable[str] = ()) -> str:
    """A SHA-256, in hexadecimal, of JSON `values` and of the source files of modules and packages.

    `code` has their names, such as `nanogka.evaluate`. A package that does not exist has no files.
    """
    files = {name: digest_of_code(name) for name in code}
    return hashlib.sha256(json.dumps([values, files], sort_keys=True).encode()).hexdigest()


def digest_of_file(path: Path) -> str:
    """The SHA-256 of a regular file, empty if there is none. Raises ValueError for a file that no reader would take."""
    return sha256_of(path, MAX_DATA_BYTES) if path.is_file() else ""


@lru_cache
def digest_of_code(name: str) -> str:
    """A SHA-256 of the names and contents of a module's file, or of all files of a package: code, pages, tables."""
    found, spec = hashlib.sha256(), find_spec(name)
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        for path in sorted(Path(folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                found.update(repr([path.relative_to(folder).as_posix(), path.read_bytes()]).encode())
    if spec and spec.origin and not folders:
        found.update(Path(spec.origin).read_bytes())
    return found.hexdigest()
