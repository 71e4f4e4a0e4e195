"""HTML pages: a template is filled in, one script may run, and a mark says what a page was made from."""

import base64
import hashlib
import html
import json
import re
from contextlib import suppress
from importlib import resources
from pathlib import Path

HEAD_CHARS = 4096  # of a page: its mark is among them


def mark_of(made_from: str) -> str:
    """The element of a page's head that holds `made_from`, a hash of everything that decides the page."""
    return f'<meta name="made-from" content="{html.escape(made_from)}">'


def is_made_from(page: Path, made_from: str) -> bool:
    """Whether `page` exists and holds this mark."""
    with suppress(OSError), page.open(encoding="utf-8", errors="replace") as file:
        return mark_of(made_from) in file.read(HEAD_CHARS)
    return False


def parts_of(package: str) -> dict[str, str]:
    """{name: content} of the files of a page."""
    files = (path for path in resources.files(package).iterdir() if path.name.endswith((".html", ".css", ".js")))
    return {path.name: path.read_text("utf-8") for path in files}


def fill(template: str, script: str = "", **values: str) -> str:
    """`template` with each `{{name}}` replaced. Its policy names the hash of `script`, so that no other script runs."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    values |= {"script": script, "digest": digest}
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], template)


def as_data(document: object) -> str:
    """JSON for an element of a page, which a `<` would end."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
