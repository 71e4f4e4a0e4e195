"""Draw what a run's heads learned, and a page on which to ask where a token looks. See docs/visualization.md.

    python -m scripts.visualize                                          the run trained last, its validation text
    python -m scripts.visualize --run d4-gaussian --prompt "The with statement"
    python -m scripts.visualize --run d4-gaussian --compare d4-dot_product --text-file notes.txt

Writes figures and index.html, which needs no network, to the folder visualization of the run's, and prints its path.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from nanogka.cli import flag, run
from nanogka.formatting import one_line
from nanogka.problems import Problems
from nanogka.runs import LoadedRun, load_run
from nanogka.runtime import pick_device
from nanogka.visualize.run import FOLDER, read_text, validation_passage, visualize


@dataclass(frozen=True)
class Settings:
    """The flags."""

    run: str | None = flag(None, "a run's tag or folder (default: the run trained last)")
    compare: str | None = flag(None, "tag or folder of a run to stand beside it on the page")
    step: int | None = flag(None, "which checkpoint of --run (default: the newest sound one)")
    prompt: str | None = flag(None, "the text", short="p")
    text_file: str | None = flag(None, "a file with the text")
    passage: int = flag(0, "without either: the number of a document of the validation text, from 0")
    tokens: int = flag(256, "read so many tokens of the text at most")
    token: int | None = flag(None, "position whose attention is drawn over the text (default: the last)")
    svg: bool = flag(False, "write the figures as SVG too")
    output: str | None = flag(None, f"folder to write to (default: {FOLDER} in the run's)")
    device: str = flag("auto", "auto, cpu, cuda, cuda:N or mps")


def open_run(
    name: str, given: str | None, step: int | None, settings: Settings, problems: Problems
) -> LoadedRun | None:
    """The run that the flag `name` asks for, in float32."""
    try:
        return load_run(given, pick_device(settings.device), step)
    except ValueError as error:
        problems.collect(ValueError(str(error).replace("--run:", f"{name}:")))
        return None


def chosen_text(settings: Settings, run: LoadedRun | None, problems: Problems) -> str | None:
    """The text that the flags ask for."""
    if settings.text_file is not None:
        path = Path(settings.text_file).expanduser()
        if problems.check(path.is_file(), "--text-file", settings.text_file, "a file of text in UTF-8"):
            text = problems.attempt(lambda: path.read_text(encoding="utf-8"))
            problems.check(text != "", "--text-file", settings.text_file, "a file that is not empty")
            return text
        return None
    if settings.prompt is not None:
        problems.check(settings.prompt != "", "--prompt", "", "at least one character")
        return settings.prompt
    return None if run is None else problems.attempt(lambda: validation_passage(run, settings.passage))


def body(settings: Settings, problems: Problems) -> None:
    """Read the text with each model, draw, print the page's path."""
    both = settings.prompt is not None and settings.text_file is not None
    problems.check(not both, "--text-file", settings.text_file, "no file beside --prompt")
    problems.check(settings.tokens >= 1, "--tokens", settings.tokens, "an integer of at least 1")
    problems.check(settings.passage >= 0, "--passage", settings.passage, "an integer of at least 0")
    runs = [open_run("--run", settings.run, settings.step, settings, problems)]
    if settings.compare is not None:
        runs.append(open_run("--compare", settings.compare, None, settings, problems))
    text = chosen_text(settings, runs[0], problems)
    problems.raise_any()
    subjects = [read_text(run, text, settings.tokens) for run in runs]
    length = len(subjects[0].captured.ids)
    token = length - 1 if settings.token is None else settings.token
    problems.check(0 <= token < length, "--token", token, f"a position from 0 to {length - 1}")
    problems.raise_any()
    for subject in subjects:
        if subject.cut:
            print(f"{subject.tag}: the first {len(subject.captured.ids):,} tokens, {subject.cut:,} are left out")
    folder = subjects[0].run.folder / FOLDER if settings.output is None else Path(settings.output).expanduser()
    print(one_line(f"page: {visualize(subjects, folder, token, ('png', 'svg') if settings.svg else ('png',))}"))


def main(argv: list[str] | None = None) -> int:
    """Visualise one run, or two."""
    return run(Settings, body, "visualize", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
