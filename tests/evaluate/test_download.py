"""Fetching a bundle from a server on this machine: whole and verified, or not at all."""

import functools
import hashlib
import http.server
import shutil
import socket
import threading
import zipfile

import pytest

from nanogka.evaluate import open_bundle
from nanogka.evaluate.download import DownloadError, fetch_bundle


@pytest.fixture
def archive(tmp_path):
    """A .zip of a bundle, in a folder of its own."""
    root = tmp_path / "made/eval_bundle"
    (root / "eval_data").mkdir(parents=True)
    (root / "core.yaml").write_text(
        "icl_tasks:\n- label: one\n  dataset_uri: one.jsonl\n  icl_task_type: language_modeling\n"
    )
    (root / "eval_data/one.jsonl").write_text('{"context": "a", "continuation": "b"}\n')
    (tmp_path / "served").mkdir()
    return shutil.make_archive(tmp_path / "served/bundle", "zip", root.parent, "eval_bundle")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        pass


class CutShort(Quiet):
    """Announces more than it sends."""

    def end_headers(self):
        pass

    def send_header(self, name, value):
        pass

    def do_GET(self):
        self.wfile.write(b"HTTP/1.0 200 OK\r\nContent-Length: 100000\r\n\r\nPK\x03\x04")


@pytest.fixture
def serve(tmp_path, archive, monkeypatch):
    """`serve(handler)` gives the URL of the archive."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    servers = []

    def start(handler=Quiet):
        handler = functools.partial(handler, directory=tmp_path / "served")
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/bundle.zip"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def leftovers(folder):
    return [path.name for path in folder.iterdir()] if folder.exists() else []


def test_a_bundle_is_fetched_verified_and_opened(serve, archive, tmp_path):
    with open(archive, "rb") as file:
        digest = hashlib.sha256(file.read()).hexdigest()
    target = tmp_path / "base/eval_bundle"
    assert fetch_bundle(serve(), target, digest.upper()) == target
    assert open_bundle(target).load("one").items == [{"context": "a", "continuation": "b"}]
    assert leftovers(target.parent) == ["eval_bundle"]


def test_a_bundle_that_is_there_is_not_fetched_again(tmp_path):
    (tmp_path / "eval_bundle").mkdir()
    assert fetch_bundle("http://127.0.0.1:1/never", tmp_path / "eval_bundle") == tmp_path / "eval_bundle"


def test_a_wrong_sha256_leaves_nothing(serve, tmp_path):
    with pytest.raises(ValueError, match="SHA-256 is [0-9a-f]{64}, takes 0000"):
        fetch_bundle(serve(), tmp_path / "base/eval_bundle", "0000")
    assert leftovers(tmp_path / "base") == []


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_archive_leaves_nothing(serve, archive, tmp_path, damage):
    with zipfile.ZipFile(archive) as whole:
        member = whole.getinfo("eval_bundle/core.yaml")
    with open(archive, "rb") as file:
        content = bytearray(file.read())
    if damage == "cut":
        content = content[: len(content) // 2]
    else:
        content[member.header_offset + 30 + len(member.filename) + member.compress_size // 2] ^= 0x10
    with open(archive, "wb") as file:
        file.write(content)
    with pytest.raises(ValueError, match="not a good .zip"):
        fetch_bundle(serve(), tmp_path / "base/eval_bundle")
    assert leftovers(tmp_path / "base") == []


def test_an_archive_that_holds_no_bundle_leaves_nothing(serve, archive, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other/readme.txt").write_text("no bundle")
    shutil.make_archive(archive.removesuffix(".zip"), "zip", tmp_path / "other")
    with pytest.raises(ValueError, match="has no core.yaml"):
        fetch_bundle(serve(), tmp_path / "base/eval_bundle")
    assert leftovers(tmp_path / "base") == []


def test_a_connection_that_breaks_off_is_one_line(serve, tmp_path):
    with pytest.raises(DownloadError, match="could not fetch http.*: ") as error:
        fetch_bundle(serve(CutShort), tmp_path / "base/eval_bundle")
    assert "\n" not in str(error.value)
    assert leftovers(tmp_path / "base") == []


@pytest.mark.parametrize("kind", ["missing file", "no server", "no URL"])
def test_what_cannot_be_fetched_is_one_line(serve, tmp_path, kind):
    if kind == "missing file":
        url = serve() + ".missing"
    elif kind == "no URL":
        url = "bundle.zip"
    else:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{unused.getsockname()[1]}/bundle.zip"
    with pytest.raises(DownloadError, match="could not fetch") as error:
        fetch_bundle(url, tmp_path / "base/eval_bundle")
    assert "\n" not in str(error.value)
    assert leftovers(tmp_path / "base") == []
