"""Run Python code that a model wrote, in a subprocess with limits.

The limits guard against accidents: endless loops, memory and disk that fill up, deleted files, processes that stay,
connections. They do not stop code that attacks on purpose: an audit hook of Python can be evaded, for example through a
flaw in a C extension, and files that this user may read can be read. Use a container or a separate machine for that.
"""

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

# The time and memory of nanochat's execution.py: a program near a limit then gets the same verdict.
SECONDS = 5.0
MEMORY_BYTES = 2**28
FILE_BYTES = 2**20

# Runs in the subprocess before the code, in this order: limits of the system; a network namespace without interfaces,
# where the system allows one; an audit hook, which code cannot remove and which refuses what no solution needs.
GUARD = """
import ctypes, os, resource, sys
for limit, value in (("CPU", {cpu}), ("AS", {memory}), ("DATA", {memory}), ("FSIZE", {file}), ("CORE", 0)):
    resource.setrlimit(getattr(resource, "RLIMIT_" + limit), (value, value))
if sys.platform == "linux":
    ctypes.CDLL(None).unshare(0x50000000)  # CLONE_NEWUSER | CLONE_NEWNET; may fail, the hook below remains
here = os.path.realpath(os.getcwd()) + os.sep
refused = ("socket.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.kill",
    "ctypes.", "signal.pthread_kill", "shutil.rmtree", "shutil.move", "os.chmod", "os.chown", "os.link", "os.symlink",
    "os.truncate", "os.putenv", "os.chdir", "os.fchdir", "mmap.", "sys.addaudithook", "sys.settrace", "gc.")
changing = ("os.remove", "os.rename", "os.rmdir", "os.mkdir")
def hook(event, arguments):
    if event.startswith(refused):
        raise PermissionError("not allowed: " + event)
    if event == "open":
        path, mode, flags = arguments
        if not (isinstance(mode, str) and not set(mode) & set("wax+")) and (mode or flags & 3):
            inside(path)
    elif event in changing:
        for path in arguments[:2 if event == "os.rename" else 1]:
            inside(path)
def inside(path):
    if not isinstance(path, (str, bytes)) or not os.path.realpath(os.fsdecode(path)).startswith(here):
        raise PermissionError("not allowed: changing a file outside of the working folder")
sys.addaudithook(hook)
"""
# Runs after the guard. The exit code alone does not tell whether the tests ran, because a program may end itself with
# code 0 before them. So a random word, which the program's text cannot contain, is written after the last line. The
# word is in this process: a program that looks for it, for example in the frames of its callers, can write it too.
MAIN = """
def run(word):
    with open("program.py", encoding="utf-8") as file:
        program = compile(file.read(), "program.py", "exec")
    exec(program, {{"__name__": "program"}})  # not __main__: a program's own main() is not part of the tests
    os.write({output}, word)
run(sys.stdin.buffer.read())
"""


def run_code(code: str, seconds: float = SECONDS) -> bool:
    """Run a program in an empty temporary folder.

    Returns True if it runs to its last line, or pretends to on purpose, and then ends in time with exit code 0.
    """
    guard = GUARD.format(cpu=int(seconds) + 1, memory=MEMORY_BYTES, file=FILE_BYTES)
    word = secrets.token_bytes(16)
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)  # a process that the program left behind may keep the other end open
    with tempfile.TemporaryDirectory() as folder, open(read_end, "rb") as reached:
        Path(folder, "program.py").write_text(code, encoding="utf-8", errors="replace")
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", guard + MAIN.format(output=write_end)],
            cwd=folder,
            env={"PATH": "/usr/bin:/bin"},  # no tokens and keys of the environment
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(write_end,),
            start_new_session=True,  # so that what it starts is killed with it
        )
        os.close(write_end)
        try:
            assert process.stdin is not None  # it is a pipe
            with suppress(BrokenPipeError), process.stdin:
                process.stdin.write(word)
            return process.wait(seconds) == 0 and reached.read() == word
        except subprocess.TimeoutExpired:
            return False
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
