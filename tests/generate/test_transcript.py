"""Files of conversations: what cannot be used is named with its line, and nothing is half written."""

import json

import pytest

from nanogka.data.conversation import Conversation
from nanogka.generate.transcript import read_conversation, write_documents

GOOD = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}'


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "talk"])
def test_a_conversation_comes_back(tmp_path, name):
    conversation = Conversation.of("Hi\u2028中文 😀", "two\nlines", system="a\x85b")
    write_documents(tmp_path / name, [conversation.to_json()])
    assert read_conversation(tmp_path / name) == conversation
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_number_takes_one_of_several(tmp_path):
    path = tmp_path / "a.jsonl"
    # As another program may write it: with a mark of the byte order and another line ending.
    path.write_text(f"\ufeff{GOOD}\r\n\n{GOOD.replace('Hi', 'Hello')}\n", encoding="utf-8")
    assert read_conversation(path, 1) == Conversation.of("Hi", "Ho")
    assert read_conversation(path, 2) == Conversation.of("Hello", "Ho")
    for number, message in ((3, "got number 3, has 2 conversations"), (0, "got number 0"), (None, "has 2 conv")):
        with pytest.raises(ValueError, match=message):
            read_conversation(path, number)


@pytest.mark.parametrize(
    "name, data, message",
    [
        ("a.json", b"", "is empty"),
        ("a.json", b'{"messages": [\n\n}', "line 3: wrong JSON"),
        ("a.json", f"{GOOD}\n{GOOD}".encode(), r"line 2: wrong JSON: Extra data; JSON lines take a name"),
        ("a.jsonl", f"\n{GOOD[:-1]}".encode(), "line 2: wrong JSON"),
        ("a.json", b"[" * 100_000, "wrong JSON"),
        ("a.json", b'{"messages": "\xff"}', "no UTF-8"),
        ("a.json", b'{"prompt": "Hi", "continuation": "Ho"}', "line 1: got {'prompt': .*takes an object"),
        ("a.jsonl", b"\n" + GOOD.replace("user", "robot").encode(), "line 2: message 1: role: got 'robot'"),
        ("a.json", GOOD.replace("Ho", " ").encode(), "line 1: message 2: content of assistant: got ' '"),
        ("a.json", GOOD.replace("assistant", "user").encode(), "line 1: message 2: got user after user"),
        ("a.json", b'[{"role": "user", "content": "Hi"}]', "line 1: messages: the last is the user's"),
    ],
)
def test_a_bad_file_is_named_with_the_line(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=message) as error:
        read_conversation(tmp_path / name)
    assert name in str(error.value)


def test_a_file_that_is_no_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read .*: Is a directory"):
        read_conversation(tmp_path)
    with pytest.raises(ValueError, match=r"cannot write .*absent.*: No such file"):
        write_documents(tmp_path / "absent" / "a.json", [{}])


def test_what_cannot_be_written_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    write_documents(path, [{"a": 1}])

    def full(self, *_, **__):
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(path), "write_text", full)
    with pytest.raises(ValueError, match=r"cannot write .*a.json: No space left"):
        write_documents(path, [{"a": 2}])
    monkeypatch.undo()
    assert json.loads(path.read_text()) == {"a": 1}
    assert [found.name for found in tmp_path.iterdir()] == ["a.json"]
