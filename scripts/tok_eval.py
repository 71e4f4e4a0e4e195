"""Measure how many bytes per token a tokenizer reaches.

    python -m scripts.tok_eval
    python -m scripts.tok_eval --tokenizer fineweb --data ~/fineweb

The texts are samples of several kinds and the splits of a corpus. With `--json`, or if stdout is a file or pipe, the
last line is one JSON document. The exit code is 1 if encoding and decoding changes any text.
"""

import sys
from dataclasses import dataclass

from nanogka.common.cli import command, flag, json_flag, print_json
from nanogka.common.errors import Errors
from nanogka.data import open_corpus
from nanogka.data.tokenizing import compression_table
from nanogka.tokenizer import Tokenizer, tokenizer_folder


@dataclass(frozen=True)
class TokenizerEvalSettings:
    """Settings."""

    tokenizer: str = flag("default", "name under NANOGKA_BASE_DIR/tokenizers, or the path of a folder (with a slash)")
    data: str = flag("embedded", "corpus to measure as well, in the format of --data of tok_train, or 'none'")
    max_chars: int = flag(10_000_000, "maximum number of characters to measure per split", ge=1)
    json: bool = json_flag()


def evaluate(settings: TokenizerEvalSettings, errors: Errors) -> int:
    tokenizer = errors.capture(lambda: Tokenizer.load(tokenizer_folder(settings.tokenizer)))
    corpus = None if settings.data == "none" else errors.capture(lambda: open_corpus(settings.data))
    errors.raise_if_any()
    print(f"tokenizer {settings.tokenizer}: {tokenizer.vocab_size:,} ids, fingerprint {tokenizer.fingerprint[:12]}")
    rows = compression_table(tokenizer, corpus, settings.max_chars)
    print(f"{'text':<20} {'bytes':>12} {'tokens':>12} {'bytes/token':>12}  round trip")
    for row in rows:
        survived = "ok" if row.round_trip else "CHANGED"
        print(f"{row.kind:<20} {row.bytes:>12,} {row.tokens:>12,} {row.bytes_per_token:>12.2f}  {survived}")
    document = {
        "vocab_size": tokenizer.vocab_size,
        "fingerprint": tokenizer.fingerprint,
        "bytes_per_token": {row.kind: round(row.bytes_per_token, 4) for row in rows},
    }
    print_json(document, settings.json)
    return 0 if all(row.round_trip for row in rows) else 1


main = command("tok_eval", TokenizerEvalSettings, evaluate, __doc__)

if __name__ == "__main__":
    sys.exit(main())
