"""A server on loopback that answers `huggingface_hub` about one dataset, and can be told to misbehave."""

import hashlib
import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """A repository that holds `files`, name → bytes; `requests` are the (method, path) so far."""

    def __init__(self, repo: str, files: dict[str, bytes]) -> None:
        self.repo, self.files, self.requests = repo, files, []
        self.busy, self.wrong = Counter(), Counter()  # name → how many more answers are 503, or have one bit flipped
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=lambda: self._server.serve_forever(poll_interval=0.01), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def downloads(self, name: str) -> int:
        return self.requests.count(("GET", f"/cdn/{name}"))

    def takes(self, fault: Counter, name: str) -> bool:
        """True if this request is to suffer `fault`; counts it down."""
        with self._lock:
            fault[name] -= 1
            return fault[name] >= 0


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and content go out apart: 40 ms a request otherwise

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        hub, path = self.hub, self.path.partition("?")[0].rstrip("/")
        hub.requests.append((self.command, path))
        api, name = f"/api/datasets/{hub.repo}", path.rpartition("/")[2]
        if path in (api, f"{api}/revision/main", f"{api}/revision/{COMMIT}"):
            return self._answer(200, json.dumps({"id": hub.repo, "sha": COMMIT, "siblings": self._entries()}).encode())
        if path == f"{api}/tree/{COMMIT}":
            return self._answer(200, json.dumps(self._entries()).encode())
        if path == f"/datasets/{hub.repo}/resolve/{COMMIT}/{name}":
            # another host than the hub: the library follows redirects of one host by itself, which are none of a CDN
            about = {"Location": f"{hub.endpoint.replace('127.0.0.1', 'localhost')}/cdn/{name}"}
            about |= {"X-Repo-Commit": COMMIT, "X-Linked-Size": str(len(hub.files[name]))}
            return self._answer(302, b"", about | {"X-Linked-Etag": f'"{_sha256(hub.files[name])}"'})
        if hub.takes(hub.busy, name):
            return self._answer(503)
        content = hub.files[name]
        return self._answer(200, content[:-1] + bytes([content[-1] ^ hub.takes(hub.wrong, name)]))

    do_HEAD = do_GET

    def _entries(self) -> list[dict]:
        """The files, under the keys of a description and those of a tree alike."""
        return [
            {"rfilename": name, "path": name, "type": "file", "size": len(content), "oid": "0" * 40}
            | {"lfs": {"sha256": _sha256(content), "oid": _sha256(content), "size": len(content), "pointerSize": 134}}
            for name, content in self.hub.files.items()
        ]

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] = {}) -> None:  # noqa: B006 (only read)
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
