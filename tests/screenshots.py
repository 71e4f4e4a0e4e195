"""Take README's pictures of a model's page in Chromium: a chat and the heads, in light and dark.

    python tests/screenshots.py RUN [FOLDER]     writes page.png and page-dark.png to FOLDER (default: docs/images)

RUN is the tag or folder of a finished chat run. The model answers `MESSAGES` without sampling.
"""

import base64
import io
import json
import sys
import tempfile
import time
from pathlib import Path

from browser import CHROMIUM, Browser
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))

from nanogka.common.files import atomic_write  # noqa: E402
from nanogka.page.build import build_page  # noqa: E402
from nanogka.runs import load_run  # noqa: E402

WIDTH, HEIGHT = 1280, 960  # three layers of heads
LARGEST = 150_000  # bytes
COLORS = 256  # a palette makes the file a third as large
MESSAGES = ("Hi, my name is Ada.", "How many r are in strawberry?", "What is 12.5 * 8?")
IDLE = "Boolean(shown) && !busy && !stale && !writing"


def until(browser: Browser, script: str) -> None:
    """Wait until an expression is true."""
    while not browser.evaluate(script):
        time.sleep(0.1)


def picture(browser: Browser) -> bytes:
    """What the window shows, as a PNG with a palette."""
    png = base64.b64decode(browser.call("Page.captureScreenshot", format="png")["data"])
    few = Image.open(io.BytesIO(png)).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE)
    out = io.BytesIO()
    few.save(out, "PNG", optimize=True)
    if len(out.getvalue()) > LARGEST:
        raise ValueError(f"picture: got {len(out.getvalue()):,} bytes, expected at most {LARGEST:,}")
    return out.getvalue()


def take(browser: Browser, page: Path, scheme: str) -> bytes:
    """Open a page in a color scheme, send it the messages and photograph it."""
    scheme_only = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.call("Emulation.setEmulatedMedia", features=scheme_only)
    browser.call("Emulation.setDeviceMetricsOverride", width=WIDTH, height=HEIGHT, deviceScaleFactor=1, mobile=True)
    browser.open(page)
    until(browser, f"typeof shown !== 'undefined' && {IDLE}")
    browser.evaluate("$('temperature').value = 0; showTemperature()")
    for message in MESSAGES:
        browser.evaluate(f"$('draft').value = {json.dumps(message)}; write()")
        until(browser, IDLE)
    browser.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    return picture(browser)


def main() -> None:
    """Build the page of the run, photograph it twice."""
    if CHROMIUM is None:
        sys.exit("screenshots: Chromium is missing")
    run, folder = load_run(sys.argv[1]), Path(sys.argv[2] if len(sys.argv) > 2 else "docs/images")
    if run.kind != "chat":
        sys.exit(f"screenshots: got {run.tag}, a {run.kind} model, expected a chat model")
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch, "model.html")
        page.write_text(build_page(run, questions=run.examples).html, encoding="utf-8")
        browser = Browser(Path(scratch, "profile"))
        try:
            for scheme, name in (("light", "page.png"), ("dark", "page-dark.png")):
                content = take(browser, page, scheme)
                atomic_write(folder / name, content)
                print(f"{folder / name}: {len(content):,} bytes")
        finally:
            browser.close()


if __name__ == "__main__":
    main()
