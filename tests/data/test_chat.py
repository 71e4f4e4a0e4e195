"""Conversations: the loss covers the replies, bad ones are counted with their place, and resuming is exact."""

import dataclasses
import errno
import gzip
import itertools
import json
import os
import random
import statistics
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from nanogka.common.distributed import Ranks
from nanogka.data import chat_tokens
from nanogka.data.chat import ChatLoader, DataMixture, inputs_and_targets, validation_rows
from nanogka.data.chat_sources import ConversationSource, file_source, hub_source
from nanogka.data.chat_tokens import LOSS_BIT, summarize, tokenize_source
from nanogka.data.conversation import ChatFormat, Conversation, ConversationError
from nanogka.data.packing import PADDING
from nanogka.tokenizer import SPECIAL_TOKENS, Tokenizer

TOKENIZER = Tokenizer([bytes([b]) for b in range(256)], {name: 256 + i for i, name in enumerate(SPECIAL_TOKENS)})
TEMPLATE = ChatFormat(TOKENIZER)
BOS = TOKENIZER.bos_id
T = 64


def memory_source(name, train, val):
    """Conversations that are in memory."""

    def entries(conversations):
        return ((f"{name}, number {number}", conversation) for number, conversation in enumerate(conversations, 1))

    return ConversationSource(name, lambda: entries(train), lambda: entries(val), lambda conversation: conversation)


def source(name, count, longest=25, seed=0):
    rng = random.Random(f"{name} {seed}")
    found = [Conversation.of(f"{name}{i} " + "q" * rng.randint(1, longest), "r" * rng.randint(1, longest))
             for i in range(count)]  # fmt: skip
    return tokenize_source(memory_source(name, found[1:], found[:1]), TEMPLATE, T + 1)


@pytest.fixture(scope="module")
def mixture():
    return DataMixture([source("a", 60), source("b", 25)], [1, 2])


def loader(mixture, **options):
    return ChatLoader(mixture, BOS, **({"batch_size": 4, "sequence_len": T, "seed": 3} | options))


def conversations_of(inputs, targets):
    """The conversations of rows, found by splitting at the document token: (ids, learned) of each."""
    found = []
    for row, targets_of_row in zip(inputs.tolist(), targets.tolist()):
        tokens = [*row, targets_of_row[-1] if targets_of_row[-1] >= 0 else BOS]
        learned = [False, *(target >= 0 for target in targets_of_row)]
        for i, (token, target) in enumerate(zip(tokens[1:], targets_of_row)):
            assert target in (-1, token), i  # a target is the next token, or ignored
        starts = [i for i, token in enumerate(tokens) if token == BOS]
        for start, end in zip(starts, [*starts[1:], len(tokens)]):
            if end - start > 1:
                found.append((tuple(tokens[start:end]), tuple(learned[start:end])))
    return found


def ids_of(row):
    """The ids of a tokenized conversation, without the bit that says what is learned."""
    return tuple((row.astype(np.int64) & (int(LOSS_BIT) - 1)).tolist())


def next_conversations(batches):
    batch = next(batches)
    return conversations_of(batch.inputs, batch.targets)


def test_rows_hold_whole_conversations_and_learn_exactly_what_the_mask_says(mixture):
    known = {ids_of(row): tuple((row >= LOSS_BIT).tolist()) for row in map(mixture.conversation, range(85 - 2))}
    batches = loader(mixture)
    seen = [one for _ in range(12) for one in next_conversations(batches)]
    assert len(seen) > 60
    for ids, learned in seen:
        assert known[ids] == learned


def test_shares_of_the_tokens_are_the_weights():
    batches = loader(DataMixture([source("a", 60, longest=5), source("b", 25)], [1, 2]))
    tokens = {"a": 0, "b": 0}
    for _ in range(60):
        for ids, _ in next_conversations(batches):
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
    ranks = [loader(mixture, batch_size=2, ranks=Ranks(rank, rank, 2), accumulation=2) for rank in range(2)]
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
        loader(DataMixture(mixture.sources, [1, 1]), state=state)
    with pytest.raises(ValueError, match="loader state: was made with seed 3, not 4"):
        loader(mixture, state=state, seed=4)


