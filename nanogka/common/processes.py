"""Processes of this machine, and the GPUs that they may use."""

import os
import subprocess
from contextlib import suppress
from pathlib import Path


def family(pid: int) -> list[int]:
    """A process and its descendants. A launcher's workers have their own sessions, so no group holds them all."""
    parents = _parents()
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def _parents() -> dict[int, int]:
    """{process: its parent}, from /proc, because small containers lack `ps`; from `ps` on macOS, which lacks /proc."""
    if not Path("/proc/self/stat").exists():
        listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
        return {int(child): int(parent) for child, parent in map(str.split, listed.splitlines())}
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    return parents


def visible_gpus(count: int) -> list[str]:
    """The names of the first `count` GPUs, as a child's CUDA_VISIBLE_DEVICES takes them: this process's, or 0, 1, …"""
    named = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return named[:count] if named else [str(index) for index in range(count)]
