"""The one thread that owns the model: takes jobs from a bounded queue and generates them all together.

First in, first out: a large job blocks later ones until there is room for it, so that it cannot starve.
"""

import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable

from nanogka.generate.continuous import Event, Job
from nanogka.generate.engine import Engine

PREFILL_TOKENS = 8192  # of prompts read together, padding included: running texts get no token meanwhile

Deliver = Callable[[list[Event] | Exception], None]


class QueueFull(Exception):
    """Too many jobs are waiting."""


class Stopped(Exception):
    """The server is stopping: the job will not be finished."""


class Scheduler:
    """Generates `max_batch` texts together, while `max_queue` jobs may wait; nothing else may use the model meanwhile.

    A job's `deliver` is called from that thread with the events of each step, all texts of the job together, or with
    the exception that ended the job. It must not block.
    """

    def __init__(self, engine: Engine, max_batch: int, max_queue: int) -> None:
        self.engine, self.max_batch, self.max_queue = engine, max_batch, max_queue
        self._batch = engine.batch()
        self._waiting: deque[Job] = deque()
        self._deliver: dict[Job, Deliver] = {}  # of jobs that wait or run
        self._cancelled: list[Job] = []
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
        self._thread.start()

    @property
    def load(self) -> dict[str, int]:
        """The number of running texts and of waiting jobs."""
        return {"running": len(self._batch), "waiting": len(self._waiting)}

    def submit(self, job: Job, deliver: Deliver) -> None:
        """Queue a checked job of at most `max_batch` texts. Raises QueueFull, or Stopped after `close`."""
        assert job.rows <= self.max_batch, "a job must fit into the batch"
        with self._changed:
            if self._closing:
                raise Stopped
            if len(self._waiting) >= self.max_queue:
                raise QueueFull
            self._waiting.append(job)
            self._deliver[job] = deliver
            self._changed.notify()

    def cancel(self, job: Job) -> None:
        """Drop a job, if it has not ended; at most the events of the current step are still delivered."""
        with self._changed:
            if self._deliver.pop(job, None) is not None:
                self._cancelled.append(job)
                self._changed.notify()

    def close(self) -> None:
        """Stop after the current step; unfinished jobs fail with `Stopped`."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._waiting or self._cancelled or len(self._batch))
                if self._closing:
                    break
                cancelled, self._cancelled = self._cancelled, []
                self._waiting = deque(job for job in self._waiting if job in self._deliver)
            try:
                for job in cancelled:
                    self._batch.leave(job)
                self._batch.join(self._next())
                self._step()
            except Exception as error:  # of any kind: the clients must get an answer, and the next ones be served
                traceback.print_exc(file=sys.stderr)
                self._batch = self.engine.batch()
                with self._changed:
                    running = self._deliver.keys() - set(self._waiting)
                for job in running:
                    self._give(job, error)
        for job in list(self._deliver):
            self._give(job, Stopped())

    def _next(self) -> list[Job]:
        """Take the jobs that can begin now from the queue."""
        jobs, free, longest = [], self.max_batch - len(self._batch), 0
        with self._changed:
            while self._waiting and self._waiting[0].rows <= free:
                longest = max(longest, *map(len, self._waiting[0].prompts))
                prompts = sum(len(job.prompts) for job in [*jobs, self._waiting[0]])
                if jobs and prompts * longest > PREFILL_TOKENS:
                    break
                jobs.append(self._waiting.popleft())
                free -= jobs[-1].rows
        return jobs

    def _step(self) -> None:
        """Generate one token of every text and deliver the events job by job."""
        parts: dict[Job, list[Event]] = {}
        for job, event in self._batch.step():
            parts.setdefault(job, []).append(event)
        running = self._batch.jobs
        for job, events in parts.items():
            self._give(job, events, last=job not in running)

    def _give(self, job: Job, part: list[Event] | Exception, last: bool = True) -> None:
        """Deliver a part of a job, unless it was cancelled."""
        with self._changed:
            deliver = self._deliver.pop(job, None) if last else self._deliver.get(job)
        if deliver:
            deliver(part)
