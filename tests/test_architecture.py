"""docs/architecture.md: its table of layers has every module, imports only go down, and its reading paths exist."""

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
TOP = ("nanogka", "scripts", "tasks")
CARRIED = Path("nanogka/export/remote_code")  # files that exported models carry: they import one another alone
SOURCES = sorted(path.relative_to(ROOT) for folder in TOP for path in (ROOT / folder).rglob("*.py"))
ROWS = TEXT.split("| layer |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
LAYERS = [re.findall(r"`([\w/]+(?:/|\.py))`", row.split("|")[1]) for row in ROWS]  # from the top: `nanogka/train/`, …


def place(path: str) -> tuple[int, str]:
    """The layer and package of a file; the package is the longest name in the table that the path begins with."""
    found = [(len(name), layer, name) for layer, names in enumerate(LAYERS) for name in names if path.startswith(name)]
    assert found, f"{path} is in no row of the table of layers"
    return max(found)[1:]


@cache
def imported(path: Path) -> set[str]:
    """Files of the project that a module imports, in functions too, but not for annotations alone."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    hints = [n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)]
    skipped = {id(part) for node in hints for part in ast.walk(node)}
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and id(node) not in skipped:
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and id(node) not in skipped:
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
    return {file for file in files if file.split("/")[0] in TOP and file != "nanogka/__init__.py"}


def test_a_module_imports_only_from_its_package_and_the_layers_below():
    wrong = []
    for path in SOURCES:
        layer, package = place(path.as_posix())
        for other in imported(path):
            other_layer, other_package = place(other)
            if other_package != package and other_layer <= layer:
                wrong.append(f"{path} imports {other}, which is not below it")
    assert wrong == []


def test_no_module_imports_itself_through_others():
    """An import in a function counts: a circle has no beginning for a reader."""
    below, circles = {path.as_posix(): imported(path) for path in SOURCES}, []
    done, way = set(), []

    def visit(module):
        if module in way:
            circles.append(" → ".join([*way[way.index(module) :], module]))
        elif module not in done:
            way.append(module)
            for other in sorted(below.get(module, ())):
                visit(other)
            done.add(way.pop())

    for module in below:
        visit(module)
    assert circles == []


def test_the_table_and_the_reading_paths_name_what_exists():
    assert len(LAYERS) > 10
    assert [name for names in LAYERS for name in names if not (ROOT / name).exists()] == []
    section = TEXT.split("## Three paths to read first", 1)[1].split("\n## ", 1)[0]
    for path in section.strip().split("\n\n")[:3]:
        words = re.findall(r"`([^`]+)`", path)
        files = [word for word in words if word.endswith(".py")]
        code = "\n".join((ROOT / file).read_text(encoding="utf-8") for file in files)
        for name in {part for word in words if word not in files for part in word.split(".")}:
            assert re.search(rf"(def|class) {name}\b", code), f"{name} is in none of {files}"


def test_the_homes_of_concepts_exist():
    section = TEXT.split("## One home for each concept", 1)[1].split("\n## ", 1)[0]
    homes = re.findall(r"`([\w/]+(?:\.py|\.sh|\.js|/))`", section)
    assert len(homes) > 25
    folders = [ROOT / name for name in ("", "nanogka", "nanogka/page", "scripts")]
    assert [home for home in homes if not any((folder / home).exists() for folder in folders)] == []


def test_exported_models_need_nothing_of_ours():
    for path in sorted((ROOT / CARRIED).glob("*_nanogka.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                assert {alias.name.split(".")[0] for alias in node.names} <= {"math", "torch"}
            elif isinstance(node, ast.ImportFrom):
                carried = node.level == 1 and (ROOT / CARRIED / f"{node.module}.py").is_file()
                assert carried or node.module.split(".")[0] in ("torch", "transformers"), f"{path}: {node.module}"


def test_only_backends_imports_the_kernels():
    importers = {path.as_posix() for path in SOURCES if any("/kernels/" in file for file in imported(path))}
    assert {path for path in importers if "/kernels/" not in path} == {"nanogka/backends.py"}
