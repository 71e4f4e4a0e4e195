"""A rank that dies brings the others down with a message, instead of leaving them in a collective for ever.

    with together(ranks, device, timeout):
        ...                              # an error on one rank ends all of them; each says which rank it was

Every rank has a thread that gives a sign of life through the store of the process group once a second. The first rank
watches all others, they watch the first, so that the traffic grows with the ranks and not with their square. A rank
that fails says so before it leaves. One that is killed falls silent: gloo then breaks the collective at once, and the
silence tells whose fault it was; nccl waits, and the silence itself ends the wait.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist

from nanogka.distributed import Ranks
from nanogka.train.bad_batch import NonFiniteError

EXIT_NON_FINITE, EXIT_LOST_RANK, EXIT_OUT_OF_MEMORY = 3, 4, 5

INTERVAL = 1.0  # seconds between signs of life
GRACE = 3.0  # seconds that a rank has to say itself why it ends, before its thread ends it
# Shares of the time-out of collectives: how long a rank may be silent, and how long once a collective has broken.
SILENCE, SILENCE_AFTER_ERROR = 1 / 10, 1 / 60
LOST, SUSPECTED, DONE = "lost", "suspected", b"done"


class LostRankError(RuntimeError):
    """Another rank is gone; the text names it."""


class Lifeline:
    """This rank's thread of signs of life; see the module.

    Args:
        ranks: this process among all.
        store: that all ranks share, and no other thread of this process uses.
        timeout: seconds, of collectives.
        leave: ends the process with an exit code.
    """

    def __init__(
        self, ranks: Ranks, store: dist.Store, timeout: float, leave: Callable[[int], None] = os._exit
    ) -> None:
        self.ranks, self.store, self.timeout, self.leave = ranks, store, timeout, leave
        self.verdict: str | None = None
        self._found, self._stop = threading.Event(), threading.Event()
        self._suspicious = False
        watched = [0] if ranks.rank else range(1, ranks.world_size)
        self._seen: dict[int, tuple[bytes | None, float]] = {rank: (None, time.monotonic()) for rank in watched}
        self._thread = threading.Thread(target=self._run, name="lifeline", daemon=True)
        self._thread.start()

    def announce(self, error: BaseException) -> None:
        """Tell the others that this rank ends, and why."""
        cause = (str(error).strip().splitlines() or [""])[0]
        self._set_lost(f"rank {self.ranks.rank} ended with {type(error).__name__}: {cause}")

    def who_is_lost(self) -> str | None:
        """What happened, once a collective has broken: waits until it is known, but not for long."""
        self._suspicious = True
        self._found.wait(max(self.timeout * SILENCE_AFTER_ERROR, 2 * INTERVAL) + 3 * INTERVAL)
        return self.verdict

    def stop(self) -> None:
        """No more signs, and none expected of this rank."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=2 * INTERVAL)

    def _run(self) -> None:
        count, before, failures = 0, time.monotonic(), 0
        while not self._stop.is_set():
            now = time.monotonic()
            if now - before > 5 * INTERVAL:  # it was this process that slept: nobody else is to blame
                self._seen = {rank: (value, now) for rank, (value, _) in self._seen.items()}
            before, count = now, count + 1
            try:
                self.store.set(self._key(self.ranks.rank), str(count))
                if self._suspicious:
                    self.store.set(SUSPECTED, "1")
                self.verdict, failures = self._look(now), 0
            except Exception as error:  # the store's errors have no common type
                failures += 1
                if failures > 1:
                    cause = (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
                    self.verdict = f"rank 0 or its node, which holds the ranks together, is gone ({cause})"
            if self.verdict is not None:
                self._found.set()
                if not self._stop.wait(GRACE):
                    self._end()
                return
            self._stop.wait(INTERVAL)
        try:
            self.store.set(self._key(self.ranks.rank), DONE)
        except Exception:
            return  # nobody is left to tell

    def _look(self, now: float) -> str | None:
        """What is known of a lost rank."""
        if self.store.check([LOST]):
            return self.store.get(LOST).decode()
        alarmed = self._suspicious or self.store.check([SUSPECTED])
        # Twice the interval, or a sign that is merely late would count.
        limit = max(self.timeout * (SILENCE_AFTER_ERROR if alarmed else SILENCE), 2 * INTERVAL)
        for rank, (value, since) in self._seen.items():
            key = self._key(rank)
            sign = self.store.get(key) if self.store.check([key]) else None
            if sign != value:
                self._seen[rank] = (sign, now)
            elif sign != DONE and now - since > limit:
                return self._set_lost(f"rank {rank} has given no sign of life for {now - since:.0f} s")
        return None

    def _set_lost(self, text: str) -> str:
        """Tell all ranks; the first to tell is the one believed."""
        try:
            return self.store.compare_set(LOST, "", text).decode()
        except Exception:
            return text

    def _end(self) -> None:
        """The main thread is stuck in a collective: end the process from here."""
        print(lost_message(self.ranks, self.verdict), file=sys.stderr, flush=True)
        self.leave(EXIT_LOST_RANK)

    @staticmethod
    def _key(rank: int) -> str:
        return f"alive/{rank}"


def lost_message(ranks: Ranks, verdict: str) -> str:
    """What a rank says when it ends because of another."""
    return f"rank {ranks.rank}: stopping, because {verdict}; go on with --resume auto"


@contextmanager
def together(ranks: Ranks, device: torch.device, timeout: float) -> Iterator[None]:
    """Join the other processes for the time of a `with` block.

    Args:
        ranks: this process among all.
        device: that it computes on.
        timeout: seconds after which a collective that not all ranks have joined fails.

    Raises:
        LostRankError: if a collective broke because another rank is gone.
    """
    ranks.start(device, timeout)
    if ranks.world_size == 1:
        yield
        return
    lifeline = Lifeline(ranks, _own_store(timeout), timeout)
    try:
        try:
            yield
        except NonFiniteError:  # raised on all ranks together
            _leave_together(ranks, lifeline)
            raise
        _leave_together(ranks, lifeline)
    except NonFiniteError:
        raise
    except BaseException as error:
        verdict = lifeline.who_is_lost() if is_broken_collective(error) else None
        if verdict is not None:
            lifeline.stop()
            raise LostRankError(lost_message(ranks, verdict)) from error
        lifeline.announce(error)
        lifeline.stop()
        raise


def run_together(ranks: Ranks, device: torch.device, timeout: float, name: str, function: Callable[[], int]) -> int:
    """`function()` on all ranks, its errors that concern a run as a whole turned into a message and an exit code.

    Exit codes: what `function` returns; 3 loss or gradients were not finite, 4 another rank was lost, 5 out of memory.
    """
    try:
        with together(ranks, device, timeout):
            return function()
    except NonFiniteError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return EXIT_NON_FINITE
    except LostRankError as error:
        print(f"{name}: {error}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(EXIT_LOST_RANK)  # an orderly exit would wait for the collective that broke
    except torch.OutOfMemoryError as error:
        cause = (str(error).splitlines() or ["no reason given"])[0]
        print(f"{name}: rank {ranks.rank} is out of memory: {cause}; lower --device-batch-size", file=sys.stderr)
        return EXIT_OUT_OF_MEMORY


def is_broken_collective(error: BaseException) -> bool:
    """Whether an error says that the other side of a collective is gone; gloo's are plain RuntimeErrors."""
    if isinstance(error, dist.DistError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and any(word in text for word in ("gloo", "nccl", "connection"))


def _leave_together(ranks: Ranks, lifeline: Lifeline) -> None:
    dist.barrier()  # else the first rank would take the store away from those that still need it
    lifeline.stop()
    ranks.stop()


def _own_store(timeout: float) -> dist.Store:
    """A connection of its own to the store of torchrun's or the first rank's: others block while they wait for keys."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    patience = timedelta(seconds=min(timeout, 30.0))
    store = dist.TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=patience)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"nanogka/lifeline/{os.environ.get('TORCHELASTIC_RUN_ID', '')}/{attempt}", store)
