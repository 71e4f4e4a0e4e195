"""The loader: each token once, the same from the same seed and state, on any number of ranks, and clear errors."""

import itertools
import json
import random
import threading
import time

import numpy as np
import pytest
import torch

from nanogka.common.distributed import Ranks
from nanogka.data import open_corpus
from nanogka.data.loader import DocumentStream, PackingLoader, StreamSettings, validation_batches
from nanogka.data.packing import PACKINGS, Packer


def some_texts(first: int, n: int, longest: int = 40) -> list[str | None]:
    """Texts for the tracing tokenizer, some null, some blank."""
    rng = np.random.default_rng(first)
    texts: list[str | None] = [f"{first + i}:{rng.integers(1, longest)}" for i in range(n)]
    texts[3], texts[5] = None, " \n"
    return texts


def lengths_of(corpus, split: str) -> dict[int, int]:
    return {int(d): int(n) for d, n in (text.split(":") for text in corpus.documents(split))}


@pytest.fixture
def corpus(tmp_path, write_shards):
    return open_corpus(
        write_shards(tmp_path / "c", some_texts(0, 40), some_texts(100, 33), some_texts(200, 50), some_texts(300, 20))
    )


def load(corpus, tokenizer, split="train", **changes) -> PackingLoader:
    options = {"batch_size": 2, "ranks": None, "state": None, "sequence_len": 15, "seed": 3, **changes}
    loader = [options.pop(name) for name in ("batch_size", "ranks", "state")]
    return PackingLoader(corpus, tokenizer, StreamSettings(split, **options), *loader)


def take(loader: PackingLoader, n: int | None = None) -> list:
    with loader:
        return list(itertools.islice(loader, n))


def rows_of(batches) -> np.ndarray:
    """(rows, T + 1): inputs and the last target; the other targets must be the next inputs."""
    for batch in batches:
        assert batch.inputs.dtype == batch.targets.dtype == torch.int64
        assert torch.equal(batch.inputs[:, 1:], batch.targets[:, :-1])
    return np.concatenate([torch.cat([batch.inputs, batch.targets[:, -1:]], 1).numpy() for batch in batches])


def assert_each_token_once(rows: np.ndarray, waiting: list[tuple[int, int]], lengths: dict[int, int]) -> None:
    """Every token of every document is in `rows` once, but for those from an offset on that still wait."""
    assert (rows[:, 0] == 0).all()
    used = rows[rows != 0]
    assert len(np.unique(used)) == len(used)
    rest = dict(waiting)
    assert len(rest) == len(waiting)
    wanted = [(1 + document) * 100_000 + np.arange(rest.get(document, length)) for document, length in lengths.items()]
    assert np.array_equal(np.sort(used), np.sort(np.concatenate(wanted)))


def waiting_in(state: dict, corpus, split: str = "train") -> list[tuple[int, int]]:
    """(document as the tracing tokenizer names it, offset) of all that the state's buffers hold."""
    texts = [text for block in range(len(corpus.blocks(split).sizes)) for text in corpus.read(split, block)]
    pairs = [pair for stream in state["streams"].values() for pair in stream["buffer"]]
    return [(int(texts[row].split(":")[0]), offset) for row, offset in pairs]


@pytest.mark.parametrize("ranks", [(1, 2), (2, 3), (3, 5), (2, 1, 3)])
def test_kills_and_changes_of_the_number_of_ranks_leave_each_token_of_an_epoch_once(corpus, tracing, ranks):
    seen, state = [], None
    for i, world_size in enumerate(ranks, 1):
        saved = None if i == len(ranks) else 7 - i
        for rank in range(world_size):
            options = {"ranks": Ranks(rank, rank, world_size), "epochs": 1, "state": state}
            # each rank is killed some batches after the checkpoint, and those are lost
            seen.append(take(load(corpus, tracing, **options), saved and saved + 2 * (rank + 1))[:saved])
        state = json.loads(json.dumps(PackingLoader.merge([batches[-1].state for batches in seen[-world_size:]])))
        assert len(json.dumps(state)) < 5000 * max(ranks), "a state holds no text"
    waiting, lengths = waiting_in(state, corpus), lengths_of(corpus, "train")
    assert_each_token_once(np.concatenate([rows_of(batches) for batches in seen]), waiting, lengths)


def test_one_rank_and_two_give_the_same_rows_for_the_same_total_batch(corpus, tracing):
    one = take(load(corpus, tracing, batch_size=16), 6)
    two = [take(load(corpus, tracing, batch_size=8, ranks=Ranks(r, r, 2)), 6) for r in range(2)]
    for alone, *together in zip(one, *two, strict=True):
        assert sorted(rows_of([alone]).tolist()) == sorted(rows_of(together).tolist())


