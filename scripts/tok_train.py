"""Trains the byte-level BPE tokenizer on a corpus.

    python -m scripts.tok_train --data embedded --vocab-size 8192
    python -m scripts.tok_train --data ~/fineweb --max-chars 2000000000 --name fineweb

Writes tokenizer.json (which the `tokenizers` library reads as well) and meta.json.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path

from nanogka.data import open_corpus, train_on_corpus
from nanogka.cli import run_script
from nanogka.problems import Problems
from nanogka.tokenizer import DEFAULT_VOCAB_SIZE, MIN_VOCAB_SIZE, tokenizer_folder


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(
        prog="tok_train", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument(
        "--data",
        default="embedded",
        help="corpus to train on (its training split): 'embedded', a folder of parquet shards with a column 'text', or"
        " a folder (or one file) of .txt / .jsonl (default: embedded)",
    )
    p.add_argument(
        "--vocab-size",
        type=int,
        default=DEFAULT_VOCAB_SIZE,
        help=f"ids in all, 256 bytes and the special tokens included, at least {MIN_VOCAB_SIZE}; a small corpus may"
        " give fewer, which is then said (default: %(default)s)",
    )
    p.add_argument(
        "--max-chars", type=int, default=2_000_000_000, help="characters to train on at most (default: %(default)s)"
    )
    p.add_argument(
        "--doc-cap", type=int, default=10_000, help="characters of one document at most (default: %(default)s)"
    )
    where = p.add_mutually_exclusive_group()
    where.add_argument(
        "--name", default="default", help="saved as NANOGKA_BASE_DIR/tokenizers/NAME (default: %(default)s)"
    )
    where.add_argument("--out", type=Path, help="saved in this folder instead")
    return p


def train(args: argparse.Namespace) -> None:
    """Checks the arguments, trains, saves, prints."""
    problems = Problems()
    least = f"an integer of at least {MIN_VOCAB_SIZE}"
    problems.check(args.vocab_size >= MIN_VOCAB_SIZE, "--vocab-size", args.vocab_size, least)
    problems.check(args.max_chars >= 1, "--max-chars", args.max_chars, "an integer of at least 1")
    problems.check(args.doc_cap >= 1, "--doc-cap", args.doc_cap, "an integer of at least 1")
    plain = args.name not in ("", ".", "..") and not set(args.name) & set("/\\")
    problems.check(plain, "--name", args.name, "a name without slashes (--out takes a folder)")
    blocked = args.out is not None and args.out.exists() and not args.out.is_dir()
    problems.check(not blocked, "--out", str(args.out), "a folder, not a file")
    try:
        corpus = open_corpus(args.data)
    except ValueError as error:
        problems.collect(error)
    problems.raise_any()

    print(corpus.describe())
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        tokenizer = train_on_corpus(corpus, args.vocab_size, max_chars=args.max_chars, doc_cap=args.doc_cap)
    for warning in caught:
        print(f"note: {warning.message}")
    folder = args.out or tokenizer_folder(args.name)
    tokenizer.save(folder)
    used = tokenizer.meta["trained_on"]
    print(
        f"{tokenizer.vocab_size:,} ids from {used['documents']:,} documents ({used['bytes'] / 1e6:,.1f} MB)"
        f" in {time.perf_counter() - began:.1f} s, fingerprint {tokenizer.fingerprint[:12]}"
    )
    print(f"saved in {folder}")


def main(argv: list[str] | None = None) -> int:
    """Runs the script; returns the exit code."""
    args = parser().parse_args(argv)
    return run_script(lambda: train(args), "tok_train")


if __name__ == "__main__":
    sys.exit(main())
