"""Fetch FineWeb-Edu, shuffled and in nanochat's format, from the Hugging Face hub.

    python -m scripts.fetch -n 240             240 training shards and the validation shard, about 24 GB
    python -m scripts.fetch -n 240 --verify    read all shards again and fetch the damaged ones again

A shard has about 250 million characters, 50 million tokens, 100 MB. A second call fetches only missing shards, and
needs no network if there are none. `--data fineweb-edu` then names the corpus.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from nanogka.common.cli import command, flag
from nanogka.common.errors import Errors
from nanogka.data.corpus import fineweb_folder
from nanogka.data.fineweb import TRAINING_SHARDS, WORKERS, fetch_fineweb


@dataclass(frozen=True)
class Settings:
    """Settings."""

    shards: int = flag(8, "training shards; the validation shard is one more", short="n", ge=1, le=TRAINING_SHARDS)
    out: str = flag("", "folder to fetch into (default: NANOGKA_BASE_DIR/corpora/fineweb-edu)")
    verify: bool = flag(False, "read every shard on the disk again, and fetch the damaged ones again")
    workers: int = flag(WORKERS, "downloads at the same time", ge=1)
    endpoint: str = flag("", "address of the hub or of a mirror (default: HF_ENDPOINT, or the public hub)")


def body(settings: Settings, errors: Errors) -> None:
    """Fetch what is missing."""
    web = not settings.endpoint or settings.endpoint.startswith(("http://", "https://"))
    errors.require(web, "--endpoint", settings.endpoint, "an address that begins with http:// or https://")
    folder = Path(settings.out).expanduser() if settings.out else fineweb_folder()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    errors.require(existing.is_dir(), "--out", str(folder), "a folder, not a file")
    errors.raise_if_any()
    options = {"workers": settings.workers, "endpoint": settings.endpoint, "verify": settings.verify}
    fetch_fineweb(settings.shards, folder, **options)
    print(f"{settings.shards + 1} of {settings.shards + 1} ok in {folder}")


main = command("fetch", Settings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
