"""The one thread that owns the model. It takes requests from a bounded queue and generates all of them together.

Requests start in the order in which they came. A small request does not overtake a large one that has to wait for room,
even if the small one would fit at once: otherwise a steady flow of small requests could keep the large one waiting
forever. The price is that some room stays empty meanwhile.

Calls of other functions that use the model wait in the same bounded queue. At most one call runs between two steps, so
running texts continue while calls wait.
"""

import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

from nanogka.generate.continuous import Request, TokenOutput
from nanogka.generate.engine import Engine

# Prompts are prefilled together up to this many tokens, padding included. That is faster than one by one, but running
# texts get no token meanwhile. So a burst of requests starts in portions, with a step of all texts between them.
PREFILL_TOKENS = 1024

OnOutputs = Callable[[list[TokenOutput] | Exception], None]


class QueueFull(Exception):
    """Too many requests are waiting."""


class Stopped(Exception):
    """The server is stopping: the request will not be finished."""


class Scheduler:
    """Generates up to `max_batch` texts together while `max_queue` requests may wait. Nothing else may use the model.

    The thread calls a request's `on_outputs` with the new tokens of all its texts at each step, or with the exception
    that ended the request. The function must not block.
    """

    def __init__(self, engine: Engine, max_batch: int, max_queue: int) -> None:
        self.engine, self.max_batch, self.max_queue = engine, max_batch, max_queue
        self._batch = engine.batch()
        self._waiting: deque[Request] = deque()
        self._on_outputs: dict[Request, OnOutputs] = {}  # of requests that wait or run
        self._aborted: list[Request] = []  # running requests to drop before the next step
        self._calls: deque[tuple[Callable[[], object], Future]] = deque()
        self._closing = False
        self._changed = threading.Condition()
        self._start()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
        self._thread.start()

    @property
    def load(self) -> dict[str, int]:
        """The number of running texts, and of waiting requests and calls."""
        return {"running": len(self._batch), "waiting": len(self._waiting) + len(self._calls)}

    def add(self, request: Request, on_outputs: OnOutputs) -> None:
        """Queue a checked request of at most `max_batch` texts. Raises QueueFull, or Stopped after `close`."""
        assert request.rows <= self.max_batch, "a request must fit into the batch"
        with self._changed:
            self._admit()
            self._waiting.append(request)
            self._on_outputs[request] = on_outputs
            self._changed.notify()

    def call(self, function: Callable[[], object]) -> Future:
        """Run `function` in the scheduler's thread between two steps, where it may use the model.

        `cancel()` of the future takes the call out of the queue, unless it has begun. Raises as `add` does.
        """
        future: Future = Future()
        with self._changed:
            self._admit()
            self._calls.append((function, future))
            self._changed.notify()
        future.add_done_callback(self._drop_cancelled)
        return future

    def _admit(self) -> None:
        """Raise unless one more request or call may wait. The caller holds the lock."""
        if self._closing:
            raise Stopped
        if len(self._waiting) + len(self._calls) >= self.max_queue:
            raise QueueFull

    def _drop_cancelled(self, future: Future) -> None:
        """Make room in the queue when a call that waits is cancelled."""
        if future.cancelled():
            with self._changed:
                self._calls = deque(call for call in self._calls if call[1] is not future)

    def abort(self, request: Request) -> None:
        """Drop a request unless it has ended. At most the tokens of the current step are still delivered."""
        with self._changed:
            if self._on_outputs.pop(request, None) is None:
                return
            if request in self._waiting:
                self._waiting.remove(request)
            else:
                self._aborted.append(request)
                self._changed.notify()

    def close(self) -> None:
        """Stop after the current step. Unfinished requests fail with `Stopped`."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closing or self._waiting or self._aborted or self._calls or len(self._batch)
                )
                if self._closing:
                    break
            self._turn()
        self._end()

    def _turn(self) -> None:
        """Make one call, start the next requests and generate one token of every text."""
        with self._changed:
            aborted, self._aborted = self._aborted, []
            call = self._calls.popleft() if self._calls else None
        if call is not None:
            self._call(*call)
        try:
            # In this order: aborted texts make room for the next requests, which take part in the step at once.
            for request in aborted:
                self._batch.abort(request)
            self._batch.add(self._next_requests())
            if len(self._batch):
                self._step()
        except Exception as error:  # of any kind: the clients must get an answer, and the next ones be served
            traceback.print_exc(file=sys.stderr)
            self._batch = self.engine.batch()  # the state of the old one is undefined
            with self._changed:
                running = self._on_outputs.keys() - set(self._waiting)
            for request in running:
                self._deliver(request, error)

    def _end(self) -> None:
        """Tell all that wait or run that they will not be finished."""
        for request in list(self._on_outputs):
            self._deliver(request, Stopped())
        for _, future in list(self._calls):
            if future.set_running_or_notify_cancel():
                future.set_exception(Stopped())

    def _call(self, function: Callable[[], object], future: Future) -> None:
        # A future that runs cannot be cancelled any more. Setting the result of a cancelled one would raise.
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(function())
        except Exception as error:  # the caller gets it
            future.set_exception(error)

    def _next_requests(self) -> list[Request]:
        """Take the requests that can start now from the queue."""
        requests, free, longest = [], self.max_batch - len(self._batch), 0
        with self._changed:
            while self._waiting and self._waiting[0].rows <= free:
                longest = max(longest, *map(len, self._waiting[0].prompts))
                prompts = sum(len(request.prompts) for request in [*requests, self._waiting[0]])
                if requests and prompts * longest > PREFILL_TOKENS:
                    break
                requests.append(self._waiting.popleft())
                free -= requests[-1].rows
        return requests

    def _step(self) -> None:
        """Generate one token of every text and deliver the tokens request by request."""
        parts: dict[Request, list[TokenOutput]] = {}
        for request, output in self._batch.step():
            parts.setdefault(request, []).append(output)
        unfinished = self._batch.requests
        for request, outputs in parts.items():
            self._deliver(request, outputs, last=request not in unfinished)

    def _deliver(self, request: Request, part: list[TokenOutput] | Exception, last: bool = True) -> None:
        """Hand over a part of a request, unless the request was aborted."""
        with self._changed:
            on_outputs = self._on_outputs.pop(request, None) if last else self._on_outputs.get(request)
        if on_outputs:
            on_outputs(part)
