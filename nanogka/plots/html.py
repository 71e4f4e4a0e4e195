"""Write a report as Markdown and as one self-contained HTML file."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML

from nanogka.common.files import atomic_write
from nanogka.common.formatting import as_started
from nanogka.web.page import document

STYLE = """
body { max-width: 66rem; padding: 1rem 1.5rem 3rem; font-size: 15px; }
h1 { font-size: 1.6rem; line-height: 1.25; }
h2 { margin-top: 2.2rem; border-bottom: 1px solid var(--line); }
p:has(img) { overflow-x: auto; }
img { max-width: 100%; min-width: 40rem; } /* a phone scrolls a figure sideways instead of making it unreadable */
th code { white-space: nowrap; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto; }
td, th { padding: .2rem .7rem; border-bottom: 1px solid var(--line); }
td:first-child { min-width: 8rem; }
thead:not(:has(th:not(:empty))) { display: none; } /* a table without headings */
td[style*="right"] { white-space: nowrap; } /* numbers and their intervals */
pre { padding: .6rem .8rem; background: var(--raised); white-space: pre-wrap; overflow-wrap: anywhere; }
a { color: var(--accent); }
"""


def write_document(path: Path, sections: Sequence[str], title: str, made_from: str = "") -> Path:
    """Write Markdown sections to `path` and the HTML page next to it. Paths of figures are relative to the folder.

    `made_from` is a hash of what the document was made from.
    """
    text = as_started("\n\n".join(sections) + "\n")
    atomic_write(path, text)
    atomic_write(path.with_suffix(".html"), html_page(text, title, path.parent, made_from))
    return path


def dark_twin(path: Path) -> Path:
    """Return the path of the dark version of a figure."""
    return path.with_stem(f"{path.stem}-dark")


def html_page(markdown: str, title: str, folder: Path, made_from: str = "") -> str:
    """Convert Markdown to an HTML page. HTML in the text is escaped.

    Image paths are relative to `folder`. An image with a dark twin changes with the color scheme. Only PNG files in
    this folder are embedded, so that a label or a sample cannot pull other files into the page.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    assert isinstance(parser.renderer, RendererHTML)  # the default
    rules: dict[str, Any] = parser.renderer.rules
    plain = rules["image"]

    def embedded(path: Path) -> str | None:
        path = path.resolve()
        if path.suffix == ".png" and path.is_relative_to(folder.resolve()) and path.is_file():
            return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"
        return None

    def image(tokens, index, options, env):
        path = folder / tokens[index].attrs["src"]
        if not (light := embedded(path)):
            return plain(tokens, index, options, env)
        tokens[index].attrs["src"] = light
        element = plain(tokens, index, options, env)
        if not (dark := embedded(dark_twin(path))):
            return element
        return f'<picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">{element}</picture>'

    rules["image"] = image
    return document(title, parser.render(markdown), STYLE, made_from=made_from)
