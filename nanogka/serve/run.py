"""Serving a run: the server's life from the socket to the last reply."""

import os
import signal
import socket

import uvicorn

from nanogka.generate import Engine
from nanogka.problems import Problems
from nanogka.runs import find_run, load_run
from nanogka.runtime import pick_device_and_dtype
from nanogka.serve.app import make_app
from nanogka.serve.requests import Served
from nanogka.serve.settings import KEY_VARIABLE, LOOPBACK, ServeSettings


def serve(settings: ServeSettings, problems: Problems) -> int:
    """Load the model and serve it until SIGTERM or Ctrl-C; returns the exit code.

    Raises:
        ValueError: with a line for each setting that cannot be used.
        OSError: if the port is taken, or a file cannot be read.
    """
    settings.check(problems)
    device, dtype = pick_device_and_dtype(settings.device, settings.dtype, problems)
    problems.attempt(lambda: find_run(settings.run))
    problems.raise_any()
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.create_server((settings.host, settings.port), family=family, backlog=1024) as listening:
        loaded = load_run(settings.run, device, settings.step, dtype)
        engine = Engine(loaded.model, loaded.tokenizer)
        engine.generate(" ", max_tokens=2)  # compiles kernels now, not during the first reply
        created = int((loaded.checkpoint_folder / "manifest.json").stat().st_mtime)
        served = Served(settings.name or loaded.folder.name, engine, loaded.kind == "chat", created)
        api_key = settings.api_key or os.environ.get(KEY_VARIABLE, "")
        app = make_app(served, settings.limits, api_key, settings.hosts)
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            ws="none",
            limit_concurrency=settings.max_connections,
            timeout_graceful_shutdown=max(1, round(settings.stop_seconds)),
        )
        host, port = listening.getsockname()[:2]
        where = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        print(f"serving {served.name}, step {loaded.step} ({loaded.kind}, {device}), at {where}", flush=True)
        if settings.host not in LOOPBACK and not api_key:
            print(f"anybody who reaches {settings.host} can use it: --api-key or {KEY_VARIABLE} sets a key", flush=True)
        # uvicorn raises the signal again once it has stopped; that this is then nothing makes the exit code 0.
        signal.signal(signal.SIGTERM, lambda *_: None)
        uvicorn.Server(config).run(sockets=[listening])
    return 0
