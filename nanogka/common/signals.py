"""SIGINT, SIGTERM and SIGHUP: stop a training run after its step, or end a script and clean up.

Python runs a handler in the main thread, between two bytecodes. No handler runs while a C call blocks, for example a
collective whose peer has died. torchrun and batch systems then send SIGKILL.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}  # 128 + number, as shells do
# A batch system may signal torchrun and its workers, and torchrun passes the signal on. Both are one request.
SAME_REQUEST_SECONDS = 1.0


@contextmanager
def handled(handler: Callable[[int, object], None], numbers: Sequence[int]) -> Iterator[None]:
    """Install `handler` for signals and restore the old ones at the end. Does nothing outside the main thread."""
    in_main = threading.current_thread() is threading.main_thread()
    previous = {number: signal.signal(number, handler) for number in numbers if in_main}
    try:
        yield
    finally:
        for number, old in previous.items():
            signal.signal(number, old)


@dataclass
class StopRequest:
    """A record of whether the user or the batch system has asked the run to stop."""

    received: signal.Signals | None = None


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Within the block the first signal sets `received`, so that the run can save. A second one ends the process.

    Ignored signals stay ignored, such as SIGHUP under nohup.
    """
    request, since = StopRequest(), 0.0
    grace = SAME_REQUEST_SECONDS if "TORCHELASTIC_RUN_ID" in os.environ else 0.0

    def handle(number: int, frame: object) -> None:
        nonlocal since
        if request.received is None:
            since, request.received = time.monotonic(), signal.Signals(number)
        elif time.monotonic() - since >= grace:
            os.write(2, b"\nsecond signal: ending at once, without saving\n")
            os._exit(EXIT_CODES[signal.Signals(number)])

    with handled(handle, [number for number in EXIT_CODES if signal.getsignal(number) != signal.SIG_IGN]):
        yield request


class Terminated(SystemExit):
    """SIGTERM or SIGHUP arrived. Raised in the main thread, so that `finally` blocks remove temporary files."""

    def __init__(self, number: int) -> None:
        received = signal.Signals(number)
        super().__init__(EXIT_CODES[received])
        self.name = received.name


@contextmanager
def terminated_by_signal() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise `Terminated`; a second one ends the process at once.

    Signals that are ignored or handled already are left alone. SIGINT raises `KeyboardInterrupt`, also after
    scripts/__init__.py.
    """
    received = []

    def terminate(number: int, frame: object) -> None:
        if received:
            os._exit(EXIT_CODES[signal.Signals(number)])
        received.append(number)
        raise Terminated(number)

    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) == signal.SIG_DFL]

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    interrupts = [signal.SIGINT] if signal.getsignal(signal.SIGINT) == signal.SIG_DFL else []
    with handled(interrupt, interrupts), handled(terminate, numbers):
        yield
