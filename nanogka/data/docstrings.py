"""Documents from the docstrings of Python modules. Sources are read with `ast`, so no code runs.

A document is one module or chapter. A longer one is split, and small ones are joined with their neighbors.
"""

import ast
import re
import warnings
from collections.abc import Callable, Iterable, Iterator

MAX_CHARS = 6000  # of a document, before the paragraph that exceeds it
MIN_CHARS = 500
MIN_PARAGRAPH = 80  # shorter paragraphs may repeat ("Returns None."): only longer ones are searched for repeats
SKIPPED_FOLDERS = set(
    "__pycache__ _bundled dist-packages idle_test lib-dynload pydoc_data site-packages test tests".split()
)

Section = tuple[str, str]  # a heading and its text


def module_name(path: str) -> str | None:
    """The dotted name of a source file, given its path with `/`. None if the file is not an importable module."""
    *folders, file = path.split("/")
    parts = [*folders, file.removesuffix(".py")]
    if not file.endswith(".py") or not all(map(str.isidentifier, parts)) or SKIPPED_FOLDERS & set(folders):
        return None
    return ".".join(folders if parts[-1] == "__init__" else parts)


def module_sections(source: bytes, module: str, signature: Callable[[ast.arguments], str]) -> list[Section]:
    """The docstrings of a module, its classes and functions. `signature` formats the arguments of a function."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old escapes in code that is not ours
            tree = ast.parse(source)
    except (SyntaxError, ValueError):  # templates and deliberately broken files
        return []
    sections = [(f"Module {module}", docstring(tree))]

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                name = f"{prefix}{child.name}"
                sections.append((f"class {name}", docstring(child)))
                visit(child, f"{name}.")
            elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                arguments = signature(child.args)
                arguments = arguments if len(arguments) <= 120 else "..."
                sections.append((f"{prefix}{child.name}({arguments})", docstring(child)))

    visit(tree, "")
    # The module's heading stays even without a docstring: the documents below are titled with it.
    return sections[:1] + [(heading, text) for heading, text in sections[1:] if text.strip()]


def docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """The docstring of a node without its indentation, or an empty string.

    `ast.get_docstring` cleans with `inspect.cleandoc`, whose rules differ between Python versions. These are the ones
    of Python 3.12.
    """
    lines = (ast.get_docstring(node, clean=False) or "").expandtabs().split("\n")
    margin = min((len(line) - len(line.lstrip()) for line in lines[1:] if line.strip()), default=0)
    lines = [lines[0].lstrip(), *(line[margin:] for line in lines[1:])]
    while lines and not lines[0]:
        del lines[0]
    while lines and not lines[-1]:
        del lines[-1]
    return "\n".join(lines)


def assemble(sections: list[Section], seen: set[str]) -> Iterator[str]:
    """Documents from the sections of one module, cut between paragraphs; each opens with the title of the module.

    `seen` has the paragraphs of earlier documents. They are left out, and the new ones are added.
    """
    title = sections[0][0] if sections else ""
    document: list[str] = []
    size = 0
    for heading, text in sections:
        fresh = _fresh_paragraphs(text, seen)
        for i, paragraph in enumerate(fresh):
            if size + len(paragraph) > MAX_CHARS and size >= MIN_CHARS:
                yield "\n\n".join(document)
                document, size = [], 0
            if i == 0 or not document:
                lines = [heading] if document or heading == title else [title, heading]
                document.extend(lines)
                size += sum(map(len, lines))
            document.append(paragraph)
            size += len(paragraph) + 2
    if document:
        yield "\n\n".join(document)


def _fresh_paragraphs(text: str, seen: set[str]) -> list[str]:
    """The paragraphs of a docstring that are in no document yet, without trailing blanks and control characters."""
    lines = [line.rstrip() for line in text.splitlines()]
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]", "", "\n".join(lines))
    fresh = []
    for paragraph in re.split(r"\n\s*\n", text):
        key = " ".join(paragraph.split())
        if not key or (len(key) >= MIN_PARAGRAPH and key in seen):  # else a model would learn the copies by heart
            continue
        seen.add(key)
        fresh.append(paragraph.strip("\n"))
    return fresh


def merge_small(found: Iterable[tuple[str, str]]) -> list[str]:
    """The documents of (package, text) pairs. A text below `MIN_CHARS` is joined with its neighbor in the package.

    Documents that stay below a third of that are dropped.
    """
    merged: list[list[str]] = []
    for package, text in found:
        if merged and merged[-1][0] == package and min(len(merged[-1][1]), len(text)) < MIN_CHARS:
            merged[-1][1] += "\n\n" + text
        else:
            merged.append([package, text])
    return list(dict.fromkeys(text + "\n" for _, text in merged if len(text) >= MIN_CHARS // 3))
