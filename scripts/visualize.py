"""Draw what a run's heads learned, and a page on which to ask where a token looks. See docs/visualization.md.

    python -m scripts.visualize                                          the run trained last, its validation text
    python -m scripts.visualize --run d4-gaussian --prompt "The with statement"
    python -m scripts.visualize --run d4-gaussian --compare d4-dot_product --text-file notes.txt

Writes figures and index.html, which needs no network, to the folder visualization of the run's, and prints its path.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from nanogka.common.cli import command, flag
from nanogka.common.errors import Errors
from nanogka.common.files import read_text as read_file
from nanogka.common.formatting import one_line


@dataclass(frozen=True)
class Settings:
    """Settings."""

    run: str | None = flag(None, "a run's tag or folder (default: the run trained last)")
    compare: str | None = flag(None, "tag or folder of a run to stand beside it on the page")
    step: int | None = flag(None, "which checkpoint of --run (default: the newest that verifies)")
    prompt: str | None = flag(None, "the text that the model reads", short="p")
    text_file: str | None = flag(None, "a UTF-8 file with the text that the model reads")
    passage: int = flag(0, "without a text: number of a document of the validation text, from 0", ge=0)
    tokens: int = flag(256, "number of the text's first tokens that are read", ge=1)
    token: int | None = flag(None, "position that is chosen when the page opens (default: the last)")
    svg: bool = flag(False, "write the figures as SVG too")
    output: str | None = flag(None, "folder to write to (default: visualization in the run's)")
    device: str = flag("auto", "where the model runs: auto, cpu, cuda, cuda:N or mps")


def given_text(settings: Settings, errors: Errors) -> str | None:
    """The text in the flags, if any."""
    if settings.text_file is not None:
        try:
            text = read_file(Path(settings.text_file).expanduser())
        except (OSError, ValueError) as error:
            errors.extend(ValueError(f"--text-file: {error}"))
            return None
        errors.require(text != "", "--text-file", settings.text_file, "a file that is not empty")
        return text
    if settings.prompt is not None:
        errors.require(settings.prompt != "", "--prompt", "", "at least one character")
    return settings.prompt


def body(settings: Settings, errors: Errors) -> None:
    """Read the text with each model, draw, print the page's path."""
    from nanogka.common.runtime import pick_device
    from nanogka.runs import load_run
    from nanogka.visualize.run import FOLDER, read_text, validation_passage, visualize

    both = settings.prompt is not None and settings.text_file is not None
    errors.require(not both, "--text-file", settings.text_file, "no file beside --prompt")
    device = errors.capture(lambda: pick_device(settings.device)) or "cpu"
    runs = [errors.capture(lambda: load_run(settings.run, device, settings.step))]
    if settings.compare is not None:
        runs.append(errors.capture(lambda: load_run(settings.compare, device), renamed={"--run": "--compare"}))
    text = given_text(settings, errors)
    errors.raise_if_any()
    text = validation_passage(runs[0], settings.passage) if text is None else text
    traced = [read_text(run, text, settings.tokens) for run in runs]
    length = len(traced[0].captured.ids)
    token = length - 1 if settings.token is None else settings.token
    errors.require(0 <= token < length, "--token", token, f"a position from 0 to {length - 1}")
    errors.raise_if_any()
    for trace in traced:
        if trace.cut:
            print(f"{trace.run.tag}: the first {len(trace.captured.ids):,} tokens, {trace.cut:,} are left out")
    folder = traced[0].run.folder / FOLDER if settings.output is None else Path(settings.output).expanduser()
    print(one_line(f"page: {visualize(traced, folder, token, ('png', 'svg') if settings.svg else ('png',))}"))


main = command("visualize", Settings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