def test_a_literal_row_learns_its_marked_tokens_and_no_padding():
    learned = int(LOSS_BIT)
    row = np.array([[BOS, 5, learned | 6, learned | 7, BOS, 8, learned | 9, PADDING, PADDING, PADDING]])
    inputs, targets = inputs_and_targets(row, BOS)
    assert inputs.tolist() == [[BOS, 5, 6, 7, BOS, 8, 9, BOS, BOS]]
    assert targets.tolist() == [[-1, 6, 7, -1, -1, 9, -1, -1, -1]]


def test_validation_reads_only_the_conversations_of_its_rows():
    class Counted:
        read = 0

        def __len__(self):
            return 5000

        def __getitem__(self, number):
            self.read += 1
            return np.array([BOS, *[number] * (3 + number % 20)], np.uint32)

    conversations = Counted()
    rows = validation_rows(conversations, BOS, T, 4)
    assert rows.shape == (4, T + 1)
    assert conversations.read < 400
    assert np.array_equal(rows, validation_rows(Counted(), BOS, T, 7)[:4])
    # with room for all, every conversation is in exactly one place
    few = source("v", 40).train
    rows = validation_rows(few, BOS, T, 1000)
    whole = conversations_of(*inputs_and_targets(rows, BOS))
    assert sorted(ids for ids, _ in whole) == sorted(ids_of(few[number]) for number in range(len(few)))


def test_the_place_in_a_row_does_not_depend_on_the_length():
    """What comes first in a row is what a person asks first: a model must see conversations of all lengths there."""
    rows = loader(DataMixture([source("a", 400, longest=12)], [1]), batch_size=8)
    firsts, others = [], []
    for batch in itertools.islice(rows, 40):
        for inputs, targets in zip(batch.inputs, batch.targets):
            found = [len(ids) for ids, _ in conversations_of(inputs[None], targets[None])]
            firsts.append(found[0])
            others += found[1:]
    assert len(others) > len(firsts) > 300
    assert statistics.mean(firsts) == pytest.approx(statistics.mean(others), rel=0.06)


def test_padding_is_learned_nowhere_and_counted(mixture):
    batches = loader(mixture)
    padding = learned = 0
    for _ in range(10):
        batch = next(batches)
        learned += int((batch.targets >= 0).sum())
        padding += 4 * (T + 1) - sum(len(ids) for ids, _ in conversations_of(batch.inputs, batch.targets))
    progress = batches.progress
    assert progress["learned_tokens"] == learned
    assert progress["padding_share"] == pytest.approx(padding / (40 * (T + 1)))
    assert 0 < progress["padding_share"] < 0.2


# ---- from files to tokens ----


def line(*texts):
    return json.dumps(Conversation.of(*texts).to_json(), ensure_ascii=False)


def write(path, lines):
    path.write_bytes(b"\n".join(text if isinstance(text, bytes) else text.encode() for text in lines))
    return path


def test_bad_lines_are_counted_and_named_and_nothing_of_them_is_learned(tmp_path):
    poison = {"role": "user", "content": "POISON"}
    bad = {
        2: ('{"messages": [', "wrong JSON"),
        4: (json.dumps({"messages": [poison, {"role": "robot", "content": "POISON"}]}), "unknown role"),
        5: (json.dumps({"messages": [poison]}), "no reply at the end"),
        7: (b'{"messages": "\xff"}', "wrong JSON"),
        8: (line("POISON" * 6, "too"), "longer than the context"),
        9: ("[" * 100_000, "wrong JSON"),
    }
    good = {1: line("a", "b"), 3: "", 6: line("c", "d"), 10: line("e", "f")}
    path = write(tmp_path / "a.jsonl", [good[i] if i in good else bad[i][0] for i in range(1, 11)])
    other = write(tmp_path / "b.jsonl", [b"\xef\xbb\xbf" + line("g", "h").encode(), "nonsense"])
    tokenized = tokenize_source(file_source(tmp_path), TEMPLATE, 40)
    assert [one[:2] for one in tokenized.rejected] == [
        *((f"{path}, line {i}", kind) for i, (_, kind) in bad.items()),
        (f"{other}, line 2", "wrong JSON"),
    ]
    for split in (tokenized.train, tokenized.val):
        assert b"POISON" not in TOKENIZER.decode_bytes(split.flat & (int(LOSS_BIT) - 1))
    assert len(tokenized.train) + len(tokenized.val) == 4
    said = summarize(tokenized.rejected)
    assert said[0].startswith(f"4 × wrong JSON: {path}, line 2: Expecting value at column 15; {path}, line 7: not UTF")
    assert any(text.endswith("line 8: got 44 tokens, expected at most 40") for text in said)


