"""SIGINT, SIGTERM and SIGHUP: stop a training run after its step, or end a script and clean up.

Python runs a handler in the main thread, between two bytecodes. No handler runs while a C call blocks, for example a
collective whose peer has died. torchrun and batch systems then send SIGKILL.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}  # 128 + number, as shells do
# A batch system may signal torchrun and its workers, and torchrun passes the signal on. Both are one request.
SAME_REQUEST_SECONDS = 1.0


@contextmanager
def handled(handler: Callable[[int, object], None], numbers: list[int]) -> Iterator[None]:
    """Install `handler` for signals and restore the old ones at the end. Does nothing outside the main thread."""
    in_main = threading.current_thread() is threading.main_thread()
    previous = {number: signal.signal(number, handler) for number in numbers if in_main}
    try:
        yield
    finally:
        for number, old in previous.items():
            signal.signal(number, old)


class StopRequest:
    """Within its `with` block the first signal sets `received`, and a second one ends the process at once.

    Ignored signals stay ignored, such as SIGHUP under nohup.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._since = 0.0
        numbers = [number for number in EXIT_CODES if signal.getsignal(number) != signal.SIG_IGN]
        self._context = handled(self._handle, numbers)

    def __enter__(self) -> "StopRequest":
        self._context.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._context.__exit__(*exception)

    def _handle(self, number: int, frame: object) -> None:
        grace = SAME_REQUEST_SECONDS if "TORCHELASTIC_RUN_ID" in os.environ else 0.0
        if self.received is None:
            self._since, self.received = time.monotonic(), signal.Signals(number)
        elif time.monotonic() - self._since >= grace:
            os.write(2, b"\nsecond signal: ending at once, without saving\n")
            os._exit(EXIT_CODES[number])


class Terminated(SystemExit):
    """SIGTERM or SIGHUP arrived. Raised in the main thread, so that `finally` blocks remove temporary files."""

    def __init__(self, number: int) -> None:
        super().__init__(EXIT_CODES[number])
        self.name = signal.Signals(number).name


@contextmanager
def terminated_by_signal() -> Iterator[None]:
    """Make SIGTERM and SIGHUP raise `Terminated`; a second one ends the process at once.

    Signals that are ignored or handled already are left alone.
    """
    received = []

    def terminate(number: int, frame: object) -> None:
        if received:
            os._exit(EXIT_CODES[number])
        received.append(number)
        raise Terminated(number)

    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) == signal.SIG_DFL]
    with handled(terminate, numbers):
        yield
