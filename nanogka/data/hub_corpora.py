"""Corpora that nanochat's author prepared: shuffled shards on the Hugging Face hub, fetched by name.

A shard has about 250 million characters, which are 50 million tokens and 100 MB. The last shard is validation.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock

from nanogka.common.files import acquire, base_dir, first_line, free_bytes, sha256_of
from nanogka.data.corpus import Corpus, read_manifest, write_manifest

TOKENS_PER_SHARD = 50_000_000  # the tokenizer makes a token of about 4.8 characters
TOKENIZER_SHARDS = 8  # for training the tokenizer

WORKERS = 4  # downloads in parallel
PAUSES = (1, 10, 60)  # seconds before further attempts


@dataclass(frozen=True)
class HubCorpus:
    """A repository of shards."""

    name: str
    repo: str
    training_shards: int

    @property
    def validation(self) -> str:
        """The name of the validation shard, the last one."""
        return f"shard_{self.training_shards:05d}.parquet"

    @property
    def folder(self) -> Path:
        """The folder of the shards."""
        return base_dir() / "corpora" / self.name

    def shards_needed(self, tokens: int) -> int:
        """The number of training shards that hold `tokens`, with a tenth to spare, and suffice for the tokenizer."""
        # A tenth to spare: shards differ in size, tokenizers in compression, and nanochat's packing drops tokens.
        return min(self.training_shards, max(TOKENIZER_SHARDS, math.ceil(1.1 * tokens / TOKENS_PER_SHARD)))

    def open(self, shards: int) -> Corpus:
        """The corpus of the first `shards` training shards, even if others have been fetched as well."""
        return Corpus(self.folder, [self.folder / name for name in self.shard_names(shards)])

    def shard_names(self, shards: int) -> list[str]:
        """The names of the validation shard and the first `shards` training shards."""
        return [self.validation, *(f"shard_{number:05d}.parquet" for number in range(shards))]


HUB_CORPORA = {
    corpus.name: corpus
    for corpus in (
        HubCorpus("fineweb-edu", "karpathy/fineweb-edu-100b-shuffle", 1822),
        HubCorpus("climbmix", "karpathy/climbmix-400b-shuffle", 6542),
    )
}


def fetch_corpus(
    corpus: HubCorpus,
    shards: int,
    *,
    workers: int = WORKERS,
    verify: bool = False,
    log: Callable[[str], None] = print,
) -> None:
    """Fetch the missing ones of the first `shards` training shards and the validation shard.

    With `verify`, the SHA-256 of shards already on disk is checked too. Raises OSError that lists the missing shards.
    """
    folder, names = corpus.folder, corpus.shard_names(shards)
    folder.mkdir(parents=True, exist_ok=True)
    with acquire(
        FileLock(folder / ".fetch.lock")
    ):  # every rank calls this: one fetches, and the others then find everything
        manifest = read_manifest(folder) or {}
        files = manifest.get("files", {})
        for name in names:
            if name in files and not _matches(folder / name, files[name], verify):
                log(f"{name}: missing or damaged, fetching it again")
                (folder / name).unlink(missing_ok=True)
                del files[name]
        if missing := [name for name in names if name not in files]:
            log(f"fetching {len(missing)} of {len(names)} shards of {corpus.repo} into {folder}")
            if errors := _download(corpus, missing, files, workers):
                there = sum(name in files for name in names)
                raise OSError("\n".join([*errors[:10], f"{there} of {len(names)} ok in {folder}"]))


def _matches(path: Path, record: dict, read: bool) -> bool:
    if not path.is_file() or path.stat().st_size != record.get("size"):
        return False
    return not read or sha256_of(path) == record.get("sha256")


def _download(corpus: HubCorpus, names: list[str], files: dict[str, dict], workers: int) -> list[str]:
    """Download `names`, add them to `files` and the manifest, and return a line for each one that failed."""
    import huggingface_hub  # slow to import, and needed for downloads only

    repo, folder, hub = corpus.repo, corpus.folder, huggingface_hub.HfApi()
    try:
        info = hub.dataset_info(repo, files_metadata=True)
        lfs = {file.rfilename: file.lfs for file in info.siblings or [] if file.lfs is not None}
        found = {name: {"size": lfs[name].size, "sha256": lfs[name].sha256} for name in names if name in lfs}
        needed = sum(record["size"] for name, record in found.items() if not (folder / name).exists())
        if needed > (free := free_bytes(folder)):
            raise OSError(f"not enough space in {folder}: needs {needed / 1e9:.1f} GB, has {free / 1e9:.1f} GB free")
        about = {"validation": corpus.validation, "source": f"{hub.endpoint}/datasets/{repo}", "revision": info.sha}
        write_manifest(folder, **about, files=files)  # first: an unfinished folder must not validate on another shard
        place = {"repo_type": "dataset", "revision": info.sha, "local_dir": folder, "max_workers": workers}
        _persist(lambda: hub.snapshot_download(repo, allow_patterns=list(found), **place))
    except Exception as error:  # the errors of the library and its HTTP client have no common type
        raise OSError(f"{repo}: could not be fetched from {hub.endpoint}: {first_line(error)}") from error
    errors = [f"{name}: {repo} has no such file" for name in names if name not in found]
    for name, record in found.items():
        # The library compares sizes only. A damaged shard would end a training days later.
        if _matches(folder / name, record, read=True):
            files[name] = record
        else:
            (folder / name).unlink(missing_ok=True)
            errors.append(f"{name}: its SHA-256 is not the hub's; run the command again")
    write_manifest(folder, **about, files=dict(sorted(files.items())))
    return errors


def _persist(download: Callable[[], object]) -> None:
    """Call `download` until it succeeds. The library itself retries after broken connections, but not after 503."""
    for pause in PAUSES:
        try:
            download()
            return
        except Exception:  # the last attempt raises it
            time.sleep(pause)
    download()
