"""HTML pages: one self-contained file each, whose policy lets its own script run and nothing else.

Every page is `shell.html` with `base.css`, `dark.css` and its own style and body; a page with a script has `base.js`
before it. A mark in its head says what a page was made from.
"""

import base64
import hashlib
import html
import json
import re
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path

from nanogka.common.files import open_regular

HEAD_BYTES = 4096  # of a page: its mark is among them
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def document(title: str, body: str, style: str = "", script: str = "", allow: str = "", made_from: str = "") -> str:
    """A page. `body` is HTML and `title` text. `allow` adds to the policy, such as `connect-src 'self'`.

    `made_from` is a hash of everything that decides the page; see `is_made_from`.
    """
    shared, policy = parts_of("nanogka.web"), [POLICY, *([allow] if allow else [])]
    if script:
        script = shared["base.js"] + script
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy.append(f"script-src 'sha256-{digest}'")
        script = f"<script>{script}</script>\n"
    return fill(
        shared["shell.html"],
        policy="; ".join(policy),
        mark=mark_of(made_from),
        title=html.escape(title),
        style=shared["base.css"] + style,
        dark=shared["dark.css"],
        body=body,
        script=script,
    )


def mark_of(made_from: str) -> str:
    """The element of a page's head that holds `made_from`."""
    return f'<meta name="made-from" content="{html.escape(made_from)}">'


def is_made_from(page: Path, made_from: str) -> bool:
    """True if `page` exists and holds this mark. Never waits, for example for a pipe in another person's run."""
    with suppress(OSError, ValueError), open_regular(page) as file:
        return mark_of(made_from).encode() in file.read(HEAD_BYTES)
    return False


@cache
def parts_of(package: str) -> dict[str, str]:
    """{name: content} of the HTML, CSS and JavaScript files of a package."""
    files = (path for path in resources.files(package).iterdir() if path.name.endswith((".html", ".css", ".js")))
    return {path.name: path.read_text("utf-8") for path in files}


def fill(template: str, **values: str) -> str:
    """`template` with each `{{name}}` replaced. A `{{name}}` in a value stays as it is."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: values[found[1]], template)


def as_data(document: object) -> str:
    """JSON for an element of a page, which a `<` would end."""
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
