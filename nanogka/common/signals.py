"""SIGINT and SIGTERM: end a script tidily, or ask a training run to stop after its step.

Python runs signal handlers in the main thread, between two bytecodes: not while a library keeps it, as a collective
does whose peer is gone. But the interpreter writes the number of each signal to a wake-up file descriptor at once. A
thread that reads it can act in the meantime.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
GRACE = 2.0  # seconds that a script has to end after SIGTERM
# torchrun passes on to its workers a signal that a batch system may have sent to them as well: that is one request.
SAME_REQUEST = 1.0


@contextmanager
def handled(handlers: Mapping[int, Callable], notice: Callable[[int], None]) -> Iterator[None]:
    """Install signal handlers, and call `notice(number)` of such a signal at once, in a thread.

    No-op outside the main thread, where Python allows no handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    read_fd, write_fd = os.pipe()
    os.set_blocking(write_fd, False)

    def listen() -> None:
        while number := os.read(read_fd, 1):
            if number[0] in handlers:
                notice(number[0])
        os.close(read_fd)

    previous = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    wakeup = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
    threading.Thread(target=listen, name="signals", daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in previous.items():
            signal.signal(number, handler)
        os.close(write_fd)  # end of file for the thread


class StopRequest:
    """A signal's request to stop the run, while the context manager is open; a second one ends the process at once."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._since = 0.0
        # The default action would end the process.
        self._context = handled(dict.fromkeys(EXIT_CODES, lambda *_: None), self._notice)

    def __enter__(self) -> "StopRequest":
        self._context.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._context.__exit__(*exception)

    def _notice(self, number: int) -> None:
        grace = SAME_REQUEST if "TORCHELASTIC_RUN_ID" in os.environ else 0.0
        if self.received is None:
            self._since, self.received = time.monotonic(), signal.Signals(number)
        elif time.monotonic() - self._since >= grace:
            os.write(2, b"\nsecond signal: ending at once, without saving\n")
            os._exit(EXIT_CODES[number])


class Terminated(SystemExit):
    """SIGTERM came; raised in the main thread, so that what is half-written is removed on the way out."""


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Make SIGTERM raise `Terminated`, or end the process where a library keeps the main thread beyond `GRACE`.

    Leaves alone a process that handles the signal itself.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    done, hook = threading.Event(), sys.unraisablehook

    def terminate(number: int, frame: object) -> None:
        raise Terminated(EXIT_CODES[number])

    def notice(number: int) -> None:
        if signal.getsignal(number) is terminate and not done.wait(GRACE):
            os.write(2, b"ended by SIGTERM\n")
            os._exit(EXIT_CODES[number])

    def raised_in_finalizer(unraisable: object) -> None:
        """Send the signal again: no exception gets out of a finalizer."""
        if isinstance(unraisable.exc_value, Terminated):
            threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGTERM)).start()
        else:
            hook(unraisable)

    with handled({signal.SIGTERM: terminate}, notice):
        sys.unraisablehook = raised_in_finalizer
        try:
            yield
        finally:
            done.set()
            sys.unraisablehook = hook
