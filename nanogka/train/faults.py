"""Kills a training of several ranks again and again, resumes it each time, and checks that nothing was lost.

    report = check_faults(folder, kills=20, seed=1, ranks=2)

A tiny model is trained on made-up text by `torchrun` on CPUs (gloo), once undisturbed and once with the kills. At the
end both must have logged the same numbers, except for those of the clock, and hold the same weights and optimiser
states, bit for bit. After each kill the newest checkpoint must verify and load. Then each file of the newest checkpoint
is damaged in turn.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from nanogka.train.checkpoint import discard, list_checkpoints, load_checkpoint, newest_sound, step_of, why_broken
from nanogka.train.metrics import read_metrics

STEPS, SAVE_EVERY, EVAL_EVERY = 120, 5, 20
# What the clock decides; all else that is logged must be the same.
CLOCK = {"tokens_per_second", "flops_per_second", "seconds", "total_seconds", "data_wait"}
PATIENCE = 900.0  # seconds that one process may take for what is waited for

# What Python runs at the start of the victim's processes: a disk slow enough for a checkpoint to be met half-written.
SLOW_DISK = """
import os, time

fsync = os.fsync


def slowly(descriptor):
    time.sleep(0.02)
    fsync(descriptor)


os.fsync = slowly
"""

KINDS = {
    "SIGKILL to all": "all processes at once, as when a machine is taken away",
    "SIGKILL to a rank": "one rank; torchrun has to bring the others down",
    "SIGKILL while starting": "all processes, before the first step",
    "SIGKILL while writing": "all processes, with a checkpoint half-written",
    "SIGTERM": "torchrun, as a batch system does; it finishes the step and saves",
}


@dataclass(frozen=True)
class Kill:
    """One blow: its kind, the step that must have been logged before, and seconds to wait after that."""

    kind: str
    step: int
    delay: float


@dataclass
class Leg:
    """What became of one part of the run.

    Attributes:
        logged: the last step that it logged. newest: the newest checkpoint it left, None for none.
        partial: whether it left one half-written, which must not count.
        problems: what is wrong with that; empty if all is well.
    """

    kill: Kill
    logged: int = 0
    newest: int | None = None
    partial: bool = False
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


@dataclass
class Report:
    """All legs, and a line for each promise with what broke it (empty: it held)."""

    legs: list[Leg]
    promises: dict[str, list[str]]
    seconds: float

    @property
    def passed(self) -> bool:
        return not any(self.promises.values()) and not any(leg.problems for leg in self.legs)


class Victim:
    """A training that can be started and watched.

    Args:
        base: its NANOGKA_BASE_DIR, with a corpus `text` and a tokenizer `tiny` (see `make_world`).
        ranks: processes, below torchrun.
    """

    def __init__(self, base: Path, ranks: int) -> None:
        self.base, self.ranks = base, ranks

    def folder(self, run: str) -> Path:
        return self.base / "runs" / run

    def start(self, run: str, ranks: int | None = None) -> subprocess.Popen:
        """Start or resume a run, on another number of ranks if one is given; what it prints goes to <run>.log."""
        rows = 2 * self.ranks
        words = f"--data {self.base / 'text'} --tokenizer tiny --depth 2 --sequence-len 32 --device-batch-size 1"
        words += f" --total-batch-size {32 * rows} --num-iterations {STEPS} --save-every {SAVE_EVERY} --run {run}"
        words += f" --eval-every {EVAL_EVERY} --eval-tokens 128 --device cpu --compile off --resume auto"
        launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks or self.ranks}"]
        command = [sys.executable, *launcher, "-m", "scripts.base_train", "--", *words.split()]
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join([str(self.base / "slow_disk"), root, os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "NANOGKA_BASE_DIR": str(self.base), "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        with open(self.base / f"{run}.log", "ab") as log:
            return subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=root, start_new_session=True
            )

    def logged(self, run: str) -> int:
        """The last step in the run's log."""
        lines = read_metrics(self.folder(run) / "metrics.jsonl")
        return max((line["step"] for line in lines if line["kind"] == "train"), default=0)


def check_faults(
    base: Path, kills: int, seed: int, ranks: int = 2, say: Callable[[str], None] = lambda line: None
) -> Report:
    """The whole check, in the empty folder `base`; `say` is told of each leg as it ends."""
    began = time.monotonic()
    make_world(base, seed)
    victim = Victim(base, ranks)
    say(f"undisturbed: {STEPS} steps on {ranks} ranks, a checkpoint each {SAVE_EVERY}")
    finish(victim, "whole")
    say(f"undisturbed: done in {time.monotonic() - began:.0f} s")
    legs = []
    for number, kill in enumerate(plan_kills(kills, seed), 1):
        legs.append(run_leg(victim, "killed", kill))
        say(f"{number:>3}  {describe_leg(legs[-1])}")
    finish(victim, "killed")
    promises = compare(victim.folder("whole"), victim.folder("killed"))
    promises["another number of ranks goes on with the same losses, to 1e-5"] = change_ranks(victim)
    promises["damage to any file falls back to the checkpoint before"] = damage_each_file(victim.folder("killed"))
    promises["a resumed run says that it fell back, and ends the same"] = fall_back(victim, seed)
    return Report(legs, promises, time.monotonic() - began)


