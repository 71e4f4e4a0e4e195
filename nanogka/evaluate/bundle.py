"""Find, download and read an evaluation bundle: a folder or a .zip in nanochat's layout.

    core.yaml               icl_tasks: a list of entries, see `Entry`
    eval_meta_data.csv      columns "Eval Task" and "Random baseline" (in percent); optional
    eval_data/<folder>/<file>.jsonl     one item per line

No malformed item is skipped: an error names the file and the line. A .zip is read in place and never unpacked.
"""

import csv
import io
import os
import shutil
import urllib.request
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from filelock import FileLock
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from nanogka.common.files import acquire, base_dir, expand_path, parse_yaml, read_bytes, sha256_of
from nanogka.evaluate.settings import URL_VARIABLE
from nanogka.evaluate.task import LANGUAGE_MODELING, MULTIPLE_CHOICE, OPTIONS, SCHEMA, TYPES, LoadedTask, Task

NANOCHAT_BUNDLE_URL = "https://karpathy-public.s3.us-west-2.amazonaws.com/eval_bundle.zip"
# Several independent projects record this hash of the file at that address (the latest in June 2026).
NANOCHAT_BUNDLE_SHA256 = "90a7c19e28ee7a52b4f6e1f87658deb9fde7f63deba2379045bdb1fe9ea5d200"
TIMEOUT_SECONDS = 30

CORE_FILE = "core.yaml"
CHANCE_FILE = "eval_meta_data.csv"
DATA_FOLDER = "eval_data"
MAX_FILE_BYTES = 2**28  # a .zip of 12 MB can expand to gigabytes

# ---- the forms of a bundle's files ----

Choices = Annotated[list[str], Field(min_length=2)]
Index = Annotated[int, Field(ge=0)]
Text = Annotated[str, Field(pattern=r"\S")]  # not blank: there must be something to score


class MultipleChoiceItem(TypedDict):
    """One query and several endings."""

    query: str
    choices: Choices
    gold: Index


class SchemaItem(TypedDict):
    """Several beginnings and one ending."""

    context_options: Choices
    continuation: Text
    gold: Index


class LanguageModelingItem(TypedDict):
    """A text and its continuation."""

    context: str
    continuation: Text


ITEMS: dict[str, TypeAdapter[Any]] = {
    MULTIPLE_CHOICE: TypeAdapter(MultipleChoiceItem),
    SCHEMA: TypeAdapter(SchemaItem),
    LANGUAGE_MODELING: TypeAdapter(LanguageModelingItem),
}


def _single(shots: object) -> object:
    """The number in a list of one. DCLM's format allows several per task; nanochat uses the first."""
    return shots[0] if isinstance(shots, list) and len(shots) == 1 else shots


class Entry(BaseModel):
    """A task in core.yaml. An unknown key is an error, because it would change the question."""

    model_config = ConfigDict(extra="forbid")

    label: str
    dataset_uri: str
    icl_task_type: Literal[TYPES]  # pyrefly: ignore[not-a-type]  # pydantic reads the tuple
    num_fewshot: Annotated[Index, BeforeValidator(_single)] = 0
    continuation_delimiter: str = " "
    has_categories: object = None  # only splits the report of other evaluators


def first_problem(error: ValidationError) -> str:
    """The first problem of a file's entry, in one line that names the key."""
    problem = error.errors(include_url=False, include_context=False)[0]
    return ": ".join([".".join(map(str, problem["loc"])), problem["msg"]]).removeprefix(": ")


# ---- reading ----


@dataclass(frozen=True)
class Bundle:
    """The tasks of a bundle; their items are read by `load`."""

    root: Path | zipfile.Path  # its folder, or the folder inside the .zip
    tasks: Mapping[str, Task]

    def load(self, name: str) -> LoadedTask:
        """Read the items of the task `name`."""
        task = self.tasks[name]
        folder = self.root / DATA_FOLDER
        assert task.path is not None, "a task of a bundle names its file"
        file = folder / task.path
        # A .zip has no links and knows no "..". In a folder, both could lead to files that are not the bundle's.
        # Unlike `Path.resolve` before Python 3.13, `realpath` raises no RuntimeError at a link that leads to itself.
        real = Path(os.path.realpath(str(file)))
        if isinstance(file, Path) and not real.is_relative_to(os.path.realpath(str(folder))):
            raise ValueError(f"task {name}: got the path {task.path!r}, expected a file inside {folder}")
        if not file.is_file():
            raise ValueError(f"task {name}: {file} does not exist")
        return LoadedTask(task, read_items(task.type, _read(file), str(file)))


def open_bundle(path: str | Path) -> Bundle:
    """Open the bundle at `path` and read its list of tasks."""
    root = _find_root(expand_path(path))
    chances, file = _read_chances(root / CHANCE_FILE), root / CORE_FILE
    content = parse_yaml(_read(file).decode("utf-8", "replace"), file)
    entries = content.get("icl_tasks") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{file}: expected a key icl_tasks with a list of tasks")
    tasks: dict[str, Task] = {}
    for number, entry in enumerate(entries, 1):
        try:
            e = Entry.model_validate(entry)
        except ValidationError as error:
            raise ValueError(f"{file}, task {number}: {first_problem(error)}") from None
        if e.label in tasks:
            raise ValueError(f"{file}, task {number}: the label {e.label!r} occurs twice")
        chance = chances.get(e.label)  # without it, chance follows from the number of choices
        tasks[e.label] = Task(e.label, e.icl_task_type, e.num_fewshot, chance, e.dataset_uri, e.continuation_delimiter)
    return Bundle(root, tasks)


