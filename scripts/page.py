"""Write a trained model as one HTML file that runs in any browser, offline.

    python -m scripts.page                                               the latest run, to model.html in its folder
    python -m scripts.page --run d3-successor-chat --out model.html

The page has the weights, the tokenizer and the network. See docs/page.md, and docs/lesson.md for exercises with it.
"""

import sys
from dataclasses import dataclass

from nanogka.common.cli import command, flag
from nanogka.common.errors import Errors
from nanogka.common.files import expand_path
from nanogka.common.formatting import byte_size, one_line

FILE = "model.html"  # in the run's folder


@dataclass(frozen=True)
class Settings:
    """Settings."""

    run: str | None = flag(None, "tag or folder of a run (default: the latest run)")
    step: int | None = flag(None, "checkpoint step of --run (default: the newest valid one)", ge=0)
    out: str | None = flag(None, "HTML file to write (default: `model.html` in the run's folder)")
    weights: str = flag(
        "auto",
        "rounding of the matrices; auto: float16 for pages up to 2 MB, else int8",
        choices=("auto", "int8", "float16", "float32"),
    )
    text: str | None = flag(None, "text that the page opens with (default: repeated sentences)")
    own_questions: bool = flag(False, "offer questions of your own conversations; every reader of the page sees them")


def body(settings: Settings, errors: Errors) -> None:
    """Load the run, write the page, print its path, its size and what the rounding changes."""
    from nanogka.common.files import atomic_write
    from nanogka.page.build import TEXT, build_page
    from nanogka.runs import load_run
    from tasks.chat_data import questions_to_show

    errors.require(settings.text != "", "--text", "", "at least one character")
    run = errors.capture(lambda: load_run(settings.run, step=settings.step))
    out = None if settings.out is None else expand_path(settings.out)
    errors.require(out is None or not out.is_dir(), "--out", settings.out, "a file, not a folder")
    errors.raise_if_any()
    questions, about = questions_to_show(run, settings.own_questions)
    page = errors.capture(lambda: build_page(run, settings.weights, settings.text or TEXT, questions))
    errors.raise_if_any()
    out = out or run.folder / FILE
    out.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(out, page.html)
    size = byte_size(len(page.html.encode()))
    changed = f"logits by at most {page.largest_difference:.3g}, the loss by {page.loss_difference:+.2g} nats per token"
    if run.kind == "chat":
        print(one_line(f"questions on the page: {about}"))
    print(f"weights: {page.weights}; on the page's text the rounding changes {changed}")
    print(one_line(f"page: {out} ({size})"))


main = command("page", Settings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
