"""Code of a model runs with limits on time, memory, files, processes and network."""

import time

import pytest

from nanogka.evaluate.sandbox import run_code


def test_a_program_passes_if_it_ends_without_an_error(monkeypatch):
    monkeypatch.setenv("SECRET_TOKEN", "hush")
    assert run_code("import math, collections, re, json\nassert math.gcd(12, 18) == 6\nopen('note', 'w').write('mine')")
    assert run_code("import os\nassert 'SECRET_TOKEN' not in os.environ")
    for wrong in ("assert 1 == 2", "def (:", "raise SystemExit(3)"):
        assert not run_code(wrong)


@pytest.mark.parametrize(
    "code",
    [
        "x = bytearray(2**29)",
        "open('big', 'w').write('x' * 2**22)",
        "open(TARGET, 'w')",
        "import os; os.open(TARGET, os.O_WRONLY)",
        "import os; os.remove(TARGET)",
        "import os; os.rename(TARGET, 'mine')",
        "import shutil; shutil.rmtree(os.path.dirname(TARGET))",
        "import os; os.system('true')",
        "import subprocess; subprocess.run(['true'])",
        "import os; os.fork()",
        "import os; os.kill(os.getppid(), 0)",
        "import socket; socket.create_connection(('127.0.0.1', PORT))",
        "import ctypes; ctypes.CDLL(None)",
    ],
)
def test_what_no_solution_needs_is_refused(code, tmp_path):
    import socket

    target = tmp_path / "precious"
    target.write_text("kept")
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        values = f"import os\nTARGET, PORT = {str(target)!r}, {server.getsockname()[1]}\n"
        assert run_code(values)
        assert not run_code(values + code)
    assert target.read_text() == "kept"


def test_a_program_that_never_ends_is_killed():
    began = time.monotonic()
    assert not run_code("while True: pass", seconds=1)
    assert not run_code("import time\ntime.sleep(60)", seconds=1)
    assert time.monotonic() - began < 30
