"""Bundles are fetched whole and verified, or not at all."""

import io
import zipfile

import pytest

from nanogka.common.errors import Errors
from nanogka.evaluate import sources
from nanogka.evaluate.bundle import open_bundle
from nanogka.evaluate.sources import fetch_bundle, open_core_tasks, open_source

BUNDLE = {
    "eval_bundle/core.yaml": "icl_tasks: [{label: one, dataset_uri: one.jsonl, icl_task_type: language_modeling}]",
    "eval_bundle/eval_data/one.jsonl": '{"context": "a", "continuation": "b"}',
}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(sources, "PAUSES", (0, 0))
    monkeypatch.delenv("NANOGKA_EVAL_BUNDLE_URL", raising=False)


@pytest.fixture
def archive(tmp_path):
    """A .zip of a bundle, in its own folder."""
    (tmp_path / "served").mkdir()
    return write_archive(tmp_path / "served/bundle.zip", BUNDLE)


def write_archive(path, files):
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return path


def kept(folder):
    return [path.name for path in folder.iterdir() if not path.name.endswith(".lock")]


def test_a_bundle_is_fetched_once_and_opened(archive, tmp_path):
    target = tmp_path / "base/eval_bundle.zip"
    assert fetch_bundle(archive.as_uri(), target) == target
    assert open_bundle(target).load("one").items == [{"context": "a", "continuation": "b"}]
    assert kept(target.parent) == ["eval_bundle.zip"]
    assert fetch_bundle("http://127.0.0.1:1/never", target) == target


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-100]),
        lambda path: write_archive(path, {"readme.txt": "no bundle"}),
    ],
)
def test_a_file_that_is_no_bundle_leaves_nothing(archive, tmp_path, damage):
    damage(archive)
    with pytest.raises(OSError, match="could not fetch"):
        fetch_bundle(archive.as_uri(), tmp_path / "base/eval_bundle.zip")
    assert kept(tmp_path / "base") == []


def test_nanochats_bundle_must_have_the_pinned_hash(archive, tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "NANOCHAT_BUNDLE_URL", archive.as_uri())
    with pytest.raises(OSError, match=sources.NANOCHAT_BUNDLE_SHA256):
        fetch_bundle(archive.as_uri(), tmp_path / "base/eval_bundle.zip")
    assert kept(tmp_path / "base") == []
    monkeypatch.setattr(sources, "NANOCHAT_BUNDLE_SHA256", sources.sha256_of(archive))
    fetch_bundle(archive.as_uri(), tmp_path / "base/eval_bundle.zip")


def answers(monkeypatch, *contents):
    """Serve these contents one after the other, with the length of the last one; returns the requested addresses."""
    asked = []

    def urlopen(url, **options):
        asked.append(url)
        answer = io.BytesIO(contents[min(len(asked), len(contents)) - 1])
        answer.headers = {"Content-Length": str(len(contents[-1]))}
        return answer

    monkeypatch.setattr("urllib.request.urlopen", urlopen)
    return asked


def test_a_download_that_breaks_off_is_repeated(archive, tmp_path, monkeypatch):
    content = archive.read_bytes()
    asked = answers(monkeypatch, content[:-1], content[:20], content)
    assert fetch_bundle("http://host/bundle.zip", tmp_path / "base/eval_bundle.zip").read_bytes() == content
    assert len(asked) == 3


def test_an_address_that_does_not_answer_is_one_line(tmp_path, monkeypatch):
    target = tmp_path / "base/eval_bundle.zip"
    for url in ("http://127.0.0.1:1/bundle.zip", "bundle.zip"):
        with pytest.raises(OSError, match="^could not fetch .*$"):
            fetch_bundle(url, target)
    asked = answers(monkeypatch, b"PK", b"PK" * 100)
    monkeypatch.setattr(sources, "PAUSES", ())
    with pytest.raises(OSError, match="got 2 of 200 bytes"):
        fetch_bundle("http://host/bundle.zip", target)
    assert (len(asked), kept(target.parent)) == (1, [])


def test_auto_opens_an_earlier_download_and_only_download_fetches(archive, base, monkeypatch):
    monkeypatch.setenv("NANOGKA_EVAL_BUNDLE_URL", archive.as_uri())
    assert open_source("auto") is None
    assert open_source("none") is None
    assert not base.exists()
    assert list(open_source("download").tasks) == ["one"]
    assert list(open_source("auto").tasks) == ["one"]
    assert open_source("none") is None
    errors = Errors()
    assert open_core_tasks("auto", ("copa",), None, errors) == []
    assert [line.partition(":")[0] for line in errors.lines] == ["--eval-bundle"]
