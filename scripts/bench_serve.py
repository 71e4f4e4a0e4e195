"""Measure the throughput of a server that runs (scripts.serve): the same requests, one and many at a time.

    python -m scripts.bench_serve --url http://127.0.0.1:8000 --concurrency 1,8,32 --requests 32 --max-tokens 64

Prints a table and, last, the same as one JSON document. What is sent: `nanogka.bench.serve`.
"""

import json
import sys
from dataclasses import dataclass
from urllib.parse import urlsplit

from nanogka.bench.serve import documents, measure_load, table
from nanogka.cli import flag, run
from nanogka.problems import Problems


@dataclass(frozen=True)
class Settings:
    """The flags."""

    url: str = flag("http://127.0.0.1:8000", "the server")
    api_key: str = flag("", "if it has one")
    concurrency: str = flag("1,32", "requests at a time, with commas between")
    requests: int = flag(32, "requests of each measurement")
    max_tokens: int = flag(64, "tokens of each")


def body(settings: Settings, problems: Problems) -> None:
    """Measure one concurrency after the other."""
    counts = [part.strip() for part in settings.concurrency.split(",")]
    fine = all(part.isdecimal() and int(part) >= 1 for part in counts)
    problems.check(fine, "--concurrency", settings.concurrency, "integers of at least 1, with commas between")
    for name in ("requests", "max_tokens"):
        value = getattr(settings, name)
        problems.check(value >= 1, f"--{name.replace('_', '-')}", value, "an integer of at least 1")
    parts = urlsplit(settings.url)
    problems.check(parts.scheme == "http" and bool(parts.hostname), "--url", settings.url, "http://HOST:PORT")
    problems.raise_any()
    options = settings.requests, settings.max_tokens, settings.api_key
    loads = [measure_load(settings.url, int(count), *options) for count in counts]
    print(table(loads))
    print(json.dumps(documents(loads)))


def main(argv: list[str] | None = None) -> int:
    """Run the script; returns the exit code."""
    return run(Settings, body, "bench_serve", __doc__, argv)


if __name__ == "__main__":
    sys.exit(main())
