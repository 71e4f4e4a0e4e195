"""Record the lines of this project that run, in order, with the shapes of the tensors that pass.

`record` traces the calling thread while it is open. A line counts once, where it ran first. The result is a `Walk`,
which `write_page` shows as one HTML page. `scripts.trace` has the walks that docs/architecture.md quotes.
"""

import html
import linecache
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

import torch

from nanogka.common.files import atomic_write
from nanogka.web.page import document

ROOT = Path(__file__).parents[1]
UNSEEN = (__file__, f"{ROOT}/scripts/trace.py")  # what prepares a walk is not part of it
FOLDERS = tuple(f"{ROOT / name}/" for name in ("nanogka", "scripts", "tasks"))


@dataclass
class Line:
    """A line that ran: its file below the root, number, function, and the tensors that it made."""

    file: str
    number: int
    function: str
    tensors: dict[str, str] = field(default_factory=dict)

    @property
    def source(self) -> str:
        """The text of the line."""
        return linecache.getline(str(ROOT / self.file), self.number).rstrip()


class Walk:
    """The lines that ran, in the order in which each ran first."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, int], Line] = {}
        # What each running frame held before its last line: to see what the line has changed.
        self._frames: dict[FrameType, tuple[Line, dict[str, int]]] = {}
        self.open = True  # False: what runs now does not count

    @property
    def files(self) -> list[str]:
        """The files of the lines, in order."""
        return list(dict.fromkeys(line.file for line in self.lines.values()))

    def _follow(self, frame: FrameType, event: str, argument: object):
        """Trace function of a frame: called before each line, and when the frame returns."""
        before = self._frames.pop(frame, None)
        if before is not None:
            line, held = before
            for name, value in frame.f_locals.items():
                if isinstance(value, torch.Tensor) and held.get(name) != id(value):
                    dtype = str(value.dtype).removeprefix("torch.")
                    line.tensors.setdefault(name, f"{tuple(value.shape)} {dtype}")
        if event == "line" and self.open:
            place = frame.f_code.co_filename.removeprefix(f"{ROOT}/"), frame.f_lineno
            function = getattr(frame.f_code, "co_qualname", frame.f_code.co_name)  # qualified from Python 3.11 on
            line = self.lines.setdefault(place, Line(*place, function))
            tensors = {k: id(v) for k, v in frame.f_locals.items() if isinstance(v, torch.Tensor)}
            self._frames[frame] = line, tensors
        return self._follow

    def start(self, frame: FrameType, event: str, argument: object):
        """Trace function of the thread: called when a frame begins."""
        own = frame.f_code.co_filename.startswith(FOLDERS) and frame.f_code.co_filename not in UNSEEN
        return self._follow if own and not is_import(frame.f_code) else None


def is_import(code: CodeType) -> bool:
    """True for the body of a module, which runs once however often its functions do, and of a class."""
    return code.co_name == "<module>" or not code.co_flags & 0x02  # CO_NEWLOCALS: functions alone


@contextmanager
def record() -> Iterator[Walk]:
    """Record until the block ends. Functions that are running already are not followed, only those that begin."""
    walk, before = Walk(), sys.gettrace()
    sys.settrace(walk.start)
    try:
        yield walk
    finally:
        sys.settrace(before)
        walk.open = False


STYLE = """
body { max-width: 76rem; padding: 1rem 1.5rem; font-size: 15px; }
h2 { margin: 1.4rem 0 .2rem; font-size: 1rem; }
h2 span, td:first-child { color: var(--faint); font-weight: 400; }
table { border-collapse: collapse; width: 100%; font: 12.5px/1.5 var(--mono); }
td { padding: 0 .6rem; vertical-align: top; }
td:first-child { text-align: right; width: 3rem; }
td:nth-child(2) { white-space: pre-wrap; direction: ltr; }
td:last-child { color: var(--accent); text-align: right; }
"""


def write_page(walk: Walk, title: str, path: Path) -> None:
    """Write the lines as a page: one table per stay in a function, with the tensors that a line made at its right."""
    blocks: list[str] = []
    last = None
    for line in walk.lines.values():
        if (line.file, line.function) != last:
            blocks += ["</table>"] if last else []
            last = line.file, line.function
            blocks.append(f"<h2>{html.escape(line.function)} <span>{html.escape(line.file)}</span></h2><table>")
        made = "<br>".join(html.escape(f"{name} {shape}") for name, shape in line.tensors.items())
        blocks.append(f"<tr><td>{line.number}</td><td>{html.escape(line.source)}</td><td>{made}</td></tr>")
    blocks += ["</table>"] if last else []
    summary = f"{len(walk.lines)} lines in {len(walk.files)} files, in the order in which each line ran first."
    body = f"<h1>{html.escape(title)}</h1>\n<p>{summary}</p>\n" + "\n".join(blocks)
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, document(title, body, STYLE))
