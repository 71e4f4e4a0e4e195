"""Write a report as Markdown and as one self-contained HTML file."""

import base64
import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML

from nanogka.common.files import atomic_write
from nanogka.common.formatting import as_started
from nanogka.common.pages import mark_of

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
{mark}
<style>
:root {{ color-scheme: light dark; }}
body {{ max-width: 62rem; margin: 0 auto; padding: 1rem 1.5rem; font: 15px/1.5 system-ui, sans-serif; }}
h2 {{ margin-top: 2rem; border-bottom: 1px solid #8885; }}
p:has(img) {{ overflow-x: auto; }}
img {{ max-width: 100%; min-width: 40rem; }} /* a phone scrolls a figure sideways instead of making it unreadable */
th code {{ white-space: nowrap; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto; }}
td, th {{ padding: .2rem .7rem; border-bottom: 1px solid #8885; }}
pre {{ padding: .6rem .8rem; background: #8882; white-space: pre-wrap; overflow-wrap: anywhere; }}
</style>
</head>
<body>
{body}</body>
</html>
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
    return PAGE.format(title=html.escape(title), mark=mark_of(made_from), body=parser.render(markdown))
