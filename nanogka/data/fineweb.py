"""FineWeb-Edu, shuffled and in nanochat's format, from the Hugging Face hub.

A shard is about 250 million characters, 50 million tokens, 100 MB.
"""

import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from nanogka.common.files import first_line, sha256_of
from nanogka.data.corpus import Corpus, fineweb_folder, read_manifest, write_manifest

REPO = "karpathy/fineweb-edu-100b-shuffle"
TRAINING_SHARDS = 1822
VALIDATION = f"shard_{TRAINING_SHARDS:05d}.parquet"  # the repository's last

# A shard holds about 250 million characters, and the tokenizer makes a token of about 4.8 of them.
TOKENS_PER_SHARD = 50_000_000
TOKENIZER_SHARDS = 8  # for training the tokenizer

WORKERS = 4  # downloads at the same time
PAUSES = (1, 10, 60)  # seconds before further attempts
LOCK = ".fetch.lock"


def shard_names(n: int) -> list[str]:
    return [VALIDATION, *(f"shard_{i:05d}.parquet" for i in range(n))]


def shards_needed(tokens: int) -> int:
    """The number of training shards that hold `tokens`, with a tenth to spare, and suffice for the tokenizer."""
    return min(TRAINING_SHARDS, max(TOKENIZER_SHARDS, math.ceil(1.1 * tokens / TOKENS_PER_SHARD)))


def open_fineweb(shards: int, folder: Path | None = None) -> Corpus:
    """The corpus of the first `shards` training shards, whichever others have been fetched as well."""
    folder = folder or fineweb_folder()
    return Corpus(folder, [folder / name for name in shard_names(shards)])


def fetch_fineweb(
    shards: int,
    folder: Path | None = None,
    *,
    workers: int = WORKERS,
    endpoint: str = "",  # HF_ENDPOINT, or the public hub
    verify: bool = False,
    log: Callable[[str], None] = print,
) -> None:
    """Fetch the missing ones of the first `shards` training shards and the validation shard.

    With `verify` the sha256 of those that are there is compared. OSError, with a line per shard, if any is missing.
    """
    folder = folder or fineweb_folder()
    folder.mkdir(parents=True, exist_ok=True)
    names = shard_names(shards)
    with FileLock(folder / LOCK):  # every rank calls this: one fetches, the others then find everything
        manifest = read_manifest(folder) or {}
        files = manifest.get("files", {})
        for name in names:
            if name in files and not _matches(folder / name, files[name], verify):
                log(f"{name}: missing or damaged, fetching it again")
                (folder / name).unlink(missing_ok=True)
                del files[name]
        if missing := [name for name in names if name not in files]:
            log(f"fetching {len(missing)} of {len(names)} shards of {REPO} into {folder}")
            errors = _download(missing, folder, files, workers, endpoint)
            if errors:
                there = sum(name in files for name in names)
                raise OSError("\n".join([*errors[:10], f"{there} of {len(names)} ok in {folder}"]))


def _matches(path: Path, record: dict, read: bool) -> bool:
    if not path.is_file() or path.stat().st_size != record.get("size"):
        return False
    return not read or sha256_of(path) == record.get("sha256")


def _download(names: list[str], folder: Path, files: dict[str, dict], workers: int, endpoint: str) -> list[str]:
    """Download `names`, add them to `files` and the manifest, and return a line for each one that failed."""
    import huggingface_hub  # slow to import, and needed for downloads only

    hub = huggingface_hub.HfApi(endpoint=endpoint.rstrip("/") or None)
    try:
        info = hub.dataset_info(REPO, files_metadata=True)
        lfs = {file.rfilename: file.lfs for file in info.siblings or [] if file.lfs is not None}
        found = {name: {"size": lfs[name].size, "sha256": lfs[name].sha256} for name in names if name in lfs}
        needed = sum(record["size"] for name, record in found.items() if not (folder / name).exists())
        if needed > (free := shutil.disk_usage(folder).free):
            raise OSError(f"{needed / 1e9:.1f} GB to fetch and {free / 1e9:.1f} GB free in {folder}")
        about = {"validation": VALIDATION, "source": f"{hub.endpoint}/datasets/{REPO}", "revision": info.sha}
        write_manifest(folder, **about, files=files)  # first: an unfinished folder must not validate on another shard
        place = {"repo_type": "dataset", "revision": info.sha, "local_dir": folder, "max_workers": workers}
        _persist(lambda: hub.snapshot_download(REPO, allow_patterns=list(found), **place))
    except Exception as error:  # the errors of the library and its HTTP client have no common type
        raise OSError(f"{REPO}: could not be fetched from {hub.endpoint}: {first_line(error)}") from error
    errors = [f"{name}: {REPO} has no such file" for name in names if name not in found]
    for name, record in found.items():
        if _matches(folder / name, record, read=True):
            files[name] = record
        else:
            (folder / name).unlink(missing_ok=True)
            errors.append(f"{name}: came with other content than the hub states; run the command again")
    write_manifest(folder, **about, files=dict(sorted(files.items())))
    return errors


def _persist(download: Callable[[], object]) -> None:
    """Call `download` until it succeeds: the library itself tries again after broken connections, but not after 503."""
    for pause in PAUSES:
        try:
            download()
            return
        except Exception:  # the last attempt raises it
            time.sleep(pause)
    download()
