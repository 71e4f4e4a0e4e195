"""Read an evaluation bundle: a folder or a .zip in nanochat's layout.

    core.yaml               icl_tasks: a list of label, dataset_uri, num_fewshot, icl_task_type, continuation_delimiter
    eval_meta_data.csv      columns "Eval Task" and "Random baseline" (in percent); optional
    eval_data/<folder>/<file>.jsonl     one item per line

No malformed item is skipped: an error names the file and the line. A .zip is read in place and never unpacked.
"""

import csv
import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nanogka.common.files import expand_path, parse_yaml, read_bytes
from nanogka.evaluate.task import TYPES, Task, TaskData, item_problem, shortened

CORE_FILE = "core.yaml"
CHANCE_FILE = "eval_meta_data.csv"
DATA_FOLDER = "eval_data"
MAX_FILE_BYTES = 2**28  # a .zip of 12 MB can expand to gigabytes

REQUIRED_KEYS = {"label", "dataset_uri", "icl_task_type"}
# has_categories only splits the report of other evaluators; any other key would change the question
KNOWN_KEYS = REQUIRED_KEYS | {"num_fewshot", "continuation_delimiter", "has_categories"}


@dataclass(frozen=True)
class Bundle:
    """The tasks of a bundle; their items are read by `load`."""

    root: Path | zipfile.Path  # its folder, or the folder inside the .zip
    tasks: Mapping[str, Task]

    def load(self, name: str) -> TaskData:
        """Read the items of the task `name`."""
        task = self.tasks[name]
        file = self.root / DATA_FOLDER / task.path
        if not file.is_file():
            raise ValueError(f"task {name}: {file} does not exist")
        items, lines = read_items(task.type, _read(file), str(file))
        return TaskData(task, items, str(file), lines)


def open_bundle(path: str | Path) -> Bundle:
    """Open the bundle at `path` and read its list of tasks."""
    root = _find_root(expand_path(path))
    return Bundle(root, _read_core(root / CORE_FILE, _read_chances(root / CHANCE_FILE)))


def read_items(type_: str, content: bytes, source: str) -> tuple[list[dict], list[int]]:
    """The items of a JSONL file and their line numbers (from 1); blank lines are skipped, errors name the line."""
    items, lines = [], []
    # Split at \n only: JSON strings may contain other characters that Python treats as line ends.
    for number, raw in enumerate(content.split(b"\n"), 1):
        if not raw.strip():
            continue
        try:
            item = json.loads(raw.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise ValueError(f"{source}, line {number}: not UTF-8 (byte {error.start} of the line)") from error
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{source}, line {number}: bad JSON: {error}") from error
        if problem := item_problem(type_, item):
            raise ValueError(f"{source}, line {number}: {type_}: {problem}")
        items.append(item)
        lines.append(number)
    if not items:
        raise ValueError(f"{source}: no items")
    return items, lines


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
        raise ValueError(f"--eval-bundle: got '{path}', which {what}; expected a folder or .zip in nanochat's layout")
    found = [folder for folder in (top, *top.iterdir()) if folder.is_dir() and (folder / CORE_FILE).is_file()]
    if not found:
        raise ValueError(f"--eval-bundle: got '{path}', which has no {CORE_FILE}")
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


def _read_core(file: Path | zipfile.Path, chances: Mapping[str, float]) -> dict[str, Task]:
    content = parse_yaml(_read(file).decode("utf-8", "replace"), file)
    entries = content.get("icl_tasks") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{file}: expected a key icl_tasks with a list of tasks")
    tasks: dict[str, Task] = {}
    for number, entry in enumerate(entries, 1):
        try:
            task = _task_of_entry(entry, chances)
            if task.name in tasks:
                raise ValueError(f"the label {task.name!r} occurs twice")
        except ValueError as error:
            raise ValueError(f"{file}, task {number}: {error}") from error
        tasks[task.name] = task
    return tasks


def _task_of_entry(entry: object, chances: Mapping[str, float]) -> Task:
    """The task of one entry of `core.yaml`; without a line in the CSV, its chance follows from the items."""
    if not isinstance(entry, dict):
        raise ValueError(f"expected a mapping, got {shortened(entry)}")
    if missing := sorted(REQUIRED_KEYS - set(entry)):
        raise ValueError(f"missing {', '.join(missing)}")
    if unknown := sorted(str(key) for key in set(entry) - KNOWN_KEYS):
        raise ValueError(f"unknown key {', '.join(unknown)}; expected {', '.join(sorted(KNOWN_KEYS))}")
    texts = {key: entry.get(key, " ") for key in ("label", "dataset_uri", "continuation_delimiter")}
    for key, value in texts.items():
        if not isinstance(value, str):
            raise ValueError(f"{key}: got {shortened(value)}, expected a string")
    name, path, delimiter = texts.values()
    type_, shots = entry["icl_task_type"], entry.get("num_fewshot", 0)
    if type_ not in TYPES:
        raise ValueError(f"icl_task_type: got {shortened(type_)}, expected {', '.join(TYPES)}")
    if isinstance(shots, list) and len(shots) == 1:  # a list has one number of shots per run; nanochat uses the first
        (shots,) = shots
    return Task(name, type_, shots, chances.get(name), path, delimiter)
