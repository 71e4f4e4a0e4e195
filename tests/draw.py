"""Mutants that nobody chose: operators, comparisons, constants and conditions of the files that compute numbers."""

import ast
import copy
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOMS = ("attention", "model", "train", "evaluate", "study", "page")  # of nanogka/, next to tasks/
SWAPS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


@dataclass(frozen=True)
class Drawn:
    """A mutant of `file`: characters `start` to `end` of its UTF-8 text become `new`."""

    file: str
    line: int
    start: int
    end: int
    old: str
    new: str

    @property
    def package(self) -> str:
        """The folder whose rate it counts for."""
        return re.sub(r"^nanogka/", "", self.file).split("/")[0]

    def apply(self, root: Path) -> str:
        """Write the mutated file below `root` and return its text before."""
        before = (root / self.file).read_bytes()
        (root / self.file).write_bytes(before[: self.start] + self.new.encode() + before[self.end :])
        return before.decode()


def _expressions(node: ast.AST) -> Iterator[ast.expr]:
    """All expressions that compute something: no text, no message of an error, no assertion of ours, no type."""
    if isinstance(node, (ast.JoinedStr, ast.Raise, ast.Assert)):
        return
    if isinstance(node, ast.expr):
        yield node
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _expressions(child)


def _changed(node: ast.expr) -> ast.expr | None:
    """A copy of an expression with one fault; None if it has no operator, no comparison and no number."""
    changed = copy.copy(node)
    if isinstance(node, (ast.BinOp, ast.BoolOp)) and type(node.op) in SWAPS:
        changed.op = SWAPS[type(node.op)]()
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
        changed.ops = [SWAPS[type(node.ops[0])](), *node.ops[1:]]
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        return node.operand
    elif isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        value = node.value
        whole = isinstance(value, int) or value == 0
        changed.value = not value if isinstance(value, bool) else value + 1 if whole else value * 1.1
    else:
        return None
    return changed


def mutants_of(root: Path, file: str) -> list[Drawn]:
    """All mutants of a Python file, in the order of its text."""
    text = (root / file).read_bytes()
    begins = [0]  # of each line, in bytes
    for line in text.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))
    found = []
    for node in _expressions(ast.parse(text)):
        if changed := _changed(node):
            start, end = begins[node.lineno - 1] + node.col_offset, begins[node.end_lineno - 1] + node.end_col_offset
            found.append(Drawn(file, node.lineno, start, end, text[start:end].decode(), f"({ast.unparse(changed)})"))
    return sorted(found, key=lambda mutant: (mutant.start, mutant.end))


def files_of(root: Path, match: str = "") -> list[str]:
    """The files that compute numbers and whose path matches a regular expression."""
    paths = [path for room in ROOMS for path in (root / "nanogka" / room).rglob("*.py")]
    files = sorted(str(path.relative_to(root)) for path in [*paths, *(root / "tasks").glob("*.py")])
    return [file for file in files if re.search(match, file)]


def draw(root: Path, count: int, seed: int, match: str = "") -> list[Drawn]:
    """`count` mutants of the files whose path matches a regular expression, each as likely as every other."""
    everything = [mutant for file in files_of(root, match) for mutant in mutants_of(root, file)]
    return random.Random(seed).sample(everything, min(count, len(everything)))


def nearest_tests(root: Path, file: str, known: list[str]) -> list[str]:
    """Test files of a source file: those of its name, else its room's; up to four that import it; and `known` ones."""
    module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    room, stem = module.removeprefix("nanogka.").split(".")[0], module.rsplit(".", 1)[-1]
    paths = sorted((root / "tests").rglob("test_*.py"), key=lambda path: (path.parent.name != room, path))
    own = [path for path in paths if path.stem == f"test_{stem}"]
    naming = re.compile(rf"\b{re.escape(module)}\b|from {re.escape(module.rpartition('.')[0])} import.*\b{stem}\b")
    named = [path for path in paths if path not in own and naming.search(path.read_text(encoding="utf-8"))]
    same_room = [path for path in paths if path.parent.name == room]
    files = [str(path.relative_to(root)) for path in [*own, *named[:4], *([] if own else same_room)]]
    return list(dict.fromkeys([*files, *known]))
