"""How well a tokenizer compresses: bytes per token on several kinds of text and on a corpus.

    python -m scripts.tok_eval
    python -m scripts.tok_eval --tokenizer fineweb --data ~/fineweb

The last line is the same as one JSON document.
"""

import argparse
import json
import sys

from nanogka.data import compression_table, format_table, open_corpus
from nanogka.cli import run_script
from nanogka.problems import Problems
from nanogka.tokenizer import Tokenizer, tokenizer_folder


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(
        prog="tok_eval", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument(
        "--tokenizer",
        default="default",
        help="name under NANOGKA_BASE_DIR/tokenizers, or the path of a folder, with a slash (default: %(default)s)",
    )
    p.add_argument(
        "--data",
        default="embedded",
        help="corpus whose splits are measured as well: 'embedded', a folder of parquet shards or of .txt / .jsonl"
        " files, or 'none' (default: %(default)s)",
    )
    p.add_argument(
        "--max-chars", type=int, default=10_000_000, help="characters of each split at most (default: %(default)s)"
    )
    return p


def evaluate(args: argparse.Namespace) -> int:
    """Checks the arguments, measures, prints; 1 if any text did not survive the round trip."""
    problems = Problems()
    problems.check(args.max_chars >= 1, "--max-chars", args.max_chars, "an integer of at least 1")
    tokenizer = corpus = None
    try:
        tokenizer = Tokenizer.load(tokenizer_folder(args.tokenizer))
    except ValueError as error:
        problems.collect(error)
    try:
        corpus = None if args.data == "none" else open_corpus(args.data)
    except ValueError as error:
        problems.collect(error)
    problems.raise_any()

    print(f"tokenizer {args.tokenizer}: {tokenizer.vocab_size:,} ids, fingerprint {tokenizer.fingerprint[:12]}")
    rows = compression_table(tokenizer, corpus, args.max_chars)
    print(format_table(rows))
    document = {
        "vocab_size": tokenizer.vocab_size,
        "fingerprint": tokenizer.fingerprint,
        "bytes_per_token": {row.kind: round(row.bytes_per_token, 4) for row in rows},
    }
    print(json.dumps(document))
    return 0 if all(row.round_trip for row in rows) else 1


def main(argv: list[str] | None = None) -> int:
    """Runs the script; returns the exit code."""
    args = parser().parse_args(argv)
    return run_script(lambda: evaluate(args), "tok_eval")


if __name__ == "__main__":
    sys.exit(main())
