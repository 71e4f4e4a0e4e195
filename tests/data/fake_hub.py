"""A server on loopback that behaves like the Hugging Face hub, and can be told to misbehave.

It answers the requests of `huggingface_hub` about one dataset repository: its description and file tree with sizes
and sha256, and the files' content, by a redirect to another host (the "CDN").
"""

import hashlib
import json
import re
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """A repository that holds `files`, name → bytes.

    Attributes:
        busy: name → how many more answers are 503.
        wrong: name → how many more have one byte flipped.
        requests: (method, path) of every request so far.
    """

    def __init__(self, repo: str, files: dict[str, bytes]) -> None:
        self.repo, self.files = repo, files
        self.busy, self.wrong = Counter(), Counter()
        self.requests: list[tuple[str, str]] = []
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=lambda: self._server.serve_forever(poll_interval=0.01), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def downloads(self, name: str) -> int:
        """The number of requests for a file's bytes."""
        return sum(method == "GET" and path == f"/cdn/{name}" for method, path in self.requests)

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
        path = self.path.partition("?")[0]
        self.hub.requests.append((self.command, path))
        repo = re.escape(self.hub.repo)
        if re.fullmatch(rf"/api/datasets/{repo}(/revision/[^/]+)?", path):
            return self._json({"id": self.hub.repo, "sha": COMMIT, "siblings": self._entries(), "tags": []})
        if re.fullmatch(rf"/api/datasets/{repo}/tree/{COMMIT}/?", path):
            return self._json(self._entries())
        if match := re.fullmatch(rf"/datasets/{repo}/resolve/{COMMIT}/([^/]+)", path):
            return self._resolve(match[1])
        if match := re.fullmatch(r"/cdn/([^/]+)", path):
            return self._content(match[1])
        return self._answer(404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "no such thing"})

    do_HEAD = do_GET

    def _entries(self) -> list[dict]:
        """The files, under the keys of a description and those of a tree alike."""
        entries = []
        for name, content in self.hub.files.items():
            lfs = {"sha256": _sha256(content), "oid": _sha256(content), "size": len(content), "pointerSize": 134}
            about = {"rfilename": name, "path": name, "type": "file", "size": len(content), "oid": "0" * 40}
            entries.append(about | {"lfs": lfs})
        return entries

    def _resolve(self, name: str) -> None:
        content = self.hub.files[name]
        # another host than the hub: the library follows redirects of one host by itself, which are none of a CDN
        cdn = self.hub.endpoint.replace("127.0.0.1", "localhost")
        where = {"Location": f"{cdn}/cdn/{name}", "X-Repo-Commit": COMMIT}
        self._answer(302, where | {"X-Linked-Size": str(len(content)), "X-Linked-Etag": f'"{_sha256(content)}"'})

    def _content(self, name: str) -> None:
        if self.hub.takes(self.hub.busy, name):
            return self._answer(503)
        content = self.hub.files[name]
        if self.hub.takes(self.hub.wrong, name):
            content = content[:-1] + bytes([content[-1] ^ 1])
        return self._answer(200, {}, content)

    def _json(self, value: object) -> None:
        self._answer(200, {"Content-Type": "application/json"}, json.dumps(value).encode())

    def _answer(self, status: int, headers: dict[str, str] = {}, body: bytes = b"") -> None:  # noqa: B006 (only read)
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
            self.wfile.flush()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
