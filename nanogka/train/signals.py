"""Stopping when asked: the first SIGINT or SIGTERM finishes the step and saves, the second ends at once."""

import signal
from types import FrameType

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


class StopRequest:
    """Whether a signal has asked the run to stop; a context manager that listens while it is open.

    Attributes:
        received: the signal, or None.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._previous: dict = {}

    def __enter__(self) -> "StopRequest":
        for number in EXIT_CODES:
            try:
                self._previous[number] = signal.signal(number, self._handle)
            except ValueError:  # not in the main thread: nobody to ask
                break
        return self

    def __exit__(self, *exception: object) -> None:
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received = signal.Signals(number)
        self._restore()  # so that the second one does what it always does
