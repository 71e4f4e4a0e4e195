"""The report as one HTML file: Markdown made HTML, its figures held in it, nothing fetched."""

import base64
import html
from pathlib import Path

from markdown_it import MarkdownIt

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ max-width: 62rem; margin: 0 auto; padding: 1rem 1.5rem; font: 15px/1.5 system-ui, sans-serif; }}
h2 {{ margin-top: 2rem; border-bottom: 1px solid #8885; }}
img {{ max-width: 100%; background: #fff; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; display: block; overflow-x: auto; }}
td, th {{ padding: .2rem .7rem; border-bottom: 1px solid #8885; }}
pre {{ padding: .6rem .8rem; background: #8882; white-space: pre-wrap; overflow-wrap: anywhere; }}
</style>
</head>
<body>
{body}</body>
</html>
"""


def html_page(markdown: str, title: str, folder: Path) -> str:
    """Markdown as a page of HTML; markup in the text is shown as text.

    Args:
        folder: that paths of images (PNG) are relative to; those that are there become part of the page.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    plain = parser.renderer.rules["image"]

    def image(tokens, index, options, env):
        path = folder / tokens[index].attrs["src"]
        if path.is_file():
            data = base64.b64encode(path.read_bytes()).decode()
            tokens[index].attrs["src"] = f"data:image/png;base64,{data}"
        return plain(tokens, index, options, env)

    parser.renderer.rules["image"] = image
    return PAGE.format(title=html.escape(title), body=parser.render(markdown))
