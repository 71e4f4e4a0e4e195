"""Measures the packing loader, and plain tiktoken on the same text.

    python -m scripts.bench_loader --data ~/corpora/mine --tokenizer mine

The last line is one JSON document. "per core" divides by processor time, all threads together: the wall clock shows
what this machine gives now, the processor's what one idle core would.
"""

import json
import sys
from dataclasses import asdict, dataclass

from nanogka.bench.loader import cores, measure_loader, measure_tiktoken, table
from nanogka.cli import flag, flag_name, run
from nanogka.data import PACKINGS, open_corpus
from nanogka.problems import Problems
from nanogka.runtime import cpu_name
from nanogka.tokenizer import Tokenizer, tokenizer_folder


@dataclass(frozen=True)
class BenchSettings:
    """Settings; each field is a flag."""

    data: str = flag("embedded", "corpus: embedded, a folder of shards, .txt or .jsonl files, or one such file")
    tokenizer: str = flag("default", "name of the tokenizer, or its folder")
    tokens: int = flag(10_000_000, "tokens to measure")
    threads: int | None = flag(None, "threads that tokenise (default: one per core)")
    batch_size: int = flag(16, "rows per batch")
    sequence_len: int = flag(2048, "tokens per row")
    packing: str = flag("bestfit", "how rows are filled", PACKINGS)


def bench(settings: BenchSettings, problems: Problems) -> None:
    """Check the settings, measure, print."""
    for name in ("tokens", "threads", "batch_size", "sequence_len"):
        value = getattr(settings, name)
        problems.check(value is None or value >= 1, flag_name(name), value, "an integer of at least 1")
    corpus = problems.attempt(lambda: open_corpus(settings.data))
    tokenizer = problems.attempt(lambda: Tokenizer.load(tokenizer_folder(settings.tokenizer)))
    problems.raise_any()
    threads = settings.threads or cores()
    print(corpus.describe())
    print(f"{cpu_name()}, {cores()} cores, {threads} threads\n")
    options = {name: getattr(settings, name) for name in ("batch_size", "sequence_len", "packing")}
    rows = [
        measure_tiktoken(corpus, tokenizer, settings.tokens, threads),
        measure_loader(corpus, tokenizer, settings.tokens, threads, **options),
    ]
    print(*table(rows), sep="\n", end="\n\n")
    speeds = ("tokens_per_second", "tokens_per_core_second")
    results = [asdict(row) | {name: round(getattr(row, name)) for name in speeds} for row in rows]
    about = {"cpu": cpu_name(), "cores": cores(), "settings": asdict(settings), "threads": threads}
    print(json.dumps({**about, "results": results}))


def main(argv: list[str] | None = None) -> int:
    """Run the script; return the exit code."""
    return run(BenchSettings, bench, "bench_loader", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