@pytest.mark.parametrize("packing, after", [("bestfit", 1), ("bestfit", 60), ("bos-bestfit-crop", 17)])
def test_a_loader_from_a_state_gives_exactly_the_batches_after_it(corpus, tracing, packing, after):
    batches = take(load(corpus, tracing, packing=packing), after + 40)
    state = json.loads(json.dumps(batches[after - 1].state))
    again = take(load(corpus, tracing, packing=packing, state=state), 40)
    for one, two in zip(batches[after:], again, strict=True):
        assert torch.equal(one.inputs, two.inputs)
        assert torch.equal(one.targets, two.targets)
        assert one.state == two.state


def test_the_seed_decides_the_order_and_epochs_differ(corpus, tracing):
    one, same, other = (rows_of(take(load(corpus, tracing, seed=s), 30)).tolist() for s in (1, 1, 2))
    assert one == same != other
    n = len(rows_of(take(load(corpus, tracing, epochs=1))))
    rows = rows_of(take(load(corpus, tracing, epochs=2))).tolist()
    assert rows[: n // 2] != rows[n : n + n // 2]


def test_each_epoch_of_a_stream_has_the_documents_in_another_order(corpus, tracing):
    settings = StreamSettings("train", 15, shuffle=True, n_streams=1, buffer_documents=1)
    documents = DocumentStream(corpus, tracing, 0, settings).packer.documents
    first, second = ([next(documents)[0] for _ in lengths_of(corpus, "train")] for _ in range(2))
    assert sorted(first) == sorted(second)
    assert first != second


def test_validation_is_one_pass_in_fixed_order_on_every_call(corpus, tracing):
    options = {"batch_size": 4, "sequence_len": 15}
    first = list(validation_batches(corpus, tracing, **options))
    second = list(validation_batches(corpus, tracing, **options))
    assert len(first) > 2
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(first, second, strict=True))
    assert_each_token_once(rows_of(first), waiting_in(first[-1].state, corpus, "val"), lengths_of(corpus, "val"))


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("max_tokens", [None, 13 * 15, 3 * 15])
def test_validation_rows_do_not_depend_on_ranks_or_batch(corpus, tracing, packing, max_tokens):
    def rows(world_size, batch_size):
        found = []
        for rank in range(world_size):
            shape = {"batch_size": batch_size, "sequence_len": 15, "max_tokens": max_tokens, "split": "train"}
            found += validation_batches(corpus, tracing, **shape, packing=packing, ranks=Ranks(rank, 0, world_size))
        return sorted(rows_of(found).tolist())

    one = rows(1, 4)
    assert len(one) == (max_tokens // 15 if max_tokens else len(one)) >= 3
    for world_size, batch_size in ((1, 1), (3, 2), (12, 4)):
        assert rows(world_size, batch_size) == one


def test_a_validation_split_of_less_than_a_row_per_stream_is_one_stream(tmp_path, write_shards, tracing):
    corpus = open_corpus(write_shards(tmp_path / "c", ["0:9"] * 9, [f"{1 + i}:9" for i in range(9)]))
    batches = list(validation_batches(corpus, tracing, batch_size=4, sequence_len=29))
    assert len(rows_of(batches)) == 3  # 9 documents of 10 tokens


@pytest.mark.parametrize("packing", PACKINGS)
def test_documents_skipped_rows_and_dropped_tokens_are_counted(corpus, tracing, packing):
    lengths = lengths_of(corpus, "train")
    with load(corpus, tracing, epochs=1, packing=packing) as loader:
        batches = list(loader)
        progress = loader.progress
    counts = [stream["counts"] for stream in batches[-1].state["streams"].values()]
    waiting = sum(lengths[d] - offset for d, offset in waiting_in(batches[-1].state, corpus))
    dropped = sum(lengths.values()) - (rows_of(batches) != 0).sum() - waiting
    assert (dropped > 0) == (packing == "bos-bestfit-crop")
    assert {name: sum(each[name] for each in counts) for name in counts[0]} == {
        "rows": len(rows_of(batches)),
        "documents": len(lengths),
        "skipped": 6,
        "document_tokens": sum(lengths.values()),
        "dropped_tokens": dropped,
    }
    assert progress == {"epoch": 0, "dropped_share": pytest.approx(dropped / sum(lengths.values()))}


def test_a_corpus_smaller_than_a_row_goes_round_and_a_split_without_text_or_a_full_row_is_an_error(
    tmp_path, write_shards, tracing
):
    tiny = open_corpus(write_shards(tmp_path / "t", ["1:5", "2:3"], ["3:4"]))
    with load(tiny, tracing, sequence_len=50) as loader:
        rows = rows_of(list(itertools.islice(loader, 10)))
        assert loader.progress["epoch"] > 5
    assert {int(i) // 100_000 - 1 for i in rows[rows != 0]} == {1, 2}
    with pytest.raises(
        ValueError, match="data: got .*, whose val split has 5 tokens .* expected at least one row of 15"
    ):
        take(load(tiny, tracing, "val"))
    blank = open_corpus(write_shards(tmp_path / "b", [None, "", "  "], ["3:4"]))
    with pytest.raises(ValueError, match="the train split of .* has no text at all"):
        take(load(blank, tracing), 1)


def test_a_state_of_another_run_and_too_many_ranks_are_refused(corpus, tracing, tmp_path, write_shards):
    with pytest.raises(ValueError, match="^world_size: "):
        load(corpus, tracing, ranks=Ranks(0, 0, 4), n_streams=3)
    (batch,) = take(load(corpus, tracing), 1)
    other = open_corpus(write_shards(tmp_path / "o", *[some_texts(i, 90) for i in (400, 500, 600, 700)]))
    for name, corpus_now, changes in (("seed", corpus, {"seed": 4}), ("corpus", other, {})):
        with pytest.raises(ValueError, match=f"^loader state: {name}: "):
            load(corpus_now, tracing, state=batch.state, **changes)


def test_an_error_in_the_thread_reaches_the_consumer(corpus, tracing):
    def fail(texts):
        raise OSError("the disk is gone")

    tracing.encode_batch = fail
    with load(corpus, tracing) as loader:
        with pytest.raises(OSError, match="the disk is gone"):
            next(loader)
        with pytest.raises(StopIteration):
            next(loader)


@pytest.mark.parametrize("end", ["close", "forget"])
def test_closing_or_dropping_a_loader_ends_its_thread(corpus, tracing, end):
    before = threading.active_count()
    loader = load(corpus, tracing)
    next(loader)
    assert threading.active_count() > before
    if end == "close":
        loader.close()
        assert list(loader) == []
    del loader
    deadline = time.monotonic() + 3
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.02)
    assert threading.active_count() == before


# ---- the packer against a slow one that looks at every piece ----

BOS = 0


def naive_rows(documents: list[np.ndarray], row_len: int, packing: str, buffered: int) -> tuple[list[list[int]], int]:
    """The rows and the dropped tokens, by scanning lists in order of arrival."""
    source, waiting, rows, dropped = list(documents), [], [], 0

    def refill(needed: int) -> bool:
        while source and (len(waiting) < buffered or sum(map(len, waiting)) < needed):
            waiting.append([BOS, *source.pop(0)])
        return sum(map(len, waiting)) >= needed

    while refill(row_len):
        row = []
        while remaining := row_len - len(row):
            refill(remaining)
            fitting = [piece for piece in waiting if len(piece) <= remaining]
            if not fitting and packing == "bestfit" and remaining == 1:
                row.append(BOS)
                continue
            # max and min give the first of several, hence the oldest
            piece = max(fitting, key=len) if fitting else (max if packing == "bestfit" else min)(waiting, key=len)
            del waiting[next(i for i, other in enumerate(waiting) if other is piece)]
            row += piece[:remaining]
            if packing == "bestfit" and piece[remaining:]:
                waiting.append([BOS, *piece[remaining:]])
            else:
                dropped += len(piece[remaining:])
        rows.append(row)
    return rows, dropped


def ragged(seed: int, n: int = 60, longest: int = 90) -> list[np.ndarray]:
    rng = random.Random(seed)
    lengths = [rng.choice([rng.randrange(1, 6), rng.randrange(1, longest)]) for _ in range(n)]
    return [1 + i * 1000 + np.arange(length) for i, length in enumerate(lengths)]


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("row_len, buffered", [(2, 9), (17, 1), (17, 1000), (64, 9), (300, 9)])
def test_rows_equal_those_of_a_naive_packer(packing, row_len, buffered):
    for seed in range(3):
        documents = [*ragged(seed), np.arange(1, 3000)]
        packer = Packer(row_len, BOS, packing, enumerate(documents), buffered)
        wanted, dropped = naive_rows(documents, row_len, packing, buffered)
        for row in wanted:
            assert packer.next_row().tolist() == row
        assert packer.next_row() is None
        assert packer.dropped == dropped


@pytest.mark.parametrize("packing", PACKINGS)
def test_the_pieces_of_a_row_name_the_document_of_every_token(corpus, tracing, packing):
    for split in ("train", "val"):
        texts = [text for block in range(len(corpus.blocks(split).sizes)) for text in corpus.read(split, block)]
        for batch in take(load(corpus, tracing, split, packing=packing, epochs=1)):
            assert len(batch.pieces) == len(batch.targets)
            for targets, pieces in zip(batch.targets.tolist(), batch.pieces):
                covered = [0] * len(targets)  # a token that no piece has must be BOS
                for document, first, count in pieces:
                    own = int(texts[document].split(":")[0])
                    covered[first : first + count] = [(1 + own)] * count
                assert [token // 100_000 for token in targets] == covered
