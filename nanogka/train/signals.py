"""Stopping when asked: the first SIGINT or SIGTERM finishes the step and saves, the second ends at once.

The second must also work where the main thread is stuck in a library (a collective whose other side is gone), which
Python's own handlers would wait for. So a thread listens at the wake-up descriptor, to which the interpreter writes
the number of each signal the moment it comes.
"""

import os
import signal
import threading
import time

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
# torchrun passes on to its workers a signal that a batch system may have sent to them as well: that is one request.
SAME_REQUEST = 1.0


class StopRequest:
    """Whether a signal has asked the run to stop; a context manager that listens while it is open.

    Outside of the main thread it hears nothing.

    Attributes:
        received: the signal, or None.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._grace = SAME_REQUEST if "TORCHELASTIC_RUN_ID" in os.environ else 0.0
        self._previous: dict = {}
        self._pipe: tuple[int, int] | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is not threading.main_thread():
            return self
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        for number in EXIT_CODES:
            self._previous[number] = signal.signal(number, lambda *_: None)  # else nothing is written, and it kills
        self._thread = threading.Thread(target=self._listen, name="signals", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._pipe is None:
            return
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        os.close(self._pipe[1])  # which ends the thread
        self._thread.join()
        os.close(self._pipe[0])
        self._pipe = None

    def _listen(self) -> None:
        first = 0.0
        while heard := os.read(self._pipe[0], 1):
            number = heard[0]
            if number not in EXIT_CODES:
                continue
            if self.received is None:
                first, self.received = time.monotonic(), signal.Signals(number)
            elif time.monotonic() - first >= self._grace:
                os.write(2, b"\nasked again: ending at once, without saving\n")
                os._exit(EXIT_CODES[number])
