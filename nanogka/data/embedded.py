"""The default corpus: English text that every Python installation contains, as parquet shards.

It consists of the language reference (`pydoc_data.topics`) and the docstrings of the standard library. A Python version
always gives the same shards. Another version has other text, so losses are comparable within one version only.
"""

import ast
import json
import os
import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from nanogka.common.files import base_dir, build_once, read_json, sha256_of
from nanogka.data.docstrings import SKIPPED_FOLDERS, Section, assemble, merge_small, module_name, module_sections
from nanogka.data.permutation import hash_text
from nanogka.data.sharding import write_shards

FORMAT = 2  # raise when the same Python version would give other documents
VAL_SHARE = 0.1
ROW_GROUP = 128


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
        found.extend((package, text) for text in assemble(sections, seen))
    return merge_small(found)


def library() -> Path:
    """The folder of Python's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def _topic_sections() -> Iterator[tuple[str, list[Section]]]:
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


def _library_sections() -> Iterator[tuple[str, list[Section]]]:
    """The docstrings of each module, in order of path."""
    root = library()
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = sorted(name for name in subfolders if name not in SKIPPED_FOLDERS)
        for file in sorted(files):
            # Files that a distributor or a platform's build writes would make two installations differ.
            if file.startswith(("_sysconfigdata", "sitecustomize", "usercustomize")):
                continue
            path = Path(folder, file)
            parts = path.relative_to(root).parts
            if module := module_name("/".join(parts)):
                package = parts[0].removesuffix(".py")
                yield package, module_sections(path.read_bytes(), module, ast.unparse)