def test_too_little_to_learn_from_is_an_error_that_says_what_was_wrong(tmp_path):
    path = write(tmp_path / "one.jsonl", [line("a", "b"), "nonsense", line("a", "b")])
    with pytest.raises(ValueError, match=r"got '.*one.jsonl' with 2 usable conversations \(1 × wrong JSON: "):
        tokenize_source(file_source(path), TEMPLATE, 40)
    for missing in (tmp_path / "none.jsonl", tmp_path / "talk.txt"):
        with pytest.raises(ValueError, match="data: got '.*'"):
            file_source(missing)


@pytest.mark.parametrize("hashes", [[1, 2], [2**63, 2**64 - 1]])
def test_of_two_conversations_one_is_validation_whatever_their_hashes(hashes):
    assert chat_tokens._choose_validation(np.array(hashes, np.uint64)).tolist() == [True, False]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A dataset with the splits train and test, as `datasets` reads it from a folder."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "talk"
    folder.mkdir()
    rows = [json.loads(line(f"q{i}", f"a{i}")) | {"source": "made up"} for i in range(6)]
    rows[3]["messages"][0]["role"] = "robot"
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:2]))
    return folder


def test_json_and_parquet_files_are_the_conversations_of_jsonl(tmp_path):
    talks = [Conversation.of(f"q{i}", f"a{i}").to_json() for i in range(30)]
    lines = "".join(json.dumps(talk) + "\n" for talk in talks).encode()
    (tmp_path / "a.jsonl").write_bytes(lines)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "c.json").write_text(json.dumps(talks))
    pq.write_table(
        pa.table({"messages": [talk["messages"] for talk in talks], "id": range(30)}), tmp_path / "d.parquet"
    )
    found = []
    for file in sorted(tmp_path.iterdir()):
        source = file_source(file)
        found.append([source.convert(entry) for _, entry in source.train()])
    assert found == [[Conversation.from_json(talk) for talk in talks]] * 4
    assert [place for place, _ in file_source(tmp_path / "d.parquet").train()][-1].endswith("d.parquet, row 30")
    assert len(list(file_source(tmp_path).train())) == 120  # a folder of all of them


def test_a_form_that_cannot_be_learned_is_refused_in_every_kind_of_file(tmp_path):
    pair = {"prompt": "a", "chosen": "b", "rejected": "c"}
    (tmp_path / "a.json").write_text(json.dumps([pair]))
    source = file_source(tmp_path / "a.json")
    ((_, value),) = source.train()
    with pytest.raises(ConversationError, match="pairs of a chosen and a rejected reply") as error:
        source.convert(value)
    assert error.value.kind == "another form"
    pq.write_table(pa.Table.from_pylist([pair]), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match="a.parquet has the columns prompt, chosen, rejected: pairs of"):
        file_source(tmp_path / "a.parquet")
    for text in ("{", "[1"):
        (tmp_path / "a.json").write_text(text)
        with pytest.raises(ValueError, match="a.json: "):
            list(file_source(tmp_path / "a.json").train())


