"""The engine of a page, run by node instead of a browser: the same files, the same rounded weights."""

import base64
import json
import shutil
import subprocess
from typing import Any

from nanogka.page.build import engine_source

# What a browser gives a worker. `posted` keeps the messages to the page.
WORKER = "var onmessage, onunhandledrejection; const posted = [], postMessage = (message) => posted.push(message);\n"


def run_engine(script: str, spec: dict | None = None, weights: bytes = b"", **values: object) -> Any:
    """The value that the body of a JavaScript function returns, as JSON carries it.

    With `spec` and `weights`, see `build.describe`, the network is loaded before. `values` are constants of the script.
    Raises ValueError if there is no node, and RuntimeError if the script fails.
    """
    node = shutil.which("node")
    if node is None:
        raise ValueError("node: not found; install Node.js (https://nodejs.org), which runs a page's script")
    if spec is not None:
        data = {"type": "load", "spec": spec, "weights": base64.b64encode(weights).decode()}
        script = f"onmessage({{ data: {json.dumps(data)} }}); const spec = {json.dumps(spec)};\n{script}"
    given = "".join(f"const {name} = {json.dumps(value)};\n" for name, value in values.items())
    written = "process.stdout.write(JSON.stringify(value) ?? 'null')"
    program = f"{engine_source()}\n{WORKER}{given}(async () => {{ {script} }})().then((value) => {written});"
    done = subprocess.run([node, "-"], input=program, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"node: {done.stderr.strip()[-1000:]}")
    return json.loads(done.stdout)
