"""Measures the packing loader: from text, from pretokenised shards, and plain tiktoken on the same text.

    python -m scripts.bench_loader --data ~/corpora/mine --tokenizer mine

The last line is one JSON document. "per core" divides by processor time, all threads together: the wall clock shows
what this machine gives now, the processor's what one idle core would.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from nanogka.bench.loader import as_json, cores, format_table, measure_loader, measure_tiktoken
from nanogka.cli import add_flags, flag, from_flags, run_script
from nanogka.data import PACKINGS, Corpus, open_corpus
from nanogka.data.pretokenized import TokenCorpus, pretokenize
from nanogka.problems import Problems
from nanogka.runtime import cpu_name
from nanogka.tokenizer import Tokenizer, tokenizer_folder


@dataclass(frozen=True)
class BenchSettings:
    """What is measured; each field is a flag."""

    data: str = flag("embedded", "corpus of text: embedded, a folder of shards, .txt or .jsonl files, or one such file")
    tokenizer: str = flag("default", "name of the tokenizer, or its folder")
    pretokenized: str = flag("", "what scripts.pretokenize made of --data (default: made for the moment, then removed)")
    tokens: int = flag(10_000_000, "tokens to measure from text, and ten times as many from pretokenised shards")
    threads: int | None = flag(None, "threads that tokenise (default: one a core)")
    batch_size: int = flag(16, "rows a batch")
    sequence_len: int = flag(2048, "tokens a row")
    packing: str = flag("bestfit", "how rows are filled", PACKINGS)


def check(settings: BenchSettings, problems: Problems) -> tuple[Corpus, Tokenizer, Corpus | None]:
    """Opens what is read. Raises SettingsError with everything that does not fit."""
    for name in ("tokens", "threads", "batch_size", "sequence_len"):
        value = getattr(settings, name)
        fits = value is None or value >= 1
        problems.check(fits, "--" + name.replace("_", "-"), value, "an integer of at least 1")

    corpus = problems.attempt(lambda: open_corpus(settings.data))
    tokenizer = problems.attempt(lambda: Tokenizer.load(tokenizer_folder(settings.tokenizer)))
    problems.check(not isinstance(corpus, TokenCorpus), "--data", settings.data, "text; tokens go to --pretokenized")
    tokens = problems.attempt(lambda: open_corpus(settings.pretokenized)) if settings.pretokenized else None
    if tokens is not None and corpus is not None and tokenizer is not None:
        same = isinstance(tokens, TokenCorpus) and tokens.fingerprint == corpus.fingerprint
        problems.check(same, "--pretokenized", settings.pretokenized, "what scripts.pretokenize made of --data")
        problems.attempt(lambda: tokens.check_tokenizer(tokenizer))
    problems.raise_any()
    return corpus, tokenizer, tokens


def bench(args: argparse.Namespace) -> None:
    """Checks the arguments, measures, prints."""
    problems = Problems()
    settings = from_flags(BenchSettings, args, problems)
    corpus, tokenizer, tokens = check(settings, problems)
    threads = settings.threads or cores()
    print(corpus.describe())
    print(f"{cpu_name()}, {cores()} cores, {threads} threads\n")
    options = {name: getattr(settings, name) for name in ("batch_size", "sequence_len", "packing")}
    with tempfile.TemporaryDirectory(prefix="bench_loader-") as scratch:
        tokens = tokens or pretokenize(corpus, tokenizer, Path(scratch) / "tokens", num_threads=threads)
        rows = [
            measure_tiktoken(corpus, tokenizer, settings.tokens, threads),
            measure_loader("from text", corpus, tokenizer, settings.tokens, threads, **options),
            measure_loader("pretokenised", tokens, tokenizer, 10 * settings.tokens, threads, **options),
        ]
    print(format_table(rows), end="\n\n")
    about = {"cpu": cpu_name(), "cores": cores(), "settings": asdict(settings), "threads": threads}
    print(json.dumps({**about, "results": list(as_json(rows))}))


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(
        prog="bench_loader", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_flags(p, BenchSettings)
    return p


def main(argv: list[str] | None = None) -> int:
    """Runs the script; returns the exit code."""
    args = parser().parse_args(argv)
    return run_script(lambda: bench(args), "bench_loader")


if __name__ == "__main__":
    sys.exit(main())
