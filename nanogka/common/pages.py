"""HTML pages that say what they were made from, so that a finished page is not made again."""

import html
from contextlib import suppress
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
