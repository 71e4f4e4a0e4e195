"""A full epoch of the corpus under NANOGKA_TEST_DATA: each document's tokens exactly once, whatever the ranks.

`test_loader` says the same of a small corpus, in a second.
"""

import itertools
import json
import os
from pathlib import Path

import numpy as np
import pytest

from nanogka.data import PackingLoader, merge_states, open_corpus
from nanogka.data.order import hash_text

SPAN = 1 << 20  # ids of one document: document × SPAN + position


class NumberingTokenizer:
    """Every four characters are a token whose id says of which document it is and where; id 0 is the document token."""

    bos_id = 0
    fingerprint = "numbering"

    def __init__(self, texts) -> None:
        self.numbers, self.lengths = {}, []
        for text in texts:
            assert self.numbers.setdefault(hash_text(text), len(self.lengths)) == len(self.lengths), "a double document"
            self.lengths.append(-(-len(text) // 4))

    def encode_arrays(self, texts, pool):
        numbers = [self.numbers[hash_text(text)] for text in texts]
        return [(1 + number) * SPAN + np.arange(self.lengths[number]) for number in numbers]


@pytest.fixture(scope="module")
def everything(real_corpus):
    return NumberingTokenizer(real_corpus.documents("train"))


@pytest.fixture(scope="module")
def real_corpus():
    folder = Path(os.environ.get("NANOGKA_TEST_DATA", "")) / "corpus"
    if "NANOGKA_TEST_DATA" not in os.environ or not folder.is_dir():
        pytest.skip("NANOGKA_TEST_DATA names no folder with corpus/ in it")
    return open_corpus(folder)


def rows_and_state(corpus, tokenizer, world_size: int, n: int | None = None, state: dict | None = None):
    """(ids that are no document tokens, the merged state, the loaders' stats) of `n` steps, or of all to the end."""
    found, states, stats = [], [], []
    for rank in range(world_size):
        options = {"batch_size": 8, "sequence_len": 2047, "seed": 5, "epochs": 1, "num_threads": 1, "state": state}
        with PackingLoader(corpus, "train", tokenizer, rank=rank, world_size=world_size, **options) as loader:
            for batch in itertools.islice(loader, n):
                ids = np.concatenate([batch.inputs.numpy().ravel(), batch.targets[:, -1].numpy()])
                found.append(ids[ids != 0])
            states.append(batch.state)
            stats.append(loader.stats)
    return np.concatenate(found), json.loads(json.dumps(merge_states(states))), stats


def assert_once(corpus, tokenizer, used: np.ndarray, state: dict) -> None:
    blocks = corpus.blocks("train")
    end = np.array(tokenizer.lengths)  # of each document, where what was used of it ends
    for row, offset in (pair for stream in state["streams"].values() for pair in stream["buffer"]):
        block = blocks.of_row(row)
        text = corpus.read("train", block, [row - int(blocks.starts[block])])[0]
        number = tokenizer.numbers[hash_text(text)]
        assert end[number] == tokenizer.lengths[number], "a document waits twice"
        end[number] = offset
    used.sort()
    assert len(used) == end.sum()
    assert (np.diff(used) > 0).all(), "a token twice"
    assert np.array_equal(np.bincount(used // SPAN - 1, minlength=len(end)), end)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [(1,), (2,), (3,), (1, 2), (2, 3, 1)])
def test_each_token_of_the_real_corpus_once_in_an_epoch_also_across_changes_of_ranks(real_corpus, everything, ranks):
    used, state = [], None
    for world_size in ranks[:-1]:
        some, state, _ = rows_and_state(real_corpus, everything, world_size, 100, state)
        used.append(some)
    rest, state, stats = rows_and_state(real_corpus, everything, ranks[-1], None, state)
    assert_once(real_corpus, everything, np.concatenate([*used, rest]), state)
    rows = sum(one["rows"] for one in stats)
    assert sum(one["dropped_tokens"] for one in stats) == 0
    tokens, dropped = sum(one["document_tokens"] for one in stats), sum(one["dropped_tokens"] for one in stats)
    filled = len(np.concatenate(used + [rest])) / (2048 * rows)
    print(f"ranks {ranks}: {rows:,} rows, packing efficiency {filled:.2%}, dropped {dropped / tokens:.2%}")