def test_a_dataset_gives_its_own_validation_names_bad_rows_and_must_have_messages(hub):
    tokenized = tokenize_source(hub_source(str(hub)), TEMPLATE, 40)
    assert (len(tokenized.train), len(tokenized.val)) == (5, 2)
    assert [one[:2] for one in tokenized.rejected] == [(f"{hub} train, row 4", "unknown role")]
    for name in ("train", "test"):
        (hub / f"{name}.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(ValueError, match="has the columns text: expected messages, conversations"):
        hub_source(str(hub))


# ---- tokens on disk ----


def equal(one, other):
    """True if two tokenized sources hold the same."""
    parts = [
        (part.loss_tokens, part.fingerprint, [*map(ids_of, part)]) for s in (one, other) for part in (s.train, s.val)
    ]
    return parts[:2] == parts[2:] and one.rejected == other.rejected


def test_tokens_are_read_where_files_cannot_be_mapped(tmp_path, monkeypatch):
    path = write(tmp_path / "a.jsonl", [line(f"q{i}", f"answer {i}") for i in range(50)])
    mapped, load = tokenize_source(file_source(path), TEMPLATE, 40), np.load

    def without_mmap(file, mmap_mode=None):
        if mmap_mode is not None:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        return load(file)

    monkeypatch.setattr(np, "load", without_mmap)
    assert equal(tokenize_source(file_source(path), TEMPLATE, 40), mapped)


def test_files_are_tokenized_once_and_again_only_where_something_has_changed(tmp_path, base, monkeypatch):
    path = write(tmp_path / "a.jsonl", [line(f"q{i}", f"answer {i}") for i in range(50)] + ["nonsense"])
    in_memory = tokenize_source(dataclasses.replace(file_source(path), identity=""), TEMPLATE, 40)
    assert not base.exists()
    with ThreadPoolExecutor(2) as pool:  # as two ranks would
        first, second = pool.map(lambda _: tokenize_source(file_source(path), TEMPLATE, 40), range(2))
    assert equal(first, in_memory)
    assert equal(second, in_memory)
    assert isinstance(second.train.flat, np.memmap)
    assert [folder.stat().st_mode & 0o077 for folder in (base / "conversations").iterdir()] == [0]
    calls, tokenize = [], chat_tokens._tokenize_source
    monkeypatch.setattr(chat_tokens, "_tokenize_source", lambda *args: calls.append(args) or tokenize(*args))
    tokenize_source(file_source(path), TEMPLATE, 40)
    assert calls == []
    for again in (lambda: (file_source(path), TEMPLATE, 39), lambda: (file_source(path), TEMPLATE, 40, 30)):
        tokenize_source(*again())
    os.utime(path, (1, 1))
    tokenize_source(file_source(path), TEMPLATE, 40)
    assert len(calls) == 3


FORMS = [
    {
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b"},
        ]
    },
    {
        "conversations": [
            {"from": "system", "value": "s"},
            {"from": "human", "value": "a"},
            {"from": "gpt", "value": "b"},
        ]
    },
    {"conversations": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "system": "s"},
    {"system": "s", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    {"system": "s", "instruction": "a", "input": "", "output": "b"},
    {"system": "s", "prompt": "a", "completion": "b"},
]


@pytest.mark.parametrize("number", range(len(FORMS)))
def test_every_known_form_is_read_from_every_kind_of_file(tmp_path, number):
    value, expected = FORMS[number], Conversation.of("a", "b", system="s")
    (tmp_path / "a.jsonl").write_text(json.dumps(value) + "\n")
    (tmp_path / "b.json").write_text(json.dumps([value]))
    (tmp_path / "c.json").write_text(f"{json.dumps(value)}\n{json.dumps(value)}\n")  # lines, whatever it is called
    pq.write_table(pa.Table.from_pylist([value]), tmp_path / "d.parquet")
    (tmp_path / "e.json").write_text(json.dumps(value, indent=1))
    source = file_source(tmp_path)
    assert [source.convert(entry) for _, entry in source.train()] == [expected] * 6


def test_all_damaged_files_of_conversations_are_named(tmp_path):
    pq.write_table(pa.Table.from_pylist([FORMS[0]] * 300), tmp_path / "good.parquet")
    content = (tmp_path / "good.parquet").read_bytes()
    (tmp_path / "flipped.parquet").write_bytes(content[:40] + bytes([content[40] ^ 255]) + content[41:])
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ValueError) as error:
        list(file_source(tmp_path).train())
    assert [line.partition(": ")[0] for line in str(error.value).splitlines()] == [
        f"{tmp_path / 'bad.json'}", f"{tmp_path / 'flipped.parquet'}", "data",
    ]  # fmt: skip
    for name, bad in (("cut", content[: len(content) // 2]), ("empty", b""), ("text", b"hello")):
        (tmp_path / f"{name}.parquet").write_bytes(bad)
    (tmp_path / "link.jsonl").symlink_to("nowhere")
    with pytest.raises(ValueError) as error:
        file_source(tmp_path)
    assert all(name in str(error.value) for name in ("cut.parquet", "empty.parquet", "text.parquet", "link.jsonl"))


def test_a_text_that_cannot_fit_is_left_out_without_being_tokenized(monkeypatch):
    asked = []
    monkeypatch.setattr(Tokenizer, "encode_batch", lambda self, texts, *_: asked.extend(texts) or [[1] for _ in texts])
    long = Conversation.of("x" * 10**6, "b")
    source = memory_source(
        "m", [Conversation.of("a", "b"), Conversation.of("c", "d"), long], [Conversation.of("e", "f")]
    )
    tokenized = tokenize_source(source, TEMPLATE, 40)
    assert [one[:2] for one in tokenized.rejected] == [("m, number 3", "longer than the context")]
    assert max(map(len, asked)) == 1
