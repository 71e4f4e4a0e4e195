"""Own .txt and .jsonl files: how they are cut and split, what is cached, and the errors of bad ones."""

import errno
import gzip
import json
import os
import random
import re
from concurrent.futures import ThreadPoolExecutor

import pyarrow
import pyarrow.parquet as pq
import pytest

from nanogka.data import corpus as corpus_module
from nanogka.data import open_corpus, own_text, sharding
from nanogka.data.own_text import DOCUMENT_CHARS, LONGEST_CHARS


def all_documents(corpus) -> list[str]:
    return [*corpus.documents("train"), *corpus.documents("val")]


def write_jsonl(path, texts) -> None:
    path.write_text("".join(json.dumps({"text": text, "n": i}) + "\n" for i, text in enumerate(texts)))


def test_every_line_of_jsonl_is_a_document_in_one_of_two_splits(tmp_path):
    texts = [f"Document {i} of many, ☕." for i in range(2000)]
    write_jsonl(tmp_path / "a.jsonl", texts[:1500])
    write_jsonl(tmp_path / "b.jsonl", texts[1500:])
    corpus = open_corpus(tmp_path)
    assert sorted(all_documents(corpus)) == sorted(texts)
    assert 60 < len(list(corpus.documents("val"))) < 140
    assert str(tmp_path) in corpus.describe()
    # the files are mixed: neighbors in the corpus are not neighbors in a file
    places = [texts.index(text) for text in corpus.documents("train")]
    assert sum(abs(a - b) == 1 for a, b in zip(places, places[1:])) < 20


