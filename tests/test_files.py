"""Files that appear whole or not at all, on a disk that is full too."""

import json

import pytest
from full_disk import full_disk

from nanogka.files import annotate_oserror, atomic_write, sealed, unsealed


def test_a_file_is_replaced_whole_or_left_and_a_full_disk_is_named(tmp_path):
    path = tmp_path / "report.md"
    atomic_write(path, "first")
    with full_disk(1000), pytest.raises(OSError, match="report.md"):
        atomic_write(path, "second" * 1000)
    assert path.read_text() == "first"
    atomic_write(path, "zwölf")
    assert path.read_bytes() == "zwölf".encode()
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_that_names_its_file_or_is_not_the_systems_keeps_its_text(tmp_path):
    for error in (FileNotFoundError(2, "gone", "another"), OSError("3 of 4 shards fetched")):
        with pytest.raises(OSError) as raised, annotate_oserror(tmp_path):
            raise error
        assert raised.value is error


def test_an_object_that_was_sealed_shows_any_change():
    content = {"step": 3, "loss": 0.1, "bandwidth": [[1.5]], "layers": {0: "a", 10: "b"}, "text": "zwölf"}
    text = json.dumps(sealed(content))
    assert unsealed(json.loads(text)) == json.loads(json.dumps(content))
    assert unsealed({"step": 3}) == {"step": 3}  # of an earlier version
    for old, new in (("0.1", "0.2"), ('"step"', '"stop"'), ("zw", "zv"), ("[[1.5]]", "[1.5]")):
        with pytest.raises(ValueError, match="its checksum differs"):
            unsealed(json.loads(text.replace(old, new)))
    with pytest.raises(ValueError, match="got list, takes a mapping"):
        unsealed([])
