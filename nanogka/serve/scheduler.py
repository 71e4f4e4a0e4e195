"""The one thread that owns the model: takes jobs from a bounded queue and generates them all together.

    scheduler = Scheduler(engine, max_batch=32, max_queue=64)
    scheduler.submit(job, deliver)      # from any thread; QueueFull if too many wait
    scheduler.cancel(job)
    scheduler.close()

Jobs begin in the order in which they came, as soon as the batch has room for the first of them; a job that is too large
for what is free is waited for, so that none is overtaken for ever.
"""

import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable

from nanogka.generate import Engine
from nanogka.generate.continuous import ContinuousBatch, Job, Token

PREFILL_TOKENS = 8192  # of prompts that begin together, padding included: running texts wait for them

Deliver = Callable[[list[Token] | Exception], None]


class QueueFull(Exception):
    """Too many jobs wait already."""


class Stopped(Exception):
    """The server stops: the job will not be finished."""


class Scheduler:
    """Runs jobs in a thread of its own.

    Args:
        engine: generates; nothing else may use its model meanwhile.
        max_batch: texts generated together.
        max_queue: jobs that may wait.

    `deliver` of a job is called from that thread with its tokens of each step, all texts of the job together, and, if
    it fails, with the exception, after which nothing follows. It must not block.
    """

    def __init__(self, engine: Engine, max_batch: int, max_queue: int) -> None:
        self.engine, self.max_batch, self.max_queue = engine, max_batch, max_queue
        self._batch = ContinuousBatch(engine)
        self._waiting: deque[Job] = deque()
        self._deliver: dict[Job, Deliver] = {}  # of jobs that wait or run
        self._cancelled: list[Job] = []
        self._closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="scheduler", daemon=True)
        self._thread.start()

    @property
    def load(self) -> dict[str, int]:
        """Numbers of texts that are generated now, and of jobs that wait."""
        return {"running": len(self._batch), "waiting": len(self._waiting)}

    def submit(self, job: Job, deliver: Deliver) -> None:
        """Queue a job that `Job.check` passes and `max_batch` holds.

        Raises:
            QueueFull: if `max_queue` jobs wait already.
            Stopped: if it is closed.
        """
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
        """Drop a job; at most the tokens of the step that runs are still delivered. Nothing happens if it has ended."""
        with self._changed:
            if self._deliver.pop(job, None) is not None:
                self._cancelled.append(job)
                self._changed.notify()

    def close(self) -> None:
        """Stop after the step that runs, and fail what is left with `Stopped`."""
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
            except Exception as error:  # whatever it is, those who wait must hear of it, and the next ones be served
                traceback.print_exc(file=sys.stderr)
                with self._changed:
                    running = [job for job in self._deliver if job not in self._waiting]
                self._batch = ContinuousBatch(self.engine)
                for job in running:
                    self._end(job, error)
        for job in list(self._deliver):
            self._end(job, Stopped())

    def _next(self) -> list[Job]:
        """Take the jobs from the queue that can begin now."""
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
        """Generate a token of every text, and deliver them job by job."""
        parts: dict[Job, list[Token]] = {}
        for token in self._batch.step():
            parts.setdefault(token.job, []).append(token)
        for job, tokens in parts.items():
            if deliver := self._deliver.get(job):
                deliver(tokens)
        running = self._batch.jobs
        with self._changed:
            for job in parts:
                if job not in running:
                    self._deliver.pop(job, None)

    def _end(self, job: Job, error: Exception) -> None:
        """Tell a job that it failed."""
        with self._changed:
            deliver = self._deliver.pop(job, None)
        if deliver:
            deliver(error)
