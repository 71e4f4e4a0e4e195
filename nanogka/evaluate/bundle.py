"""Reading an evaluation bundle: a folder or a .zip in nanochat's layout.

    core.yaml               icl_tasks: a list of label, dataset_uri, num_fewshot, icl_task_type, continuation_delimiter
    eval_meta_data.csv      columns "Eval Task" and "Random baseline" (in per cent); optional
    eval_data/<folder>/<file>.jsonl     one item a line

A task of one's own is a JSONL file in `eval_data/` and its entry in `core.yaml`:

    icl_tasks:
      - label: capitals
        dataset_uri: capitals.jsonl
        num_fewshot: 3
        icl_task_type: language_modeling

`core.yaml` rules over what `tasks/` declares. Nothing malformed is skipped: every error names the file and, where there
is one, the line.
"""

import csv
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import yaml

from nanogka.evaluate.task import DEFAULT_DELIMITER, TYPES, Task, TaskData, item_problem

CORE_FILE = "core.yaml"
CHANCE_FILE = "eval_meta_data.csv"
DATA_FOLDER = "eval_data"

REQUIRED_KEYS = {"label", "dataset_uri", "icl_task_type"}
# has_categories only splits the report of other evaluators; every other key would change what is asked
KNOWN_KEYS = REQUIRED_KEYS | {"num_fewshot", "continuation_delimiter", "has_categories"}


@dataclass(frozen=True)
class Bundle:
    """An opened bundle: `root` is its folder (or the folder inside the .zip), `tasks` what it can ask, by name."""

    root: Path | zipfile.Path
    tasks: Mapping[str, Task]

    def load(self, name: str) -> TaskData:
        """Read and check the items of one task.

        Raises:
            ValueError: if the bundle has no such task, or its file is missing, empty or malformed.
        """
        if name not in self.tasks:
            raise ValueError(f"task {name!r} is not in {self.root}; it has {', '.join(self.tasks)}")
        task = self.tasks[name]
        file = self.root / DATA_FOLDER / _relative(task.path, f"task {name}")
        if not file.is_file():
            raise ValueError(f"task {name}: {file} does not exist")
        items, lines = read_items(task.type, file.read_bytes(), str(file))
        return TaskData(task, items, str(file), lines)


def open_bundle(path: str | Path, declared: Mapping[str, Task] | None = None) -> Bundle:
    """Open the bundle at `path`; tasks of `declared` that `core.yaml` does not list are added if their file is there.

    Raises:
        ValueError: if there is no bundle, or its `core.yaml` or `eval_meta_data.csv` is malformed.
    """
    declared = declared or {}
    root = _find_root(Path(path).expanduser())
    chances = _read_chances(root / CHANCE_FILE)
    core = root / CORE_FILE
    tasks = _read_core(core, chances, declared) if core.is_file() else {}
    for name, task in declared.items():
        if name not in tasks and task.path and (root / DATA_FOLDER / task.path).is_file():
            tasks[name] = task
    if not tasks:
        raise ValueError(
            f"--eval-bundle: got '{path}', which has no task, neither in {CORE_FILE} nor a known file in {DATA_FOLDER}/"
        )
    return Bundle(root, tasks)


