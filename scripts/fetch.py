"""Download corpora, conversations and evaluation data.

The scripts that need this data would otherwise download it when they run.

    python -m scripts.fetch -n 240             240 training shards of FineWeb-Edu and the validation shard, about 24 GB
    python -m scripts.fetch --data climbmix -n 170
    python -m scripts.fetch -n 240 --verify    reread all shards and fetch damaged ones again
    python -m scripts.fetch -n 0 --bundle --chat-tasks --conversations smoltalk        everything except shards

FineWeb-Edu and ClimbMix come from the Hugging Face hub, shuffled and in nanochat's format. A shard has about 250
million characters or 50 million tokens and takes 100 MB. Later calls fetch only missing shards and need no network if
none are missing. The other scripts read the corpus with `--data fineweb-edu`. HF_ENDPOINT selects a mirror.
"""

import sys
from dataclasses import dataclass

from nanogka.common.cli import command, flag
from nanogka.common.errors import Errors
from nanogka.data.hub_corpora import HUB_CORPORA, WORKERS, fetch_corpus


@dataclass(frozen=True)
class Settings:
    """Settings."""

    data: str = flag("fineweb-edu", "corpus", tuple(HUB_CORPORA))
    shards: int = flag(
        8, "number of training shards, in addition to the validation shard; 0: no shards at all", short="n", ge=0
    )
    bundle: bool = flag(False, "also fetch nanochat's evaluation bundle, for `--eval-bundle download`")
    chat_tasks: bool = flag(False, "also fetch the questions of scripts.chat_eval, for `--eval-bundle hub`")
    conversations: str = flag("", "also fetch these conversations, in the format of --data of scripts.chat_sft")
    tokenizer: str = flag("", "with --conversations: also tokenize them with this tokenizer, for scripts.chat_sft")
    sequence_len: int = flag(2048, "with --tokenizer: context in tokens of the model to train", ge=2)
    verify: bool = flag(False, "reread every shard on the disk and fetch damaged ones again")
    workers: int = flag(WORKERS, "number of parallel downloads", ge=1)


def body(settings: Settings, errors: Errors) -> None:
    """Fetch what is missing, the small things first."""
    corpus = HUB_CORPORA[settings.data]
    available = corpus.training_shards
    errors.require(settings.shards <= available, "--shards", settings.shards, f"at most {available:,}")
    errors.raise_if_any()
    if settings.bundle:
        fetch_bundle()
    if settings.chat_tasks:
        fetch_chat_tasks()
    if settings.conversations:
        fetch_conversations(settings.conversations, settings.tokenizer, settings.sequence_len)
    if settings.shards:
        fetch_corpus(corpus, settings.shards, workers=settings.workers, verify=settings.verify)
        print(f"{settings.shards + 1} of {settings.shards + 1} ok in {corpus.folder}")


def fetch_bundle() -> None:
    """Download the evaluation bundle."""
    from nanogka.evaluate.bundle import find_bundle

    bundle = find_bundle("download", [])
    assert bundle is not None, "it was downloaded, or an error raised"
    print(f"--eval-bundle download: {len(bundle.tasks)} tasks")


def fetch_chat_tasks() -> None:
    """Download the benchmarks of the hub by reading them."""
    from nanogka.data.hub import Hub
    from tasks import BENCHMARKS

    for name, load in BENCHMARKS.items():
        print(f"{name}: {len(load(Hub()).items):,} questions")


def fetch_conversations(mixture: str, tokenizer: str, sequence_len: int) -> None:
    """Download the hub sources of a mixture by opening every source, and keep their tokens if a tokenizer is named."""
    from nanogka.data.chat_tokens import tokenize_source
    from nanogka.data.conversation import ChatFormat
    from nanogka.tokenizer import Tokenizer, tokenizer_folder
    from tasks.chat_data import EMBEDDED, open_source, parse_mixture

    template = ChatFormat(Tokenizer.load(tokenizer_folder(tokenizer))) if tokenizer else None
    for name in {name for name, _ in parse_mixture(mixture)} - {EMBEDDED}:
        source = open_source(name, seed=0)
        if template:
            tokenize_source(source, template, sequence_len + 1)  # a row's last input has a target
        print(f"conversations of {name}: ok")


main = command("fetch", Settings, body, __doc__)

if __name__ == "__main__":
    sys.exit(main())
