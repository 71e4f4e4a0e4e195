"""A server on loopback that behaves like the Hugging Face hub, and can be told to misbehave.

It answers what the hub library asks of a dataset repository: the repository's description, the files' sizes and
sha256, and the files themselves, by a redirect to another path (the "CDN") that honours Range.
"""

import hashlib
import json
import re
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """`files` is what the repository holds, name → bytes.

    Attributes:
        cut: name → how many more answers break off in the middle.
        busy: name → how many more are 503.
        wrong: name → how many more have one byte flipped.
        held: name → the event that its content waits for, as on a slow line.
        ignores_range: whether the content always comes from its first byte.
        requests: (method, path, Range header or None) of every request so far.
    """

    def __init__(self, repo: str, files: dict[str, bytes]) -> None:
        self.repo, self.files = repo, files
        self.cut, self.busy, self.wrong = Counter(), Counter(), Counter()
        self.held: dict[str, threading.Event] = {}
        self.ignores_range = False
        self.requests: list[tuple[str, str, str | None]] = []
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

    def ranges(self, name: str) -> list[str | None]:
        """The Range headers of the requests for a file's bytes, in order."""
        return [wanted for method, path, wanted in self.requests if method == "GET" and f"/cdn/{name}?" in path]

    def takes(self, fault: Counter, name: str) -> bool:
        """Whether this request is to suffer `fault`; counts it down."""
        with self._lock:
            if fault[name] <= 0:
                return False
            fault[name] -= 1
            return True


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and content go out apart: 40 ms a request otherwise

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.hub.requests.append((self.command, self.path, self.headers.get("Range")))
        path = self.path.partition("?")[0]
        repo = re.escape(self.hub.repo)
        if re.fullmatch(rf"/api/datasets/{repo}(/revision/[^/]+)?", path):
            siblings = [{"rfilename": name} for name in self.hub.files]
            return self._json({"id": self.hub.repo, "sha": COMMIT, "siblings": siblings, "tags": [], "private": False})
        if match := re.fullmatch(rf"/datasets/{repo}/resolve/[^/]+/([^/]+)", path):
            return self._resolve(match[1])
        if match := re.fullmatch(r"/cdn/([^/]+)", path):
            return self._content(match[1])
        return self._missing("RepoNotFound")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self.hub.requests.append((self.command, self.path, None))
        body = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())  # the library sends a form
        if not re.fullmatch(rf"/api/datasets/{re.escape(self.hub.repo)}/paths-info/[^/]+", self.path):
            return self._missing("RepoNotFound")
        found = [(name, self.hub.files[name]) for name in body["paths"] if name in self.hub.files]
        return self._json([_path_info(name, content) for name, content in found])

    def _resolve(self, name: str) -> None:
        if name not in self.hub.files:
            return self._missing("EntryNotFound")
        content = self.hub.files[name]
        self.send_response(302)
        self.send_header("Location", f"/cdn/{name}?signature=x")
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("X-Linked-Size", str(len(content)))
        self.send_header("X-Linked-Etag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", "0")
        self.end_headers()
        return None

    def _content(self, name: str) -> None:
        if self.hub.takes(self.hub.busy, name):
            return self._empty(503)
        if name in self.hub.held:
            self.hub.held[name].wait(60)
        content = self.hub.files[name]
        start = 0
        if (wanted := self.headers.get("Range")) and not self.hub.ignores_range:
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
            if start >= len(content):
                return self._empty(416)
        if self.hub.takes(self.hub.wrong, name):
            content = content[:-1] + bytes([content[-1] ^ 1])
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if self.command == "HEAD":
            return None
        if self.hub.takes(self.hub.cut, name):
            self.wfile.write(content[start : (start + len(content)) // 2])
            self.close_connection = True
            return None
        self.wfile.write(content[start:])
        return None

    def _json(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _empty(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _missing(self, code: str) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", f"{code}: no such thing")
        self.send_header("Content-Length", "0")
        self.end_headers()


def _path_info(name: str, content: bytes) -> dict:
    sha256 = hashlib.sha256(content).hexdigest()
    lfs = {"oid": sha256, "size": len(content), "pointerSize": 134}
    return {"type": "file", "path": name, "size": len(content), "oid": "0" * 40, "lfs": lfs}
