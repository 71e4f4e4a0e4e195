"""FineWeb-Edu for a run that starts before all of it is there: how many shards, in which order, who fetches them."""

import json
from pathlib import Path

import yaml

from nanogka.data.arriving import ArrivingCorpus, open_arriving
from nanogka.data.corpus import FINEWEB, fineweb_folder
from nanogka.data.fineweb import shards_needed
from nanogka.data.order import permutation
from nanogka.distributed import Ranks
from nanogka.problems import SettingsError
from nanogka.train.checkpoint import STATE
from nanogka.train.horizon import Horizon
from nanogka.train.settings import TrainSettings


def open_fineweb(settings: TrainSettings, horizon: Horizon, ranks: Ranks, resume_from: Path | None) -> ArrivingCorpus:
    """The planned shards, of which those that are missing are fetched by the first process of each node.

    Returns once the validation shard is there.

    Raises:
        ValueError: if they cannot be fetched, or if `resume_from` was trained on others.
    """
    shards = settings.shards or shards_needed(horizon.tokens)
    if ranks.is_main:
        print(f"data: {shards} shards of FineWeb-Edu; what is missing of them is fetched meanwhile", flush=True)
    order = wanted_first(shards, settings.seed, resume_from)
    corpus = open_arriving(fineweb_folder(), shards, order, fetches=ranks.local_rank == 0)
    try:
        _refuse_other_shards(corpus, resume_from)
    except ValueError:
        corpus.close()
        raise
    return corpus


def wanted_first(shards: int, seed: int, resume_from: Path | None) -> list[int]:
    """The numbers of the shards in the order in which the loader will ask for them, from where a checkpoint stands."""
    epoch = at = 0
    if resume_from is not None:
        streams = json.loads((resume_from / STATE).read_text())["loader"]["streams"].values()
        epoch, at = min((stream["epoch"], stream["shard"]) for stream in streams)
    order = permutation(shards, seed, epoch).tolist()
    at = max(0, at - 1)  # documents of the shard before may still be waiting in the buffers
    return order[at:] + order[:at]


def _refuse_other_shards(corpus: ArrivingCorpus, resume_from: Path | None) -> None:
    if resume_from is None:
        return
    folder = resume_from.parents[1]
    saved = yaml.safe_load((folder / "config.yaml").read_text()).get("run", {}).get("corpus")
    if saved is not None and saved != corpus.fingerprint:
        raise SettingsError(
            f"--data: got {FINEWEB!r} with {corpus.planned} shards ({corpus.fingerprint[:12]}…), takes what {folder} "
            f"was trained with ({saved[:12]}…): other text, another number of --shards, or the hub has changed them"
        )
