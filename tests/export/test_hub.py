"""Uploading an exported folder, to a hub on loopback."""

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from nanogka.export import check_repository, push_folder
from nanogka.problems import Problems


class Hub(BaseHTTPRequestHandler):
    """Answers what the hub library asks in order to make a repository and put a commit into it."""

    protocol_version = "HTTP/1.1"
    refuses = False

    def log_message(self, *args):
        pass

    def do_GET(self):
        self._answer(404, {})

    def do_PUT(self):
        self.server.stored[self.path] = self._body()
        self._answer(200, {})

    def do_POST(self):
        body = self._body()
        self.server.requests.append((self.path, self.headers.get("Authorization")))
        if self.server.refuses:
            return self._answer(403, {"error": "no right to write"})
        if self.path == "/api/repos/create":
            self.server.created = json.loads(body)
            return self._answer(200, {"url": f"{self.server.address}/somebody/tiny", "id": "1"})
        if self.path == "/api/validate-yaml":
            return self._answer(200, {"errors": [], "warnings": []})
        if self.path == "/api/models/somebody/tiny/preupload/main":
            modes = {True: "lfs", False: "regular"}
            files = [
                {
                    "path": file["path"],
                    "uploadMode": modes[file["path"].endswith(".safetensors")],
                    "shouldIgnore": False,
                }
                for file in json.loads(body)["files"]
            ]
            return self._answer(200, {"files": files})
        if self.path == "/somebody/tiny.git/info/lfs/objects/batch":
            objects = [
                {
                    "oid": o["oid"],
                    "size": o["size"],
                    "actions": {"upload": {"href": f"{self.server.address}/lfs/{o['oid']}"}},
                }
                for o in json.loads(body)["objects"]
            ]
            return self._answer(200, {"transfer": "basic", "objects": objects})
        if self.path == "/api/models/somebody/tiny/commit/main":
            self.server.commit = [json.loads(line) for line in body.splitlines()]
            url = f"{self.server.address}/somebody/tiny/commit/1"
            return self._answer(200, {"commitUrl": url, "commitOid": "1", "success": True})
        return self._answer(404, {})

    def _body(self):
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _answer(self, status, value):
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def hub(monkeypatch):
    """A hub on loopback that takes what is uploaded; uploads go to it, with a token of the environment."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.requests, server.stored, server.created, server.commit, server.refuses = [], {}, None, [], False
    server.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01), daemon=True)
    thread.start()
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.address)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", "hf_" + "a" * 34)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def folder(tmp_path):
    """A folder that stands for an exported one."""
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "README.md").write_text("# tiny\n")
    (tmp_path / "tiny" / "model.safetensors").write_bytes(b"weights")
    return tmp_path / "tiny"


def test_every_file_arrives_in_one_commit(hub, folder):
    assert push_folder(folder, "somebody/tiny", private=True).endswith("/somebody/tiny")
    assert (hub.created["name"], hub.created["organization"]) == ("tiny", "somebody")
    assert hub.created.get("private") or hub.created["visibility"] == "private"
    assert {token for _, token in hub.requests} == {"Bearer hf_" + "a" * 34}
    found = {entry["value"]["path"]: entry["value"] for entry in hub.commit if entry["key"] != "header"}
    assert base64.b64decode(found["README.md"]["content"]) == b"# tiny\n"
    oid = hashlib.sha256(b"weights").hexdigest()
    assert found["model.safetensors"]["oid"] == oid
    assert hub.stored == {f"/lfs/{oid}": b"weights"}


def test_a_hub_that_refuses_is_one_line(hub, folder):
    hub.refuses = True
    with pytest.raises(OSError, match=r"somebody/tiny: http://127.0.0.1:\d+: \w+: .*403") as error:
        push_folder(folder, "somebody/tiny")
    assert "\n" not in str(error.value)


def test_a_name_that_no_repository_can_have_is_named():
    problems = Problems()
    check_repository("somebody/tiny/more", problems)
    check_repository("somebody/tiny", problems)
    assert problems.lines == [
        "--push-to-hub: got 'somebody/tiny/more', takes a repository's name, such as somebody/d20-gaussian"
    ]
