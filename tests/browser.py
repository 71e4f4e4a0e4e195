"""A page in Chromium, driven through its DevTools protocol."""

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One tab of a headless Chromium; commands go through a pipe, so nothing but Chromium is needed."""

    def __init__(self, profile) -> None:
        (theirs_in, self.out), (self.inn, theirs_out) = os.pipe(), os.pipe()
        flags = "--headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --remote-debugging-pipe"
        flags += f" --user-data-dir={profile} --window-size=1200,1600"
        command = f"exec {CHROMIUM} {flags} about:blank 3<&{theirs_in} 4>&{theirs_out}"
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(["bash", "-c", command], pass_fds=(theirs_in, theirs_out), **quiet)
        os.close(theirs_in)
        os.close(theirs_out)
        self.held, self.events, self.number, self.session = b"", [], 0, {}
        self.address = "about:blank"
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters) -> dict:
        """The result of a command; events that come before it are kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters} | self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _receive(self) -> dict:
        until = time.monotonic() + 60
        while b"\0" not in self.held:
            ready, _, _ = select.select([self.inn], [], [], max(0, until - time.monotonic()))
            part = os.read(self.inn, 1 << 20) if ready else b""
            assert part, "Chromium does not answer"
            self.held += part
        message, _, self.held = self.held.partition(b"\0")
        return json.loads(message)

    def open(self, page: Path | str, fragment: str = "") -> None:
        """Load a file, or the page at an address, and wait until its script has run."""
        self.address = page if isinstance(page, str) else page.as_uri()
        self.call("Page.navigate", url="about:blank")
        self.events.clear()
        self.call("Page.navigate", url=self.address + fragment)
        while not self.evaluate("document.readyState === 'complete' && location.protocol !== 'about:'"):
            time.sleep(0.05)

    def evaluate(self, script: str) -> object:
        """The value of an expression, as JSON carries it."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def mouse(self, kind: str, selector: str) -> None:
        """Move the mouse to the middle of an element, or `click` it."""
        place = f"document.querySelector({json.dumps(selector)})"
        self.evaluate(f"{place}.scrollIntoView({{block: 'center'}})")
        box = self.evaluate(f"{place}.getClientRects()[0].toJSON()")
        where = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
        self.call("Input.dispatchMouseEvent", type="mouseMoved", **where)
        if kind == "click":
            for event in ("mousePressed", "mouseReleased"):
                self.call("Input.dispatchMouseEvent", type=event, button="left", clickCount=1, **where)

    def key(self, key: str, shift: bool = False) -> None:
        for event in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=event, key=key, code=key, modifiers=8 if shift else 0)

    def complaints(self) -> list:
        """Errors of the page since it was opened, and its requests to other servers than its own."""
        own = (self.address, "about:", "data:", "blob:")
        self.evaluate("new Promise((done) => setTimeout(done, 50))")
        bad = []
        for event in self.events:
            match event.get("method"), event.get("params"):
                case "Runtime.exceptionThrown", details:
                    bad.append(details)
                case "Runtime.consoleAPICalled", {"type": "error" | "warning" | "assert"} as details:
                    bad.append(details)
                case "Log.entryAdded", {"entry": {"level": "error" | "warning"}} as details:
                    bad.append(details)
                case "Network.requestWillBeSent", {"request": {"url": url}} if not url.startswith(own):
                    bad.append(url)
        return bad

    def close(self) -> None:
        """End Chromium."""
        self.process.terminate()
        self.process.wait(20)
        os.close(self.out)
        os.close(self.inn)
