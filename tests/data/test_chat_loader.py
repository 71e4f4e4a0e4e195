"""Packed conversations: nothing is lost, cut or learned twice as much as its weight says, and resuming is exact."""

import json
import random

import numpy as np
import pytest
import torch

from nanogka.data.chat_loader import ChatLoader, Mixture, inputs_and_targets, validation_rows
from nanogka.data.chat_sources import memory_source
from nanogka.data.chat_tokens import LEARNED, tokenize_source
from nanogka.data.conversation import ChatFormat, Conversation
from nanogka.tokenizer import SPECIAL_TOKENS, Tokenizer

TOKENIZER = Tokenizer([bytes([b]) for b in range(256)], {name: 256 + i for i, name in enumerate(SPECIAL_TOKENS)})
FORM = ChatFormat(TOKENIZER)
BOS = TOKENIZER.bos_id
T = 64


def source(name, count, longest=25, seed=0):
    rng = random.Random(f"{name} {seed}")
    found = [Conversation.of(f"{name}{i} " + "q" * rng.randint(1, longest), "r" * rng.randint(1, longest))
             for i in range(count)]  # fmt: skip
    return tokenize_source(memory_source(name, found[1:], found[:1]), FORM, T + 1)


@pytest.fixture(scope="module")
def mixture():
    return Mixture([source("a", 60), source("b", 25)], [1, 2])


def loader(mixture, **options):
    return ChatLoader(mixture, BOS, **({"batch_size": 4, "sequence_len": T, "seed": 3} | options))


def conversations_of(batch):
    """The conversations of a batch, found anew by splitting at the document token: (ids, learned) of each."""
    found = []
    for inputs, targets in zip(batch.inputs.tolist(), batch.targets.tolist()):
        tokens = [*inputs, targets[-1] if targets[-1] >= 0 else BOS]
        learned = [False, *(target >= 0 for target in targets)]
        for i, (token, target) in enumerate(zip(tokens[1:], targets)):
            assert target in (-1, token), i  # a target is the next token, or ignored
        starts = [i for i, token in enumerate(tokens) if token == BOS]
        for start, end in zip(starts, [*starts[1:], len(tokens)]):
            if end - start > 1:
                found.append((tuple(tokens[start:end]), tuple(learned[start:end])))
    return found


def test_rows_hold_whole_conversations_and_learn_exactly_what_the_mask_says(mixture):
    known = {}
    for part in mixture.sources:
        for i in range(len(part.train)):
            row = part.train.row(i).astype(np.int64)
            known[tuple((row & (int(LEARNED) - 1)).tolist())] = tuple((row >= LEARNED).tolist())
    batches = loader(mixture)
    seen = [one for _ in range(12) for one in conversations_of(next(batches))]
    assert len(seen) > 60
    for ids, learned in seen:
        assert known[ids] == learned


def test_an_epoch_has_each_conversation_once(mixture):
    alone = Mixture([mixture.sources[0]], [1])
    batches = loader(alone)
    seen = []
    while len(set(seen)) < len(mixture.sources[0].train):
        seen += [ids for ids, _ in conversations_of(next(batches))]
    # best fit takes a few of the next pass while one that fits nowhere waits; none is lost meanwhile
    assert len(seen) < 1.6 * len(set(seen))
    counts = [seen.count(ids) for ids in set(seen)]
    assert max(counts) <= 2


def test_shares_of_the_tokens_are_the_weights(mixture):
    batches = loader(mixture)
    tokens = {"a": 0, "b": 0}
    for _ in range(60):
        for ids, _ in conversations_of(next(batches)):
            tokens[TOKENIZER.decode(ids[2:3])] += len(ids)
    assert tokens["b"] / (tokens["a"] + tokens["b"]) == pytest.approx(2 / 3, abs=0.02)


def test_going_on_from_a_state_gives_the_same_batches(mixture):
    whole, part = loader(mixture), loader(mixture)
    for _ in range(7):
        next(whole)
        state = next(part).state
    resumed = loader(mixture, state=json.loads(json.dumps(state)))
    for _ in range(25):
        expected, got = next(whole), next(resumed)
        assert torch.equal(expected.inputs, got.inputs)
        assert torch.equal(expected.targets, got.targets)
        assert expected.state == got.state


def test_ranks_and_micro_batches_share_out_the_rows_of_one(mixture):
    one = loader(mixture, batch_size=8)
    ranks = [loader(mixture, batch_size=2, rank=rank, world_size=2, steps_batches=2) for rank in range(2)]
    for _ in range(5):
        whole = next(one)
        parts = [[next(rank), next(rank)] for rank in ranks]
        rows = torch.cat([parts[rank][i].inputs for i in range(2) for rank in range(2)])
        assert torch.equal(rows, whole.inputs)
        # the weighted means of the parts are the mean over all targets
        values = torch.randn(rows.shape)
        targets = torch.cat([parts[rank][i].targets for i in range(2) for rank in range(2)])
        weights = [parts[rank][i].weight for i in range(2) for rank in range(2)]
        means = [v[t >= 0].mean() * w for v, t, w in zip(values.split(2), targets.split(2), weights)]
        assert torch.stack(means).mean() == pytest.approx(values[targets >= 0].mean().item(), rel=1e-4, abs=1e-6)
    assert whole.weight == 1.0


def test_a_state_of_other_conversations_is_refused(mixture):
    state = next(loader(mixture)).state
    with pytest.raises(ValueError, match="loader state: was made with other conversations or weights"):
        loader(Mixture(mixture.sources, [1, 1]), state=state)
    with pytest.raises(ValueError, match="loader state: was made with seed 3, not 4"):
        loader(mixture, state=state, seed=4)


def test_a_batch_names_the_conversations_in_its_rows(mixture):
    batch = next(loader(mixture))
    for inputs, targets, documents in zip(batch.inputs, batch.targets, batch.documents):
        rows = [(mixture.row(number).astype(np.int64) & (int(LEARNED) - 1)).tolist() for number in documents]
        assert [list(ids) for ids, _ in conversations_of(Row(inputs, targets))] == rows
    name, number = ("a", documents[0]) if documents[0] < mixture.starts[1] else ("b", documents[0] - mixture.starts[1])
    assert mixture.locate(documents[0]) == f"{name}, number {number + 1}"


def test_padding_is_learned_nowhere_and_counted(mixture):
    batches = loader(mixture)
    padding = rows = learned = 0
    for _ in range(10):
        batch = next(batches)
        learned += int((batch.targets >= 0).sum())
        rows += len(batch.inputs)
        padding += rows and sum(T + 1 - sum(len(ids) for ids, _ in conversations_of(Row(i, t)))
                                for i, t in zip(batch.inputs, batch.targets))  # fmt: skip
    progress = batches.progress
    assert progress["learned_tokens"] == learned
    assert progress["padding_share"] == pytest.approx(padding / (rows * (T + 1)))
    assert 0 < progress["padding_share"] < 0.2


class Row:
    """One row as a batch."""

    def __init__(self, inputs, targets):
        self.inputs, self.targets = inputs[None], targets[None]


def test_validation_packs_all_of_it():
    part = source("v", 40).train
    rows = validation_rows(part, BOS, T)
    inputs, targets = inputs_and_targets(rows, BOS)
    found = conversations_of(type("Batch", (), {"inputs": inputs, "targets": targets}))
    expected = [tuple((part.row(i).astype(np.int64) & (int(LEARNED) - 1)).tolist()) for i in range(len(part))]
    assert sorted(ids for ids, _ in found) == sorted(expected)
    assert int((targets >= 0).sum()) == part.learned
