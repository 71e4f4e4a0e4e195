"""docs/architecture.md: its table of layers has every module, and imports only go down."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ROOMS = ("nanogka", "scripts", "tasks")
CARRIED = Path("nanogka/export/remote_code")  # files that exported models carry: they import one another alone
SOURCES = sorted(path.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py"))


def floors() -> list[list[str]]:
    """The packages and modules of each row of the table from the top: `nanogka/train/`, `nanogka/common/cli.py`."""
    table = TEXT.split("| layer |", 1)[1].split("\n\n", 1)[0]
    return [re.findall(r"`([\w/]+(?:/|\.py))`", row.split("|")[1]) for row in table.splitlines()[2:]]


def place(path: str) -> tuple[int, str]:
    """The floor and room of a file; the longest name in the table that it begins with."""
    rows = enumerate(floors())
    found = [(len(room), floor, room) for floor, rooms in rows for room in rooms if path.startswith(room)]
    assert found, f"{path} is in no row of the table of floors"
    _, floor, room = max(found)
    return floor, room


def imported(path: Path) -> set[str]:
    """Files of the project that a module imports, in functions too, but not for annotations alone."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    hints = [n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)]
    skipped = {id(part) for node in hints for part in ast.walk(node)}
    names = set()
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 or path.parent == CARRIED, f"{path}: imports are absolute"
            names |= {f"{node.module}.{alias.name}" for alias in node.names if node.level == 0}
    files = set()
    for name in names:
        parts = name.split(".")
        for end in range(len(parts), 0, -1):  # `from nanogka.model import GPT` is of the package's __init__
            base = "/".join(parts[:end])
            found = [file for file in (f"{base}.py", f"{base}/__init__.py") if (ROOT / file).is_file()]
            if found:
                files.add(found[0])
                break
    return {file for file in files if file.split("/")[0] in ROOMS}


@pytest.mark.parametrize("path", SOURCES, ids=str)
def test_a_module_imports_only_from_its_room_and_the_floors_below(path):
    floor, room = place(path.as_posix())
    for other in sorted(imported(path)):
        if other == "nanogka/__init__.py":
            continue
        other_floor, other_room = place(other)
        assert other_room == room or other_floor > floor, f"{path} imports {other}, which is not below it"


def test_what_exported_models_carry_needs_nothing_of_ours():
    for path in sorted((ROOT / CARRIED).glob("*_nanogka.py")):
        assert len(path.read_text(encoding="utf-8").splitlines()) < 300
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= {"math", "torch"}
            elif isinstance(node, ast.ImportFrom):
                carried = node.level == 1 and (ROOT / CARRIED / f"{node.module}.py").is_file()
                assert carried or node.module.split(".")[0] in ("torch", "transformers"), f"{path}: {node.module}"


def test_every_row_names_something_that_exists():
    rooms = [room for row in floors() for room in row]
    assert len(rooms) > 10
    assert [room for room in rooms if not (ROOT / room).exists()] == []


def test_only_backends_imports_the_kernels():
    importers = {path.as_posix() for path in SOURCES if any("/kernels/" in file for file in imported(path))}
    assert {path for path in importers if "/kernels/" not in path} == {"nanogka/backends.py"}
