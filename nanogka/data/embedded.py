"""The default corpus: English text that every Python installation contains, as parquet shards.

It consists of the language reference (`pydoc_data.topics`) and the docstrings of the standard library. They are read
with `ast`, so no code runs. A Python version always gives the same shards. Another version has other text, so losses
are comparable within one version only.
"""

import ast
import json
import os
import platform
import re
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from nanogka.common.files import base_dir, read_json, sha256_of
from nanogka.data.permutation import hash_text
from nanogka.data.sharding import build_once, write_shards

FORMAT = 2  # raise when the same Python version would give other documents
# A document is one module or chapter. A longer one is split, and small ones are joined with their neighbors.
MAX_CHARS = 6000  # of a document, before the paragraph that exceeds it
MIN_CHARS = 500
MIN_PARAGRAPH = 80  # shorter paragraphs may repeat ("Returns None."): only longer ones are searched for repeats
VAL_SHARE = 0.1
ROW_GROUP = 128
SKIPPED_FOLDERS = set(
    "__pycache__ _bundled dist-packages idle_test lib-dynload pydoc_data site-packages test tests".split()
)


def embedded_corpus() -> Path:
    """The folder of the embedded corpus. It is built on the first call, and again if it is damaged or outdated."""
    return build_once(base_dir() / "corpora" / "embedded", lambda partial: _write(partial, documents()), _is_current)


def _is_current(folder: Path) -> bool:
    try:
        about = read_json(folder / "about.json")
        if (about.get("format"), about.get("python")) != (FORMAT, platform.python_version()):
            return False
        return all(sha256_of(folder / name) == sha256 for name, sha256 in about.get("files", {}).items())
    except (OSError, ValueError):
        return False


def _write(folder: Path, texts: list[str]) -> None:
    total = sum(len(text.encode()) for text in texts)
    if total < 200_000:
        raise ValueError(
            f"embedded corpus: found only {total:,} bytes of documentation under {library()}; this Python was"
            " installed without its sources, so give a corpus of your own (--data FOLDER)"
        )
    in_order = sorted(texts, key=lambda text: (hash_text(text), text))
    n_val = size = 0
    while size < VAL_SHARE * total:
        size += len(in_order[n_val].encode())
        n_val += 1
    # No page checksums: they would change the bytes of the shards, and so the fingerprint that runs and studies hold.
    files = write_shards(folder, [in_order[n_val:], in_order[:n_val]], ROW_GROUP, page_checksum=False)
    about = {
        "format": FORMAT,
        "python": platform.python_version(),
        "documents": len(texts),
        "files": {name: record["sha256"] for name, record in files.items()},
    }
    (folder / "about.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def documents() -> list[str]:
    """Every document, of about 500 to 8,000 characters each, in a fixed order, without repeated paragraphs."""
    seen: set[str] = set()
    found = []
    for package, sections in [*_topic_sections(), *_library_sections()]:
        found.extend((package, text) for text in _assemble(sections, seen))
    return _merge_small(found)


def library() -> Path:
    """The folder of Python's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def _topic_sections() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The chapters of the language reference: (package, [(heading, text)])."""
    path = library() / "pydoc_data" / "topics.py"
    if not path.is_file():
        return
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            topics = ast.literal_eval(node.value)
            # Long chapters contain short ones: taking the long first keeps them whole and drops the copies.
            for name in sorted(topics, key=lambda name: (-len(topics[name]), name)):
                yield f"topic {name}", [(f"The Python language: {name}", topics[name])]


def _library_sections() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The docstrings of each module, in order of path."""
    root = library()
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if name not in SKIPPED_FOLDERS)
        for file in sorted(files):
            # Files that a distributor or a platform's build writes would make two installations differ.
            if not file.endswith(".py") or file.startswith(("_sysconfigdata", "sitecustomize", "usercustomize")):
                continue
            path = Path(folder, file)
            parts = path.relative_to(root).with_suffix("").parts
            if not all(part.isidentifier() for part in parts):
                continue
            module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            yield parts[0], _module_sections(path, module)


def _module_sections(path: Path, module: str) -> list[tuple[str, str]]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about old escapes in code that is not ours
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # templates and deliberately broken files
        return []
    sections = [(f"Module {module}", ast.get_docstring(tree) or "")]

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                name = f"{prefix}{child.name}"
                sections.append((f"class {name}", ast.get_docstring(child) or ""))
                visit(child, f"{name}.")
            elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                arguments = ast.unparse(child.args)
                arguments = arguments if len(arguments) <= 120 else "..."
                sections.append((f"{prefix}{child.name}({arguments})", ast.get_docstring(child) or ""))

    visit(tree, "")
    # The module's heading stays even without a docstring: the documents below are titled with it.
    return sections[:1] + [(heading, text) for heading, text in sections[1:] if text.strip()]


def _assemble(sections: list[tuple[str, str]], seen: set[str]) -> Iterator[str]:
    """Documents from the sections of one module, cut between paragraphs; each opens with the title of the module."""
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


def _merge_small(found: list[tuple[str, str]]) -> list[str]:
    """Join neighboring documents of a package until each has `MIN_CHARS`. Drop documents below a third of that."""
    merged: list[list[str]] = []
    for package, text in found:
        if merged and merged[-1][0] == package and min(len(merged[-1][1]), len(text)) < MIN_CHARS:
            merged[-1][1] += "\n\n" + text
        else:
            merged.append([package, text])
    return list(dict.fromkeys(text + "\n" for _, text in merged if len(text) >= MIN_CHARS // 3))