def make_world(base: Path, seed: int) -> None:
    """A small text and its tokenizer, and a slow disk."""
    from nanogka.data import open_corpus, train_on_corpus

    words = ["the", "a", "cat", "dog", "sees", "finds", "old", "red", "house", "river", "and", "in", "on", "with"]
    rng = random.Random(seed)
    (base / "slow_disk").mkdir(parents=True)
    (base / "slow_disk" / "sitecustomize.py").write_text(SLOW_DISK)
    (base / "text").mkdir()
    for i in range(60):
        text = " ".join(rng.choice(words) for _ in range(rng.randint(20, 200)))
        (base / "text" / f"{i:03}.txt").write_text(text + ".")
    train_on_corpus(open_corpus(base / "text"), 300, max_chars=10**6, doc_cap=10**4).save(base / "tokenizers" / "tiny")


def plan_kills(kills: int, seed: int) -> list[Kill]:
    """Random kinds, each as often as the others, at random steps in rising order."""
    rng = random.Random(seed)
    kinds = [list(KINDS)[i % len(KINDS)] for i in range(kills)]
    rng.shuffle(kinds)
    steps = sorted(rng.randint(1, STEPS - 10) for _ in range(kills))
    return [Kill(kind, step, rng.random()) for kind, step in zip(kinds, steps)]


def run_leg(victim: Victim, run: str, kill: Kill) -> Leg:
    """Start or resume, strike, wait for the end of all processes, look at what is left."""
    folder, leg, began = victim.folder(run), Leg(kill), time.monotonic()
    before = _changed(folder / "metrics.jsonl")
    resumed = max((step_of(path) for path in list_checkpoints(folder / "checkpoints")), default=0)
    process = victim.start(run)
    try:
        struck = _strike(victim, run, process, kill, before, max(kill.step, resumed + 1))
        if not struck:
            leg.problems.append(f"ended by itself with {process.returncode}, see {run}.log")
        leg.problems += _await_end(process, kill)
    finally:
        if process.poll() is None:
            _kill_tree(process.pid)
        process.wait()
    leg.seconds, leg.logged = time.monotonic() - began, victim.logged(run)
    leg.partial = any(folder.glob("checkpoints/.partial-step_*"))
    leg.problems += look_at_newest(folder, leg)
    return leg


def _strike(victim: Victim, run: str, process: subprocess.Popen, kill: Kill, before: object, step: int) -> bool:
    """Wait for the moment and strike; False if the run ended before."""
    if kill.kind == "SIGKILL while starting":
        time.sleep(4 * kill.delay)
        _kill_tree(process.pid)
        return True
    metrics = victim.folder(run) / "metrics.jsonl"
    for _ in _while_running(process):
        # A resumed run first drops what it will log again, and only what it logged itself counts.
        if _changed(metrics) != before and victim.logged(run) >= step:
            break
    else:
        return False
    ranks = children(process.pid)
    if kill.kind == "SIGKILL while writing":
        for _ in _while_running(process, 0.0005):
            if any(victim.folder(run).glob("checkpoints/.partial-step_*")):
                break
        else:
            return False
        time.sleep(0.1 * kill.delay)
    else:
        time.sleep(0.1 * kill.delay)
    if kill.kind == "SIGTERM":
        process.terminate()
    elif kill.kind == "SIGKILL to a rank":
        os.kill(ranks[int(kill.delay * len(ranks))], signal.SIGKILL)
    else:
        _kill_tree(process.pid)
    return True


def _await_end(process: subprocess.Popen, kill: Kill) -> list[str]:
    """Wait for torchrun and its ranks, which a rank's death must not leave hanging."""
    try:
        code = process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        return [f"still there {PATIENCE:.0f} s after {kill.kind}"]
    return ["ended with exit code 0"] if code == 0 else []


def look_at_newest(folder: Path, leg: Leg) -> list[str]:
    """Whether the newest checkpoint is one; fills in which it is."""
    checkpoints = list_checkpoints(folder / "checkpoints")
    if not checkpoints:
        return [] if leg.logged < SAVE_EVERY else [f"no checkpoint after {leg.logged} steps"]
    leg.newest = step_of(checkpoints[-1])
    if reason := why_broken(checkpoints[-1]):
        return [f"newest checkpoint {checkpoints[-1].name}: {reason}"]
    load_checkpoint(checkpoints[-1])
    if leg.kill.kind == "SIGTERM" and leg.newest != leg.logged:
        return [f"saved step {leg.newest}, but the last one was {leg.logged}"]
    return []


def finish(victim: Victim, run: str, ranks: int | None = None) -> None:
    """Let a run come to its end. Raises RuntimeError with the end of its log if it does not."""
    process = victim.start(run, ranks)
    try:
        code = process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        code = "no end in sight"
    finally:
        if process.poll() is None:
            _kill_tree(process.pid)
        process.wait()
    if code != 0:
        tail = (victim.base / f"{run}.log").read_text(errors="replace")[-3000:]
        raise RuntimeError(f"the run {run!r} ended with {code}:\n{tail}")


