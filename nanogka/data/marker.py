"""`corpus.json`: what a folder of parquet shards says of itself, where a program of ours made it.

Without it the last shard by name is validation. With it the validation shard is the one it names and no other, so that
an unfinished folder is refused rather than read with a training shard for validation.
"""

import json
import os
from pathlib import Path

NAME = "corpus.json"
FORMAT = 1


def read_marker(folder: str | Path) -> dict | None:
    """The content of `folder`'s corpus.json, None if it has none.

    `validation` is the validation shard's name; `files`, where there is one, maps shards that were verified to their
    `size` in bytes and `sha256` (hex), `described` those too that are still to come; `source` says from where.

    Raises:
        ValueError: if it is there but cannot be read.
    """
    path = Path(folder) / NAME
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read ({error}); delete it and fetch or make the corpus again") from None
    known = isinstance(content, dict) and content.get("format") == FORMAT
    if not known or not isinstance(content.get("validation"), str):
        raise ValueError(f"{path}: is no corpus.json of format {FORMAT}, which this version reads")
    return content


def write_marker(folder: str | Path, *, validation: str, source: str, **more: object) -> None:
    """Writes `folder`'s corpus.json, whole or not at all."""
    path = Path(folder) / NAME
    content = {"format": FORMAT, "source": source, "validation": validation, **more}
    partial = path.with_name(f".{NAME}.{os.getpid()}.partial")
    partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, path)
