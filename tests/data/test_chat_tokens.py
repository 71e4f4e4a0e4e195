"""Conversations from files: what is learned is exactly what they say; what cannot be used is counted with its place."""

import json

import numpy as np
import pytest

from nanogka.data.chat_sources import hub_source, jsonl_source, memory_source
from nanogka.data.chat_tokens import LEARNED, report, summary, tokenize_source
from nanogka.data.conversation import ChatFormat, Conversation
from nanogka.tokenizer import SPECIAL_TOKENS, Tokenizer


@pytest.fixture(scope="module")
def form():
    tokens = [bytes([byte]) for byte in range(256)]
    return ChatFormat(Tokenizer(tokens, {name: 256 + i for i, name in enumerate(SPECIAL_TOKENS)}))


def line(*texts):
    return json.dumps(Conversation.of(*texts).to_json(), ensure_ascii=False)


def write(path, lines):
    path.write_bytes(b"\n".join(text if isinstance(text, bytes) else text.encode() for text in lines))
    return path


def test_every_conversation_is_there_with_its_mask(form, tmp_path):
    texts = [(f"question {i}", f"Ünswer {i}") for i in range(600)]  # more than are tokenised together
    path = write(tmp_path / "talk.jsonl", [line(*pair) for pair in texts])
    tokenized = tokenize_source(jsonl_source(path), form, 100)
    found = set()
    for part in (tokenized.train, tokenized.val):
        for i in range(len(part)):
            found.add(tuple(part.row(i).tolist()))
    expected = set()
    for pair in texts:
        ids, mask = form.render(Conversation.of(*pair))
        expected.add(tuple(token | int(LEARNED) * learned for token, learned in zip(ids, mask)))
    assert found == expected
    assert len(tokenized.train) + len(tokenized.val) == 600
    assert 10 < len(tokenized.val) < 60  # about one in twenty
    assert tokenized.bad == []
    assert tokenized.train.learned == sum(len(pair[1].encode()) + 1 for pair in texts) - tokenized.val.learned


def test_bad_lines_are_counted_and_named_and_nothing_of_them_is_learned(form, tmp_path):
    good = [line("a", "b"), line("c", "d"), line("e", "f")]
    bad = [
        '{"messages": [',
        json.dumps({"messages": [{"role": "robot", "content": "POISON"}]}),
        json.dumps({"messages": [{"role": "user", "content": "POISON"}, {"role": "assistant", "content": " "}]}),
        json.dumps({"messages": [{"role": "user", "content": "POISON"}] * 2}),
        json.dumps({"messages": [{"role": "user", "content": "POISON"}]}),
        b'{"messages": "\xff"}',
        line("POISON" * 10, "too long"),
        "[" * 100_000,
    ]
    lines = [good[0], bad[0], "", good[1], *bad[1:7], good[2], bad[7], '"POISON"']
    path = write(tmp_path / "talk.jsonl", lines)
    tokenized = tokenize_source(jsonl_source(path), form, 40)
    places = [(int(one.place.removeprefix(f"{path}, line ")), one.kind) for one in tokenized.bad]
    assert places == [
        (2, "wrong JSON"), (5, "unknown role"), (6, "empty content"), (7, "out of turn"), (8, "no reply at the end"),
        (9, "wrong JSON"), (10, "longer than the context"), (12, "wrong JSON"), (13, "no messages"),
    ]  # fmt: skip
    learned = np.concatenate([tokenized.train.tokens, tokenized.val.tokens]) & (int(LEARNED) - 1)
    assert b"POISON" not in form.tokenizer.decode_bytes(learned)
    assert len(tokenized.train) + len(tokenized.val) == 3
    assert summary(tokenized.bad).startswith("3 wrong JSON, 1 unknown role")
    lines = report(tokenized.bad)
    assert lines[0].startswith(f"3 × wrong JSON: {path}, line 2: Expecting value at column 15; {path}, line 9: no UTF")
    assert any(text.endswith("line 10: got 73 tokens, takes at most 40") for text in lines)


def test_a_folder_is_its_files_by_name_and_names_the_file_of_a_fault(form, tmp_path):
    write(tmp_path / "b.jsonl", [line("a", "b"), "nonsense"])
    write(tmp_path / "a.jsonl", [b"\xef\xbb\xbf" + line("c", "d").encode(), line("e", "f")])
    tokenized = tokenize_source(jsonl_source(tmp_path), form, 40)
    assert [one.place for one in tokenized.bad] == [f"{tmp_path / 'b.jsonl'}, line 2"]
    assert len(tokenized.train) + len(tokenized.val) == 3


def test_too_little_to_learn_from_is_an_error_that_says_what_was_wrong(form, tmp_path):
    path = write(tmp_path / "one.jsonl", [line("a", "b"), "nonsense", line("a", "b")])
    with pytest.raises(ValueError, match=r"got '.*one.jsonl' with 2 usable conversations \(1 wrong JSON\), takes at"):
        tokenize_source(jsonl_source(path), form, 40)
    for missing in (tmp_path / "none.jsonl", tmp_path / "talk.txt"):
        with pytest.raises(ValueError, match="--data: got '.*', takes embedded, smoltalk, hub:OWNER/NAME, or .jsonl"):
            jsonl_source(missing)


def test_the_validation_share_depends_on_what_is_said_alone(form, tmp_path):
    pairs = [(f"question {i}", f"answer {i}") for i in range(300)]
    one = tokenize_source(jsonl_source(write(tmp_path / "1.jsonl", [line(*p) for p in pairs])), form, 60)
    two = tokenize_source(jsonl_source(write(tmp_path / "2.jsonl", [line(*p) for p in reversed(pairs)] * 2)), form, 60)

    def rows(part):
        return {tuple(part.row(i).tolist()) for i in range(len(part))}

    assert rows(one.val) == rows(two.val)
    assert rows(one.train) == rows(two.train)
    assert not rows(two.train) & rows(two.val)  # a conversation that is there twice is on one side only


def test_the_first_so_many_can_be_asked_for(form):
    conversations = [Conversation.of(f"q{i}", "a") for i in range(10)]
    tokenized = tokenize_source(memory_source("memory", conversations, conversations[:1]), form, 40, 4)
    assert (len(tokenized.train), len(tokenized.val)) == (4, 1)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A dataset with the splits train and test, as `datasets` reads it from a folder."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "talk"
    folder.mkdir()
    rows = [json.loads(line(f"q{i}", f"a{i}")) | {"source": "made up"} for i in range(6)]
    rows[3]["messages"][0]["role"] = "tool"
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows[:2]))
    return folder


def test_a_dataset_of_the_hub_gives_its_own_validation_and_names_bad_rows(form, hub):
    tokenized = tokenize_source(hub_source(str(hub)), form, 40)
    assert (len(tokenized.train), len(tokenized.val)) == (5, 2)
    assert [(one.place, one.kind) for one in tokenized.bad] == [(f"{hub} train, row 4", "unknown role")]


def test_a_dataset_without_messages_or_without_a_network_is_one_clear_line(hub, monkeypatch):
    (hub / "train.jsonl").write_text('{"text": "a"}\n')
    (hub / "test.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(ValueError, match="has the columns text, takes a dataset with messages"):
        hub_source(str(hub))

    def unreachable(*args, **kwargs):
        raise ConnectionError("Couldn't reach the Hub\nand much more")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    with pytest.raises(OSError) as error:
        hub_source("owner/name", "all")
    assert str(error.value) == "could not fetch owner/name all from the Hugging Face hub: Couldn't reach the Hub"