def compare(whole: Path, killed: Path) -> dict[str, list[str]]:
    """What two finished runs must have in common: each promise with what broke it."""
    one, other = (
        [{k: v for k, v in line.items() if k not in CLOCK} for line in read_metrics(run / "metrics.jsonl")][1:]
        for run in (whole, killed)
    )
    differing = [f"step {a['step']}: {a} against {b}" for a, b in zip(one, other) if a != b]
    if len(one) != len(other):
        differing.append(f"{len(one)} lines against {len(other)}")
    a, b = (load_checkpoint(list_checkpoints(run / "checkpoints")[-1]) for run in (whole, killed))
    return {
        f"all {len(one)} logged lines equal the undisturbed run's": differing[:3],
        "final weights equal bit for bit": [name for name in a.weights if not _equal(a.weights[name], b.weights[name])],
        "final optimiser states equal bit for bit": [] if _equal(a.optimizer, b.optimizer) else ["they differ"],
        "the loaders stand at the same place": [] if a.state["loader"] == b.state["loader"] else ["they do not"],
    }


def damage_each_file(folder: Path) -> list[str]:
    """Cut, flip and remove each file of the newest checkpoint in turn, on copies; what was not noticed."""
    broken, rng = [], random.Random(0)
    original = list_checkpoints(folder / "checkpoints")
    copy = folder / "damaged"
    for name in sorted(path.name for path in original[-1].iterdir()):
        for damage in ("cut", "flip", "remove"):
            shutil.rmtree(copy, ignore_errors=True)
            for path in original[-2:]:
                shutil.copytree(path, copy / path.name)
            damage_file(copy / original[-1].name / name, damage, rng)
            sound, notes = newest_sound(copy)
            if sound is None or sound.name != original[-2].name or len(notes) != 1:
                broken.append(f"{damage} {name}: took {sound and sound.name}")
    shutil.rmtree(copy, ignore_errors=True)
    return broken


def damage_file(path: Path, damage: str, rng: random.Random) -> None:
    """Cut a file short, flip one bit of it, or remove it."""
    content = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(content[: rng.randrange(len(content))])
    else:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)


def fall_back(victim: Victim, seed: int) -> list[str]:
    """Damage the finished run's newest checkpoint, resume, and compare again."""
    newest = list_checkpoints(victim.folder("killed") / "checkpoints")[-1]
    damage_file(newest / "model.safetensors", "flip", random.Random(seed))
    finish(victim, "killed")
    said = (victim.base / "killed.log").read_text(errors="replace")
    broken = [] if f"checkpoint {newest.name} is unusable" in said else ["it did not say so"]
    return broken + [
        why for problems in compare(victim.folder("whole"), victim.folder("killed")).values() for why in problems
    ]


def change_ranks(victim: Victim) -> list[str]:
    """Go on from a checkpoint of the undisturbed run on half as many ranks (or twice as many as one); what differs."""
    whole, other = victim.folder("whole"), victim.folder("other-ranks")
    shutil.copytree(whole, other)
    discard(list_checkpoints(other / "checkpoints")[-1])
    finish(victim, "other-ranks", max(1, victim.ranks // 2) if victim.ranks > 1 else 2)
    one, two = (
        [line["loss"] for line in read_metrics(run / "metrics.jsonl") if line["kind"] == "train"]
        for run in (whole, other)
    )
    far = [f"step {i}: {a} against {b}" for i, (a, b) in enumerate(zip(one, two), 1) if abs(a - b) > 1e-5 * abs(a)]
    return far if len(one) == len(two) else [*far, f"{len(one)} steps against {len(two)}"]


def describe_leg(leg: Leg) -> str:
    """A row of the table."""
    left = "none" if leg.newest is None else f"step {leg.newest}"
    verdict = "; ".join(leg.problems) or "ok"
    half = "+ half of one" if leg.partial else ""
    return (
        f"{leg.kill.kind:<22} after step {leg.logged:>3}  newest {left:<8} {half:<13} {leg.seconds:>5.1f} s  {verdict}"
    )


def children(pid: int) -> list[int]:
    """The processes that `pid` has started and that still run, oldest first."""
    lines = subprocess.run(["ps", "-A", "-o", "ppid=,pid="], capture_output=True, text=True, check=True).stdout
    pairs = (tuple(map(int, line.split())) for line in lines.splitlines())
    return sorted(child for parent, child in pairs if parent == pid)


def _kill_tree(pid: int) -> None:
    """Kill a process and those it started; stopped first, so that it starts no more of them meanwhile."""
    _send(pid, signal.SIGSTOP)
    for process in (*children(pid), pid):
        _send(process, signal.SIGKILL)


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _while_running(process: subprocess.Popen, pause: float = 0.01) -> Iterator[None]:
    deadline = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        yield
        time.sleep(pause)


def _changed(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _equal(a: object, b: object) -> bool:
    """Whether two nested states are the same, tensors bit for bit."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return isinstance(b, (list, tuple)) and len(a) == len(b) and all(map(_equal, a, b))
    return a == b
