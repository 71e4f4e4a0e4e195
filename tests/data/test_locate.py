"""A batch says which documents are in it, and a corpus where they lie."""

import itertools
import re

import pyarrow.parquet as pq
import pytest

from nanogka.data import PackingLoader, open_corpus

PLACE = re.compile(r"(.*), row group (\d+), row (\d+)")


@pytest.mark.parametrize("packing", ["bestfit", "bos-bestfit-crop"])
def test_the_places_of_a_rows_documents_hold_the_texts_it_was_made_of(tmp_path, write_shards, tracing, packing):
    texts = [[f"{100 * shard + i}:{1 + (i * 7) % 30}" for i in range(20)] for shard in range(3)]
    texts[0][4] = None
    folder = write_shards(tmp_path / "c", *texts)
    corpus = open_corpus(folder)
    options = {"batch_size": 3, "sequence_len": 15, "seed": 2, "packing": packing}
    with PackingLoader(corpus, "train", tracing, **options) as loader:
        for batch in itertools.islice(loader, 25):
            assert len(batch.documents) == 3
            for row, target, documents in zip(batch.inputs, batch.targets, batch.documents, strict=True):
                places = [PLACE.fullmatch(corpus.locate("train", document)).groups() for document in documents]
                read = [
                    pq.ParquetFile(folder / name).read_row_group(int(group))["text"][int(at)].as_py()
                    for name, group, at in places
                ]
                inside = {int(token) // 100_000 - 1 for token in (*row, target[-1]) if token}
                assert {int(text.split(":")[0]) for text in read} == inside


def test_places_in_text_files_are_bytes(tmp_path):
    folder = tmp_path / "t"
    folder.mkdir()
    for i in range(40):
        (folder / f"{i:02}.txt").write_text(f"text number {i}, of some length")
    (folder / "lines.jsonl").write_text("".join(f'{{"text": "line {i}"}}\n' for i in range(40)))
    corpus = open_corpus(folder)
    for split in ("train", "val"):
        for document, text in enumerate(corpus.documents(split)):
            name, start, end = re.fullmatch(r"(.*), bytes (\d+) to (\d+)", corpus.locate(split, document)).groups()
            assert text in (folder / name).read_bytes()[int(start) : int(end)].decode()


def test_a_document_that_is_not_there_is_an_error(tmp_path, write_shards):
    corpus = open_corpus(write_shards(tmp_path / "c", ["1:2"] * 9, ["2:3"] * 5))
    with pytest.raises(IndexError, match="document 9: the train split has 9"):
        corpus.locate("train", 9)