def read_items(type_: str, content: bytes, source: str) -> list[dict]:
    """The items of a JSONL file. An error names the line."""
    items, options = [], OPTIONS.get(type_)
    # Split at \n only: JSON strings may contain other characters that Python treats as line ends.
    for number, line in enumerate(content.rstrip().split(b"\n"), 1):
        where = f"{source}, line {number}: {type_}"
        try:
            item = ITEMS[type_].validate_json(line, strict=True)
        except ValidationError as error:
            raise ValueError(f"{where}: {first_problem(error)}") from None
        if options and item["gold"] >= len(item[options]):
            raise ValueError(f"{where}: gold: got {item['gold']}, expected an index of {options}")
        items.append(item)
    return items


def _find_root(path: Path) -> Path | zipfile.Path:
    """The folder with `core.yaml`: `path`, or the only such folder in it, as a .zip usually has."""
    if path.is_dir():
        top: Path | zipfile.Path = path
    elif path.is_file() and zipfile.is_zipfile(path):
        try:
            top = zipfile.Path(path)
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise ValueError(f"{path}: not a good .zip archive: {error}") from error
    else:
        what = "is neither" if path.exists() else "does not exist"
        raise ValueError(f"eval_bundle: got '{path}', which {what}; expected a folder or .zip in nanochat's layout")
    found = [folder for folder in (top, *top.iterdir()) if folder.is_dir() and (folder / CORE_FILE).is_file()]
    if not found:
        raise ValueError(f"eval_bundle: got '{path}', which has no {CORE_FILE}")
    return found[0]


def _read(file: Path | zipfile.Path) -> bytes:
    if isinstance(file, Path):
        return read_bytes(file, MAX_FILE_BYTES)
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_FILE_BYTES + 1)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
        raise ValueError(f"{file}: damaged, not a good .zip archive: {error}") from error
    if len(content) > MAX_FILE_BYTES:
        raise ValueError(f"{file}: has more than {MAX_FILE_BYTES:,} bytes")
    return content


def _read_chances(file: Path | zipfile.Path) -> dict[str, float]:
    if not file.is_file():
        return {}
    reader = csv.DictReader(io.TextIOWrapper(io.BytesIO(_read(file)), "utf-8-sig"))
    try:
        return {row["Eval Task"]: float(row["Random baseline"]) / 100 for row in reader}
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        expected = "expected columns 'Eval Task' and 'Random baseline', a percentage"
        raise ValueError(f"{file}, line {reader.line_num}: {expected} ({error})") from error


# ---- finding and downloading ----


def find_bundle(choice: str, notes: list[str], required: bool = False) -> Bundle | None:
    """Open the bundle that `--eval-bundle` names; None for "none", and for "auto" if none has been downloaded.

    Raises ValueError if there is none although it is `required`. Otherwise a damaged download gets a note.
    """
    kept = downloaded_bundle()
    if choice == "download":
        return open_bundle(fetch_bundle(os.environ.get(URL_VARIABLE) or NANOCHAT_BUNDLE_URL, kept))
    if choice not in ("auto", "none"):
        return open_bundle(choice)
    if choice == "auto" and kept.exists():
        try:
            return open_bundle(kept)
        except ValueError as error:
            if required:
                raise
            notes.append(f"left out: {error}")
            return None
    if required:
        raise ValueError(f"eval_bundle: got {choice!r}, expected a folder, a .zip or download: these tasks need one")
    return None


def open_core_tasks(choice: str, core: Sequence[str], max_per_task: int | None) -> list[LoadedTask]:
    """Read the tasks of CORE that the bundle has, and check that there are enough items for the examples."""
    bundle = find_bundle(choice, [], required=True)
    assert bundle is not None, "it is required"
    names = [name for name in core if name in bundle.tasks]
    if not names:
        raise ValueError(f"eval_bundle: got {choice!r}, expected a bundle with tasks of CORE")
    return [bundle.load(name).check_enough_items(max_per_task) for name in names]


def downloaded_bundle() -> Path:
    """Return the path of a downloaded bundle: the folder `eval_bundle` if somebody unpacked it, else the .zip."""
    folder = base_dir() / "eval_bundle"
    return folder if folder.is_dir() else folder.with_suffix(".zip")


def fetch_bundle(url: str, file: Path) -> Path:
    """Download the .zip at `url` to `file`, unless it exists. It gets that name only if it is a bundle.

    Every rank may call this: one downloads, the others wait. Raises OSError if the download fails.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".{file.name}.partial")
    with acquire(FileLock(file.with_name(f".{file.name}.lock"))):
        if file.exists():
            return file
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response, partial.open("wb") as out:
                shutil.copyfileobj(response, out)
            if url == NANOCHAT_BUNDLE_URL and (found := sha256_of(partial)) != NANOCHAT_BUNDLE_SHA256:
                raise ValueError(f"got a file with SHA-256 {found}, expected {NANOCHAT_BUNDLE_SHA256}")
            # urllib does not report a cut connection, but a cut .zip lacks its table of contents at the end.
            open_bundle(partial)
            os.replace(partial, file)
        except (OSError, ValueError) as error:
            raise OSError(f"could not fetch {url}: {getattr(error, 'reason', None) or error}") from error
        finally:
            partial.unlink(missing_ok=True)
    return file
