"""Turns a corpus into tokens once, so that training reads them by memory mapping.

    python -m scripts.pretokenize --data ~/corpora/mine --tokenizer mine

The folder it makes is given to --data in the corpus' place, and yields exactly the same batches. Broken off and called
again, it goes on where it was; the folder appears when it is complete.
"""

import argparse
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from nanogka.cli import add_flags, flag, from_flags
from nanogka.data import Corpus, open_corpus
from nanogka.data.pretokenized import TokenCorpus, pretokenize
from nanogka.cli import run_script
from nanogka.problems import Problems
from nanogka.runtime import base_dir
from nanogka.tokenizer import Tokenizer, tokenizer_folder


@dataclass(frozen=True)
class PretokenizeSettings:
    """What is read and what is written; each field is a flag."""

    data: str = flag("embedded", "corpus: embedded, a folder of shards, .txt or .jsonl files, or one such file")
    tokenizer: str = flag("default", "name of the tokenizer, or its folder")
    out: str = flag("", "folder to make (default: NANOGKA_BASE_DIR/tokens/CORPUS-TOKENIZER)")
    threads: int | None = flag(None, "threads that tokenise (default: one a core, at most 8)")

    @property
    def folder(self) -> Path:
        if self.out:
            return Path(self.out).expanduser()
        return base_dir() / "tokens" / f"{Path(self.data).name}-{Path(self.tokenizer).name}"


def check(settings: PretokenizeSettings, problems: Problems) -> tuple[Corpus, Tokenizer]:
    """Opens corpus and tokenizer. Raises SettingsError with everything that does not fit."""
    problems.check(
        settings.threads is None or settings.threads >= 1, "--threads", settings.threads, "an integer of at least 1"
    )
    there = settings.folder.exists()
    problems.check(not there, "--out", str(settings.folder), "a folder that is not there yet")
    opened = []
    for attempt in (
        lambda: open_corpus(settings.data),
        lambda: Tokenizer.load(tokenizer_folder(settings.tokenizer)),
    ):
        try:
            opened.append(attempt())
        except ValueError as error:
            problems.collect(error)
    if opened and isinstance(opened[0], TokenCorpus):
        problems.check(False, "--data", settings.data, "a corpus of text; this one is pretokenised already")
    problems.raise_any()
    return opened[0], opened[1]


def run(args: argparse.Namespace) -> None:
    """Checks the arguments, writes, prints."""
    problems = Problems()
    settings = from_flags(PretokenizeSettings, args, problems)
    corpus, tokenizer = check(settings, problems)
    print(corpus.describe())
    rows = sum(int(corpus.blocks(split)[0].sum()) for split in ("train", "val"))
    done = 0
    began = time.perf_counter()
    with tqdm(total=rows, unit="rows", unit_scale=True, disable=None) as bar:

        def progress(rows: int, tokens: int) -> None:
            nonlocal done
            done += tokens
            bar.update(rows)

        made = pretokenize(corpus, tokenizer, settings.folder, num_threads=settings.threads, progress=progress)
    seconds = time.perf_counter() - began
    size = sum(file.stat().st_size for file in settings.folder.rglob("*") if file.is_file())
    print(made.describe())
    print(f"{done:,} tokens in {seconds:.1f} s ({done / seconds:,.0f} tokens/s), {size / 1e6:,.1f} MB on the disk")
    print(f"{shutil.disk_usage(settings.folder).free / 1e9:,.1f} GB free; --data {settings.folder} reads them")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(
        prog="pretokenize", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_flags(p, PretokenizeSettings)
    return p


def main(argv: list[str] | None = None) -> int:
    """Runs the script; returns the exit code."""
    args = parser().parse_args(argv)
    return run_script(lambda: run(args), "pretokenize")


if __name__ == "__main__":
    sys.exit(main())
