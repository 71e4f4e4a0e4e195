"""Plot a run's attention heads and write an interactive attention page.

    python -m scripts.visualize                                          the latest run on its validation text
    python -m scripts.visualize --run d4-gaussian --prompt "The with statement"
    python -m scripts.visualize --run d3-successor-chat --prompt "How do you spell banana?"    with the model's reply
    python -m scripts.visualize --run d4-gaussian --compare d4-dot_product --text-file notes.txt

Writes figures and a self-contained index.html to the folder `visualization` of the run and prints the page's path. See
docs/visualization.md.
"""

import sys
from dataclasses import dataclass

from nanogka.common.cli import WhichRun, command, flag
from nanogka.common.errors import Errors
from nanogka.common.files import expand_path
from nanogka.common.files import read_text as read_file
from nanogka.common.formatting import one_line
from nanogka.web.page import is_made_from


@dataclass(frozen=True)
class Settings(WhichRun):
    """Settings."""

    compare: str | None = flag(None, "tag or folder of a second run to show next to it")
    prompt: str | None = flag(None, "text for the model to read; a chat model replies to it", short="p")
    text_file: str | None = flag(None, "UTF-8 file with the text for the model to read")
    passage: int = flag(0, "without a text: index of the validation document to read, from 0", ge=0)
    tokens: int = flag(256, "maximum number of tokens to read", ge=1)
    token: int | None = flag(
        None, "position selected when the page opens (default: where a head looks back most clearly)"
    )
    output: str | None = flag(None, "output folder (default: `visualization` in the run's folder)")
    overwrite: bool = flag(False, "rebuild the page even if nothing has changed")
    device: str = flag("auto", "device: auto, cpu, cuda, cuda:N or mps")


def given_text(settings: Settings, errors: Errors) -> str | None:
    """Return the text from --text-file or --prompt, or None."""
    if settings.text_file is not None:
        try:
            text = read_file(expand_path(settings.text_file))
        except (OSError, ValueError) as error:
            errors.extend(ValueError(f"--text-file: {error}"))
            return None
        errors.require(text != "", "--text-file", settings.text_file, "a file that is not empty")
        return text
    if settings.prompt is not None:
        errors.require(settings.prompt != "", "--prompt", "", "at least one character")
    return settings.prompt


def body(settings: Settings, errors: Errors) -> None:
    """Capture each model on the text, draw the figures, print the page's path."""
    from nanogka.common.runtime import pick_device
    from nanogka.runs import Run, find_run, load_run
    from nanogka.visualize.run import FOLDER, PAGE, key_of, read_text, validation_passage, visualize

    both = settings.prompt is not None and settings.text_file is not None
    errors.require(not both, "--text-file", settings.text_file, "only one of --prompt and --text-file")
    device = errors.capture(lambda: pick_device(settings.device)) or "cpu"
    runs = [errors.capture(lambda: load_run(settings.run, device, settings.step))]
    if settings.compare is not None:
        other = errors.capture(lambda: find_run(settings.compare, flag="--compare"))
        runs.append(errors.capture(lambda: Run.open(other).load(device)) if other else None)
    text = given_text(settings, errors)
    errors.raise_if_any()
    text, private = (text, False) if text is not None else validation_passage(runs[0], settings.passage)
    folder = runs[0].folder / FOLDER if settings.output is None else expand_path(settings.output)
    key = key_of(runs, text, settings.tokens, settings.token)
    if not settings.overwrite and is_made_from(folder / PAGE, key):
        print(one_line(f"page exists already: {folder / PAGE} (--overwrite draws it again)"))
        return
    traced = [read_text(run, text, settings.tokens) for run in runs]
    length, token = len(traced[0].captured.ids), settings.token
    errors.require(token is None or 0 <= token < length, "--token", token, f"a position from 0 to {length - 1}")
    errors.raise_if_any()
    for trace in traced:
        if trace.is_cut:
            print(f"{trace.run.tag}: read the first {len(trace.captured.ids):,} tokens; the text is longer")
    print(one_line(f"page: {visualize(traced, folder, token, key, private and settings.output is None)}"))


main = command("visualize", Settings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