def test_the_copy_of_own_text_is_closed_to_other_users(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", ["one", "two"])
    assert open_corpus(tmp_path / "a.jsonl").folder.stat().st_mode & 0o077 == 0


def test_a_documents_split_follows_from_its_text_alone(tmp_path):
    write_jsonl(tmp_path / "a.jsonl", [f"Document {i}" for i in range(300)])
    before = set(open_corpus(tmp_path).documents("val"))
    write_jsonl(tmp_path / "0.jsonl", [f"Another {i}" for i in range(300)] + [f"Document {i}" for i in range(40)])
    corpus = open_corpus(tmp_path)
    assert {text for text in corpus.documents("val") if text.startswith("Document")} == before
    assert not set(corpus.documents("train")) & set(corpus.documents("val"))


def test_few_documents_leave_at_least_one_in_each_split_and_fewer_than_two_are_an_error(tmp_path):
    for number, texts in enumerate([f"{trial} {i}" for i in range(n)] for n in (2, 10) for trial in range(10)):
        write_jsonl(tmp_path / f"{number}.jsonl", texts)
        corpus = open_corpus(tmp_path / f"{number}.jsonl")
        assert list(corpus.documents("train"))
        assert list(corpus.documents("val"))
    for texts in ([], ["same", "same"]):
        write_jsonl(tmp_path / "a.jsonl", texts)
        with pytest.raises(ValueError, match="^data: "):
            open_corpus(tmp_path / "a.jsonl")


def test_small_txt_files_are_a_document_each_and_blank_text_is_none(tmp_path):
    texts = [f"Text {i}\n\nwith a second paragraph\n" for i in range(5)]
    for i, text in enumerate([*texts, "", " \n\n"]):
        (tmp_path / f"{i}.txt").write_text(text)
    (tmp_path / "c.jsonl").write_text('\n{"text": "one more"}\n\n \n{"text": " "}\n')
    assert sorted(all_documents(open_corpus(tmp_path))) == sorted([*texts, "one more"])


@pytest.mark.parametrize("unit", ["A paragraph. " * 18 + "\n\n", "one line after another\r\n", "no line end ", "☕é"])
def test_a_big_txt_is_cut_into_documents_and_nothing_is_lost(tmp_path, unit):
    rng = random.Random(2)
    text = "".join(unit + str(rng.random()) for _ in range(150_000 // len(unit)))
    (tmp_path / "book.txt").write_bytes(b"\xef\xbb\xbf" + text.encode())
    documents = sorted(all_documents(open_corpus(tmp_path / "book.txt")), key=text.index)
    assert "".join(documents) == text
    assert len(documents) > 4
    assert all(len(document) < LONGEST_CHARS + DOCUMENT_CHARS for document in documents)
    if "\n\n" in unit:
        assert {document[-2:] for document in documents[:-1]} == {"\n\n"}


def test_compressed_files_are_the_text_in_them(tmp_path):
    texts = [f"Document {i} ☕" for i in range(50)]
    write_jsonl(tmp_path / "plain.jsonl", texts)
    data = (tmp_path / "plain.jsonl").read_bytes()
    half = data.index(b"\n", len(data) // 2) + 1
    for name, pack in (
        ("a.jsonl.gz", gzip.compress),
        ("b.jsonl.zst", lambda part: pyarrow.compress(part, "zstd", asbytes=True)),
    ):
        (tmp_path / name).write_bytes(pack(data[:half]) + pack(data[half:]))  # two members, as parallel tools write
        assert sorted(all_documents(open_corpus(tmp_path / name))) == sorted(texts)
    (tmp_path / "c.md.gz").write_bytes(gzip.compress(b"\xef\xbb\xbf# One\r\n"))
    (tmp_path / "d.rst").write_text("Two")
    assert sorted(own_text.documents([tmp_path / "c.md.gz", tmp_path / "d.rst"])) == ["# One\r\n", "Two"]
    for bad in (b"no gzip", gzip.compress(data)[:-9], gzip.compress(data)[:9] + b"junk"):
        (tmp_path / "a.jsonl.gz").write_bytes(bad)
        with pytest.raises(ValueError, match="a.jsonl.gz"):
            open_corpus(tmp_path / "a.jsonl.gz")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a"}\n{"text": 5}\n'))
    with pytest.raises(ValueError, match="a.jsonl.gz, line 2: "):
        open_corpus(tmp_path / "a.jsonl.gz")


def test_what_a_folder_has_besides_its_text_is_counted(tmp_path):
    for name in ("a.txt", "b.md", "c.py", "d.csv", "e.csv", "README", ".hidden"):
        (tmp_path / name).write_text(name)
    (tmp_path / "sub").mkdir()
    corpus = open_corpus(tmp_path)
    assert sorted(all_documents(corpus)) == ["a.txt", "b.md", "c.py"]
    note = ", from 3 files; left out: 2 .csv, "
    assert corpus.describe().partition(note)[2] in (
        "1 without a suffix, 1 folders",
        "1 folders, 1 without a suffix",
    )
    for name in ("a.txt", "b.md", "c.py"):
        (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=r"d.csv: has the columns d.csv, expected 'text'"):
        open_corpus(tmp_path)


def test_a_folder_with_one_parquet_file_is_split_like_text_unless_its_manifest_says_that_shards_are_missing(tmp_path):
    texts = [f"Document {i}" for i in range(40)]
    folder = tmp_path / "one"
    folder.mkdir()
    sharding.write_shards(folder, [texts])
    for path in (folder, folder / "shard_00000.parquet"):
        corpus = open_corpus(path)
        assert sorted(all_documents(corpus)) == sorted(texts)
        assert list(corpus.documents("val"))
    corpus_module.write_manifest(folder, validation="shard_00001.parquet", source="x")
    with pytest.raises(ValueError, match="shard_00001.parquet .* missing"):
        open_corpus(folder)


@pytest.mark.parametrize(
    "line",
    [
        b'{"text": "unfinished',
        b'{"text": 5}',
        b"[" * 100_000,
        b'{"text": "\xff"}',
        b'{"text": "\\ud83d"}',
        b'{"body": "a"}',
    ],
)
def test_a_bad_line_is_named_with_file_and_line(tmp_path, base, line):
    good = b'{"text": "fine"}\n'
    (tmp_path / "a.jsonl").write_bytes(good * 3 + b"\n" + line + b"\n" + good)
    with pytest.raises(ValueError, match="a.jsonl, line 5: "):
        open_corpus(tmp_path)
    assert not list(base.glob("corpora/text-*"))


def test_a_txt_that_is_not_utf8_is_named_whatever_the_bytes_of_its_name(tmp_path):
    (tmp_path / "good.txt").write_text("good")
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_bytes(b"also good")
    assert sorted(all_documents(open_corpus(tmp_path))) == ["also good", "good"]
    (tmp_path / "bad.txt").write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match="bad.txt: "):
        open_corpus(tmp_path)


def test_text_is_read_once_and_a_change_makes_another_corpus_while_the_first_stays_as_it_is(tmp_path, monkeypatch):
    write_jsonl(tmp_path / "a.jsonl", [f"Document {i}" for i in range(100)])
    with ThreadPoolExecutor(3) as pool:
        corpus, *others = pool.map(lambda _: open_corpus(tmp_path), range(3))
    assert {other.folder for other in others} == {corpus.folder}
    before = all_documents(corpus)
    with monkeypatch.context() as patch:
        patch.setattr(own_text, "documents", lambda *_: pytest.fail("read again"))
        assert open_corpus(tmp_path).fingerprint == corpus.fingerprint
    write_jsonl(tmp_path / "a.jsonl", [f"document {i}" for i in range(100)])
    os.utime(tmp_path / "a.jsonl", (1, 1))  # as far as a clock can tell, both were written at one time
    assert open_corpus(tmp_path).fingerprint != corpus.fingerprint
    (tmp_path / "a.jsonl").write_text("cut")
    assert all_documents(corpus) == before


def test_text_that_memory_can_not_hold_gives_the_same_corpus(tmp_path, monkeypatch):
    write_jsonl(tmp_path / "a.jsonl", [f"Document {i}" for i in range(300)])
    parts = []
    for buckets in (1, 100):
        monkeypatch.setattr(sharding, "BUCKETS", buckets)
        (folder := tmp_path / str(buckets)).mkdir()
        sharding.write_corpus(folder, own_text.documents([tmp_path / "a.jsonl"]), source="", shard_chars=700)
        corpus = open_corpus(folder)
        parts.append((corpus.fingerprint, list(corpus.documents("train")), list(corpus.documents("val"))))
        assert len(corpus.shards) > 4
    assert parts[0] == parts[1]


def test_a_document_beyond_the_limit_is_cut(tmp_path, monkeypatch, write_shards):
    for module in (corpus_module, sharding):
        monkeypatch.setattr(module, "MAX_DOCUMENT_CHARS", 100)
    write_jsonl(tmp_path / "a.jsonl", ["x" * 250, "short"])
    assert sorted(map(len, all_documents(open_corpus(tmp_path / "a.jsonl")))) == [5, 50, 100, 100]
    corpus = open_corpus(write_shards(tmp_path / "shards", ["y" * 250], ["short"]))
    assert list(corpus.documents("train")) == ["y" * 100]


def test_all_bad_files_are_named_at_once_with_what_to_do(tmp_path):
    (tmp_path / "good.txt").write_text("one")
    (tmp_path / "latin.txt").write_bytes("caf\xe9".encode("latin-1"))
    (tmp_path / "marked.txt").write_bytes("one".encode("utf-16"))
    (tmp_path / "plain16.txt").write_bytes("one two".encode("utf-16-le"))  # without a mark it is valid UTF-8
    (tmp_path / "late.md").write_text("a" * 9000 + "\0")
    (tmp_path / "key.jsonl").write_text('{"body": "a"}\n')
    with pytest.raises(ValueError) as error:
        open_corpus(tmp_path)
    lines = str(error.value).splitlines()
    expected = {"key.jsonl": "'text'", "late.md": "NUL", "latin.txt": "CP1252", "marked.txt": "-f UTF-16 -t",
                "plain16.txt": "-f UTF-16LE -t"}  # fmt: skip
    for line, (name, said) in zip(lines, expected.items()):
        assert line.startswith(f"{tmp_path / name}")
        assert said in line
    assert lines[5:] == [f"data: 5 of 6 files cannot be read{own_text.SKIP_HINT}"]
    notes = []
    assert own_text.readable(own_text.find_files(tmp_path), "text", notes.append) == [tmp_path / "good.txt"]
    assert len(notes) == 5


def test_a_file_with_two_names_is_read_once_and_other_entries_are_named(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.txt").write_text("two")
    (tmp_path / "c.txt").symlink_to("a.txt")
    os.link(tmp_path / "b.txt", tmp_path / "d.txt")
    (tmp_path / "e.txt").symlink_to("nowhere")
    os.mkfifo(tmp_path / "f.txt")
    corpus = open_corpus(tmp_path)
    assert sorted(all_documents(corpus)) == ["one", "two"]
    note = ", from 2 files; left out: 2 further names of a file (c.txt; d.txt), 1 dangling links (e.txt), "
    assert note + "1 pipes or devices (f.txt)" in corpus.describe()


def test_the_shards_in_the_subfolders_of_a_folder_without_files_are_a_corpus(tmp_path):
    parts = [
        ("data/2013", "a.parquet", ["one"]),
        ("data/2014", "a.parquet", ["two"]),
        ("data/2014", "b.parquet", ["3"]),
    ]
    for folder, name, texts in [*parts, (".cache", "c.parquet", ["hidden"])]:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        pq.write_table(pyarrow.table({"text": texts}), tmp_path / folder / name)
    (tmp_path / "docs").mkdir()
    for path, left_out in ((tmp_path, "; left out: 1 folders"), (tmp_path / "data", "")):
        corpus = open_corpus(path)
        assert [list(corpus.documents(split)) for split in ("train", "val")] == [["one", "two"], ["3"]]
        assert corpus.describe().endswith(f"(b.parquet){left_out}")


def test_a_folder_of_folders_says_that_they_are_not_read(tmp_path):
    for name in ("CC-MAIN-2013-20", "CC-MAIN-2014-10"):
        (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match=r"only subfolders, .* name one of them \(CC-MAIN-2013-20; CC-MAIN-2014-10\)"):
        open_corpus(tmp_path)


def test_a_line_without_end_is_refused_before_it_fills_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(own_text, "MAX_JSON_BYTES", 1000)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "ok"}\n{"text": "' + b"a" * 5000 + b'"}\n'))
    with pytest.raises(ValueError, match="a.jsonl.gz, line 2: has more than 1,000 bytes"):
        open_corpus(tmp_path / "a.jsonl.gz")


def test_a_row_of_many_lines_is_refused_before_it_fills_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(own_text, "MAX_JSON_BYTES", 1000)
    rows = b"text\n" + b'"a\nb"\n' * 500  # many short rows are no fault
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(rows))
    assert list(own_text.documents([tmp_path / "a.csv.gz"])) == ["a\nb"] * 500
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(rows + b'"a\n",' * 500))
    with pytest.raises(ValueError, match="a.csv.gz: has a row of 1,000 characters or more"):
        list(own_text.documents([tmp_path / "a.csv.gz"]))


def test_a_document_with_nul_characters_counts_as_none(tmp_path):
    texts = ["one", "a\0b", "two"]
    write_jsonl(tmp_path / "a.jsonl", texts)
    pq.write_table(pyarrow.table({"text": texts}), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        assert list(own_text.documents([tmp_path / name])) == ["one", None, "two"]


def test_gzip_with_zeros_behind_its_end_is_read(tmp_path):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one\n") + bytes(512))
    assert list(own_text.documents([tmp_path / "a.txt.gz"])) == ["one\n"]


@pytest.mark.parametrize("kind", ["string_view", "binary_view"])
def test_parquet_with_views_is_text(tmp_path, kind):
    pytest.importorskip("pyarrow", "21", reason="earlier versions read such files and cannot write them")
    table = pyarrow.table({"text": pyarrow.array(["one", "two", None], getattr(pyarrow, kind)())})
    pq.write_table(table, tmp_path / "a.parquet")
    assert list(own_text.documents([tmp_path / "a.parquet"])) == ["one", "two", None]


def test_names_in_capitals_are_read(tmp_path):
    for name, content in (("A.TXT", b"a"), ("B.JSONL", b'{"text": "b"}'), ("c.Txt.GZ", gzip.compress(b"c"))):
        (tmp_path / name).write_bytes(content)
    assert list(own_text.documents(own_text.find_files(tmp_path))) == ["a", "b", "c"]
    other = tmp_path / "other"
    other.mkdir()
    pq.write_table(pyarrow.table({"text": ["d", "e"]}), other / "D.PARQUET")
    assert sorted(all_documents(open_corpus(other))) == ["d", "e"]


def test_json_files_are_lists_or_lines_and_null_is_no_text(tmp_path):
    entries = [{"text": "one"}, {"text": None}, {"text": "two", "id": 1}]
    lines = "".join(json.dumps(entry) + "\n" for entry in entries)
    (tmp_path / "a.json").write_text(json.dumps(entries, indent=1))
    (tmp_path / "b.json").write_text(lines)
    (tmp_path / "c.json.gz").write_bytes(gzip.compress(lines.encode()))
    assert list(own_text.documents(own_text.find_files(tmp_path))) == ["one", None, "two"] * 3
    (tmp_path / "d.ndjson").write_text(lines)  # other .json files next to text describe it
    assert list(own_text.documents(own_text.find_files(tmp_path))) == ["one", None, "two"]
    (tmp_path / "a.json").write_text('{"text": "one"}\n')  # one object per file
    assert list(own_text.documents([tmp_path / "a.json"])) == ["one"]
    for content, said in (
        ('[{"text": 5}]', ", number 1: expected an object"),
        ("{}", ", number 1: expected an object with text"),
        ('{"text": {"0": "a"}}', ", number 1: expected an object with text"),  # pandas writes columns
        ("[1", ": is not"),
    ):
        (tmp_path / "a.json").write_text(content)
        with pytest.raises(ValueError, match=f"^{tmp_path / 'a.json'}{said}"):
            list(own_text.documents([tmp_path / "a.json"]))


def test_an_empty_compressed_file_is_a_failed_transfer_and_a_pipe_is_named(tmp_path):
    for name in ("a.txt.gz", "a.jsonl.zst"):
        (tmp_path / name).touch()
        with pytest.raises(ValueError, match=f"^{tmp_path / name}: is empty"):
            list(own_text.documents([tmp_path / name]))
    os.mkfifo(tmp_path / "b.txt")
    with pytest.raises(ValueError, match="b.txt.*it is a pipe or a device"):
        own_text.find_files(tmp_path / "b.txt")


@pytest.mark.parametrize("kind", [pyarrow.binary(), pyarrow.large_binary()])
def test_a_column_of_bytes_is_text_if_it_is_utf8(tmp_path, kind):
    def read(values):
        pq.write_table(pyarrow.table({"text": pyarrow.array(values, kind)}), tmp_path / "a.parquet")
        return list(own_text.documents([tmp_path / "a.parquet"]))

    assert read([b"one", "zwölf".encode(), None]) == ["one", "zwölf", None]
    with pytest.raises(ValueError, match="a.parquet: row group 0 .*UTF8"):
        read([b"one", b"caf\xe9"])


@pytest.mark.parametrize(
    "others, used",
    [
        ({"data.csv": "text\none\n"}, ["data.csv"]),
        ({"data.json": '[{"text": "one"}]', "dataset_infos.json": "{}"}, ["data.json"]),
        ({"notes.md": "one"}, ["README.md", "notes.md"]),
        ({"LICENSE.txt": "one"}, ["LICENSE.txt", "README.md"]),
    ],
)
def test_a_readme_is_text_only_next_to_text_or_alone(tmp_path, others, used):
    for name, content in {"README.md": "about", **others}.items():
        (tmp_path / name).write_text(content)
    assert [file.name for file in own_text.find_files(tmp_path)] == used


def test_a_readme_does_not_hide_the_shards_in_subfolders_and_stands_for_no_other_data(tmp_path):
    (tmp_path / "README.md").write_text("about\n\n" * 9999)
    (tmp_path / "data").mkdir()
    with pytest.raises(ValueError, match=r"only subfolders, .* name one of them \(data\)"):
        open_corpus(tmp_path)
    for name in ("train-00000-of-00002.parquet", "train-00001-of-00002.parquet"):
        pq.write_table(pyarrow.table({"text": [name]}), tmp_path / "data" / name)
    assert list(open_corpus(tmp_path).documents("train")) == ["train-00000-of-00002.parquet"]
    (tmp_path / "data.arrow").write_text("")
    with pytest.raises(ValueError, match="--dataset` reads a folder that `datasets` saved"):
        open_corpus(tmp_path)


def test_shards_of_a_test_split_are_not_trained_on(tmp_path):
    def corpus(*names):
        for file in tmp_path.iterdir():
            file.unlink()
        for name in names:
            pq.write_table(pyarrow.table({"text": [name]}), tmp_path / f"{name}.parquet")
        return list(open_corpus(tmp_path).documents("train"))

    for names in (["test-0-of-1", "train-0-of-1"], ["a_train", "b_test", "c_val"]):
        with pytest.raises(ValueError, match=r"test[^;]* are not for training by their names.*--dataset"):
            corpus(*names)
    assert corpus("train-0-of-2", "train-1-of-2", "validation-0-of-1") == ["train-0-of-2", "train-1-of-2"]
    assert corpus("test_a", "test_b") == ["test_a"]  # all are of one kind
    assert corpus("a", "contest", "latest") == ["a", "contest"]


@pytest.mark.parametrize(
    "name, content, said",
    [
        ("a.txt", gzip.compress(b"one", mtime=0), "compressed with gzip; its name must end with .gz"),
        ("a.txt", b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n", "it is a PDF"),
        ("a.csv", b"PK\3\4\xff", "a .zip, .docx or .xlsx file"),
        ("a.jsonl", gzip.compress(b"{}", mtime=0), "line 1: not UTF-8 at byte 1; it is compressed with gzip"),
        ("a.jsonl", b'[\n{"text": "one"}\n]', "a value of several lines belongs in a .json file"),
        ("a.json", '[{"text": "one"}]'.encode("utf-16"), "not UTF-8 (byte 0xff); it is UTF-16, convert it with"),
    ],
)
def test_a_file_that_is_something_else_than_its_name_says_is_named(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"^{tmp_path / name}.*{re.escape(said)}"):
        list(own_text.documents([tmp_path / name]))


def test_a_disk_that_fails_while_text_is_read_names_the_file(tmp_path):
    def fail(_):
        yield "a document"
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.raises(OSError, match=str(tmp_path / "a.txt")):
        list(own_text.read_each([tmp_path / "a.txt"], fail))
