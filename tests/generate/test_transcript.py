"""Files of conversations: errors name the file and the line, and nothing is half written."""

import json

import pytest
from full_disk import full_disk

from nanogka.data.conversation import Conversation
from nanogka.generate.transcript import read_conversation, write_documents

GOOD = '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]}'


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_a_conversation_comes_back(tmp_path, name):
    conversation = Conversation.of("Hi\u2028中文 😀", "two\nlines", system="a\x85b")
    write_documents(tmp_path / name, [conversation.to_json()])
    assert read_conversation(tmp_path / name) == conversation
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    "name, data, message",
    [
        ("a.json", b'{"messages": [\n\n}', "line 3: wrong JSON"),
        ("a.json", f"{GOOD}\n{GOOD}".encode(), r"line 2: wrong JSON: Extra data; JSON lines take a name"),
        ("a.jsonl", f"\ufeff{GOOD}\r\n\n{GOOD}\n".encode(), "has 2 conversations, takes a file of one"),
        ("a.json", b'{"messages": "\xff"}', "not UTF-8"),
        ("a.json", b'{"prompt": "Hi", "continuation": "Ho"}', "got {'prompt': .*takes an object"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=message) as error:
        read_conversation(tmp_path / name)
    assert name in str(error.value)


def test_a_path_that_cannot_be_used_is_named_and_a_failed_write_leaves_the_file_as_it_was(tmp_path):
    with pytest.raises(ValueError, match=r"cannot read .*: Is a directory"):
        read_conversation(tmp_path)
    path = tmp_path / "a.json"
    write_documents(path, [{"a": 1}])
    with full_disk(1000), pytest.raises(ValueError, match=r"cannot write .*a.json: File too large"):
        write_documents(path, [{"a": 2 * "much"}] * 1000)
    assert json.loads(path.read_text()) == {"a": 1}
    assert [found.name for found in tmp_path.iterdir()] == ["a.json"]