def read_items(type_: str, content: bytes, source: str) -> tuple[list[dict], list[int]]:
    """The items of a JSONL file and their line numbers (from 1); lines with nothing but white space hold none.

    Raises:
        ValueError: naming source and line, for bytes that are no UTF-8, bad JSON, or an item without what its type
            needs; for a file without items.
    """
    items, lines = [], []
    # split at \n only: JSON strings may hold other characters that Python takes for line ends
    for number, raw in enumerate(content.split(b"\n"), 1):
        if not raw.strip():
            continue
        try:
            item = json.loads(raw.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise ValueError(f"{source}, line {number}: not UTF-8 (byte {error.start} of the line)") from error
        except json.JSONDecodeError as error:
            raise ValueError(f"{source}, line {number}: bad JSON: {error.msg} at column {error.colno}") from error
        if problem := item_problem(type_, item):
            raise ValueError(f"{source}, line {number}: {type_}: {problem}")
        items.append(item)
        lines.append(number)
    if not items:
        raise ValueError(f"{source}: no items")
    return items, lines


def _find_root(path: Path) -> Path | zipfile.Path:
    """The folder with `core.yaml` or `eval_data/`: `path`, or the only such folder in it (as a .zip usually has)."""
    if path.is_dir():
        top: Path | zipfile.Path = path
    elif path.is_file() and zipfile.is_zipfile(path):
        top = zipfile.Path(zipfile.ZipFile(path))
    else:
        what = "is neither" if path.exists() else "does not exist"
        raise ValueError(f"--eval-bundle: got '{path}', which {what}; takes a folder or .zip in nanochat's layout")
    if _looks_like_bundle(top):
        return top
    inside = [folder for folder in top.iterdir() if folder.is_dir() and _looks_like_bundle(folder)]
    if len(inside) != 1:
        raise ValueError(f"--eval-bundle: got '{path}', which has no {CORE_FILE} and no {DATA_FOLDER}/")
    return inside[0]


def _looks_like_bundle(folder: Path | zipfile.Path) -> bool:
    return (folder / CORE_FILE).is_file() or (folder / DATA_FOLDER).is_dir()


def _read_chances(file: Path | zipfile.Path) -> dict[str, float]:
    """Accuracy of guessing for each task the CSV names, as a fraction."""
    if not file.is_file():
        return {}
    reader = csv.DictReader(io.StringIO(file.read_text(encoding="utf-8-sig")))
    for column in ("Eval Task", "Random baseline"):
        if column not in (reader.fieldnames or ()):
            raise ValueError(f"{file}: the column {column!r} is missing")
    chances = {}
    for row in reader:
        try:
            chances[row["Eval Task"]] = float(row["Random baseline"]) / 100
        except (TypeError, ValueError) as error:
            got = row["Random baseline"]
            problem = f"random baseline of {row['Eval Task']!r}: got {got!r}, takes a percentage"
            raise ValueError(f"{file}, line {reader.line_num}: {problem}") from error
    return chances


def _read_core(file: Path | zipfile.Path, chances: Mapping[str, float], declared: Mapping[str, Task]) -> dict:
    """The tasks of `core.yaml` by name, in its order."""
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: bad YAML: {' '.join(str(error).split())}") from error
    entries = content.get("icl_tasks") if isinstance(content, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{file}: takes a key icl_tasks with a list of tasks")
    tasks: dict[str, Task] = {}
    for number, entry in enumerate(entries, 1):
        try:
            task = _task_of_entry(entry, chances, declared)
            if task.name in tasks:
                raise ValueError(f"the label {task.name!r} is there twice")
        except ValueError as error:
            raise ValueError(f"{file}, task {number}: {error}") from error
        tasks[task.name] = task
    return tasks


def _task_of_entry(entry: object, chances: Mapping[str, float], declared: Mapping[str, Task]) -> Task:
    """The task of one entry of `core.yaml`; its chance from the CSV, else as declared, else from the items."""
    if not isinstance(entry, dict):
        raise ValueError(f"takes a mapping, got {entry!r}")
    if missing := sorted(REQUIRED_KEYS - set(entry)):
        raise ValueError(f"missing {', '.join(missing)}")
    if unknown := sorted(str(key) for key in set(entry) - KNOWN_KEYS):
        raise ValueError(f"unknown key {', '.join(unknown)}; takes {', '.join(sorted(KNOWN_KEYS))}")
    name, type_, path = (entry[key] for key in ("label", "icl_task_type", "dataset_uri"))
    for key in ("label", "dataset_uri"):
        if not isinstance(entry[key], str) or not entry[key]:
            raise ValueError(f"{key}: got {entry[key]!r}, takes a string")
    if type_ not in TYPES:
        raise ValueError(f"icl_task_type: got {type_!r}, takes {', '.join(TYPES)}")
    delimiter = entry.get("continuation_delimiter", DEFAULT_DELIMITER)
    if not isinstance(delimiter, str):
        raise ValueError(f"continuation_delimiter: got {delimiter!r}, takes a string")
    shots = entry.get("num_fewshot", 0)
    if isinstance(shots, list):  # the list holds one number of shots a run; nanochat runs the first
        shots = shots[0] if len(shots) == 1 else shots
    known = declared.get(name)
    chance = chances.get(name, known.chance if known else None)
    _relative(path, "dataset_uri")
    measures, hub = (known.measures, known.hub) if known else ("", None)
    return Task(name, type_, shots, chance, path, delimiter, measures, hub)


def _relative(path: str | None, what: str) -> str:
    """`path`, refused if it leads out of the bundle."""
    parts = PurePosixPath(path or "/")
    if parts.is_absolute() or ".." in parts.parts:
        raise ValueError(f"{what}: got {path!r}, takes a path inside {DATA_FOLDER}/")
    return str(parts)
