"""Draw a terminal log as an animated SVG, one line after the other: `python docs/terminal_svg.py LOG OUT.svg`.

The pictures follow the reader's light or dark mode. Viewers without animation show the whole log.
"""

import html
import sys
from pathlib import Path

LINE, CHAR, PAD, SECONDS = 19, 7.85, 14, 0.55  # pixels per line and character, margin, time between lines
STYLE = """
  text { font: 13px ui-monospace, "DejaVu Sans Mono", Consolas, monospace; fill: #1c1c1c; white-space: pre; }
  rect { fill: #f6f8fa; } .step { fill: #0065bd; font-weight: bold; } .ask { fill: #8a5a00; }
  text { animation: show .01s linear both; } @keyframes show { from { opacity: 0; } to { opacity: 1; } }
  @media (prefers-color-scheme: dark) {
    rect { fill: #16181c; } text { fill: #e6e6e6; } .step { fill: #5cb0ff; } .ask { fill: #e8b35c; }
  }
"""


def draw(lines: list[str]) -> str:
    """The SVG of the lines; `==` starts a step, `>` a question."""
    width = PAD * 2 + CHAR * max(map(len, lines))
    height = PAD * 2 + LINE * len(lines)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}">']
    parts += [f"<style>{STYLE}</style>", f'<rect width="100%" height="{height}" rx="8"/>']
    for number, line in enumerate(lines):
        kind = "step" if line.startswith(("==", "$")) else "ask" if line.startswith(">") else ""
        place = f'x="{PAD}" y="{PAD + LINE * number + 14}" style="animation-delay: {SECONDS * number:.2f}s"'
        parts.append(f'<text class="{kind}" {place}>{html.escape(line)}</text>')
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    log, out = map(Path, sys.argv[1:3])
    out.write_text(draw(log.read_text(encoding="utf-8").rstrip("\n").split("\n")), encoding="utf-8")
