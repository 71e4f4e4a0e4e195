"""Benchmark attention, training, decoding, a server or vision models.

    python -m scripts.bench attention --lengths 1024,2048,4096 --window 256
    python -m scripts.bench train --depth 8 --sequence-len 1024
    python -m scripts.bench generate --depth 6 --contexts 256,2048 --batch-sizes 1,16
    python -m scripts.bench serve --url http://127.0.0.1:8000 --concurrency 1,8,32
    python -m scripts.bench vision --size tiny --batches 1,16

`python -m scripts.bench SUBJECT --help` lists the flags of a benchmark. Each prints a table. With `--json`, or if
stdout is a file or pipe, it also prints the results as one line of JSON.
"""

import argparse
import importlib
import sys

from nanogka.common.cli import command
from nanogka.common.formatting import as_started

SUBJECTS = {
    "attention": "nanogka.bench.attention",
    "train": "nanogka.bench.train",
    "generate": "nanogka.bench.generate",
    "serve": "nanogka.bench.serve",
    "vision": "nanogka.bench.vision",
}


def main(argv: list[str] | None = None) -> int:
    """Run one benchmark and return its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if not words or words[0] not in SUBJECTS:
        program, text = as_started("python -m scripts.bench"), as_started(__doc__)
        parser = argparse.ArgumentParser(program, description=text, formatter_class=argparse.RawTextHelpFormatter)
        parser.add_argument("subject", choices=SUBJECTS, help="what to measure")
        parser.parse_args(words[:1])  # prints the help or the error, and exits
    subject, *flags = words
    try:
        module = importlib.import_module(SUBJECTS[subject])
    except ImportError as error:
        if subject != "vision":
            raise
        print(f"bench {subject}: timm is missing: pip install -e '.[vision]' ({error})", file=sys.stderr)
        return 2
    return command(f"bench {subject}", module.Settings, module.bench, module.__doc__ or "")(flags)


if __name__ == "__main__":
    sys.exit(main())
