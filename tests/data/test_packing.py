"""The packer against a slow one that looks at every piece."""

import random
from functools import partial

import numpy as np
import pytest

from nanogka.data.packing import PACKINGS, Packer

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
        while len(row) < row_len:
            room = row_len - len(row)
            refill(room)
            fitting = [piece for piece in waiting if len(piece) <= room]
            if fitting:
                piece = max(fitting, key=len)  # the first, hence the oldest, of the longest
                del waiting[next(i for i, other in enumerate(waiting) if other is piece)]
                row += piece
            elif packing == "bestfit" and room == 1:
                row.append(BOS)
            else:
                piece = (max if packing == "bestfit" else min)(waiting, key=len)
                del waiting[next(i for i, other in enumerate(waiting) if other is piece)]
                row += piece[:room]
                if packing == "bestfit":
                    waiting.append([BOS, *piece[room:]])
                else:
                    dropped += len(piece) - room
        rows.append(row)
    return rows, dropped


def packed_rows(documents: list[np.ndarray], row_len: int, packing: str, buffered: int) -> tuple[list, Packer]:
    packer, source = Packer(row_len, BOS, packing), list(enumerate(documents))

    def refill(needed: int) -> bool:
        while source and (len(packer) < buffered or packer.tokens < needed):
            document, tokens = source.pop(0)
            packer.add(document, 0, tokens)
        return packer.tokens >= needed

    rows = []
    while (row := packer.fill(refill)) is not None:
        rows.append(row)
    return rows, packer


def ragged(seed: int, n: int = 60, longest: int = 90) -> list[np.ndarray]:
    rng = random.Random(seed)
    lengths = [rng.choice([rng.randrange(1, 6), rng.randrange(1, longest)]) for _ in range(n)]
    return [1 + i * 1000 + np.arange(length) for i, length in enumerate(lengths)]


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("row_len", [2, 3, 17, 64, 300])
@pytest.mark.parametrize("buffered", [1, 9, 1000])
def test_rows_equal_those_of_a_naive_packer(packing, row_len, buffered):
    for seed in range(4):
        documents = ragged(seed)
        rows, packer = packed_rows(documents, row_len, packing, buffered)
        wanted, dropped = naive_rows(documents, row_len, packing, buffered)
        assert [row.tolist() for row in rows] == wanted
        assert packer.dropped == dropped


@pytest.mark.parametrize("row_len", [2, 17, 64])
def test_bestfit_uses_every_token_once_and_in_order(row_len):
    documents = ragged(5)
    rows, packer = packed_rows(documents, row_len, "bestfit", 10)
    used = np.concatenate(rows)
    assert all(len(row) == row_len and row[0] == BOS for row in rows)
    used = used[used != BOS]
    assert packer.tokens < row_len
    assert len(np.unique(used)) == len(used)
    waiting = dict(packer.buffer())
    for i, tokens in enumerate(documents):
        mine = used[(used - 1) // 1000 == i]
        assert mine.tolist() == tokens[: waiting.get(i, len(tokens))].tolist()


def test_a_packer_restored_from_its_buffer_goes_on_alike():
    documents = ragged(6, n=40)
    one, two = (Packer(33, BOS, "bestfit") for _ in range(2))
    for i, tokens in enumerate(documents):
        one.add(i, 0, tokens)

    def enough(packer: Packer, needed: int) -> bool:
        return packer.tokens >= needed

    for _ in range(9):
        one.fill(partial(enough, one))
    for document, offset in one.buffer():
        two.add(document, offset, documents[document][offset:])
    while (row := one.fill(partial(enough, one))) is not None:
        assert row.tolist() == two.fill(partial(enough, two)).tolist()
    assert two.fill(partial(enough, two)) is None


def test_a_row_says_which_documents_are_in_it():
    packer = Packer(8, 0, "bestfit")
    for document, n in ((5, 3), (6, 2), (9, 12)):
        packer.add(document, 0, np.full(n, 100 + document))
    for _ in range(2):
        row = packer.fill(lambda needed: packer.tokens >= needed)
        assert {int(token) - 100 for token in row if token} == set(packer.placed)
