"""The corpus that needs no files: size, cleanness, sameness, and what happens to an old or half-built one."""

import json
import platform
import re
import shutil

import pytest

from nanogka.data import embedded, open_corpus
from nanogka.data.embedded import embedded_corpus


@pytest.mark.slow  # it depends on the file and on the Python version alone
def test_it_has_megabytes_of_clean_documents_in_two_splits_and_no_paragraph_twice(corpora):
    corpus = open_corpus(corpora / "embedded")
    documents, validation = (list(corpus.documents(split)) for split in ("train", "val"))
    n_val = sum(len(text.encode()) for text in validation)
    documents += validation
    size = sum(len(text.encode()) for text in documents)
    assert 1_500_000 < size < 5_000_000
    assert n_val > 0.09 * size
    assert any(text.startswith("The Python language:") for text in documents)
    seen = set()
    for text in documents:
        assert text.startswith(("Module ", "The Python language: "))
        assert not re.search(r"[ \t]\n|[\x00-\x08\x0b-\x1f\ud800-\udfff]", text)
        long = {paragraph for p in text.split("\n\n") if len(paragraph := " ".join(p.split())) > 200}
        assert not long & seen
        seen |= long


def test_a_second_build_gives_the_same_bytes_and_a_second_call_builds_nothing(base, monkeypatch, tmp_path):
    for name in ("pydoc_data", "asyncio", "email"):  # a part of the library, which takes less time
        shutil.copytree(embedded.library() / name, tmp_path / "library" / name)
    monkeypatch.setattr(embedded, "library", lambda: tmp_path / "library")
    builds = []
    for _ in range(2):
        folder = embedded_corpus()
        builds.append({file.name: file.read_bytes() for file in folder.iterdir()})
        folder.rename(tmp_path / f"build {len(builds)}")
    assert builds[0] == builds[1]
    assert sorted(builds[0]) == ["about.json", "shard_00000.parquet", "shard_00001.parquet"]
    (tmp_path / "build 2").rename(folder)
    monkeypatch.setattr(embedded, "documents", lambda: pytest.fail("built again"))
    assert embedded_corpus() == folder == base / "corpora" / "embedded"
    assert f"Python {platform.python_version()}" in open_corpus("embedded").describe()  # other versions have other text


@pytest.fixture
def texts(monkeypatch) -> list[str]:
    """Few documents instead of the real ones."""
    texts = [f"Module m{i}\n\n" + f"Sentence {i}. " * 300 for i in range(100)]
    monkeypatch.setattr(embedded, "documents", lambda: texts)
    return texts


def test_a_corpus_of_another_python_a_half_built_one_and_a_damaged_one_are_replaced(base, texts):
    folder = base / "corpora" / "embedded"
    folder.mkdir(parents=True)
    (folder / "shard_00000.parquet").write_text("half")
    corpus = open_corpus("embedded")
    assert sorted([*corpus.documents("train"), *corpus.documents("val")]) == sorted(texts)
    about = json.loads((folder / "about.json").read_text())
    (folder / "about.json").write_text(json.dumps({**about, "python": "2.7.18"}))
    texts.append("Module new\n\n" + "A new sentence. " * 300)
    embedded_corpus()
    assert json.loads((folder / "about.json").read_text())["documents"] == 101
    shard = folder / "shard_00000.parquet"
    content = shard.read_bytes()
    shard.write_bytes(content[:1000] + bytes([content[1000] ^ 1]) + content[1001:])
    embedded_corpus()
    assert shard.read_bytes() == content
    assert [path.name for path in folder.parent.iterdir()] == ["embedded"]


def test_sources_are_read_and_never_run(monkeypatch, tmp_path):
    package = tmp_path / "pack"
    package.mkdir()
    (package / "__init__.py").write_text(f'"""The package. {"It explains itself. " * 40}"""\nraise SystemExit("ran")\n')
    (package / "broken.py").write_text("def (:\n")
    function = 'def f(self, x=1):\n        """\n        Does f.\n\n            indented\n        """\n'
    (package / "m.py").write_text(f'class A:\n    """About A."""\n    {function}')
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "t.py").write_text('"""' + "A test. " * 100 + '"""')
    monkeypatch.setattr(embedded, "library", lambda: tmp_path)
    (text,) = embedded.documents()
    assert text.startswith("Module pack\n\nThe package. It explains")
    assert text.endswith("Module pack.m\n\nclass A\n\nAbout A.\n\nA.f(self, x=1)\n\nDoes f.\n\n    indented\n")
