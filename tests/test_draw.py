"""The sampler of mutants: what it changes, and that every mutant is a program."""

import ast
import subprocess
import sys

from draw import draw, mutants_of, nearest_tests
from mutate import ROOT
from reach import MOST_SECONDS, Reach

SOURCE = '''"""Ten 10s."""
def area(a: int | None = 2) -> int | None:
    if not a or a < 3:
        raise ValueError(f"{a + 1} é" + str(4))
    assert a > 5
    return -a * 1.5  # é
'''


def test_operators_comparisons_conditions_and_numbers_change_and_no_text_or_type(tmp_path):
    (tmp_path / "area.py").write_text(SOURCE, encoding="utf-8")
    mutants = mutants_of(tmp_path, "area.py")
    assert [(mutant.line, mutant.old, mutant.new) for mutant in mutants] == [
        (2, "2", "(3)"),
        (3, "not a", "(a)"),
        (3, "not a or a < 3", "(not a and a < 3)"),
        (3, "a < 3", "(a <= 3)"),
        (3, "3", "(4)"),
        (6, "-a", "(a)"),
        (6, "-a * 1.5", "(-a / 1.5)"),
        (6, "1.5", "(1.6500000000000001)"),
    ]
    for mutant in mutants:
        before = mutant.apply(tmp_path)
        text = (tmp_path / "area.py").read_text(encoding="utf-8")
        assert text == SOURCE.replace(mutant.old, mutant.new) or mutant.old in ("2", "3")
        ast.parse(text)
        (tmp_path / "area.py").write_text(before, encoding="utf-8")


def test_a_draw_repeats_and_has_its_nearest_tests():
    mutants = draw(ROOT, 40, seed=3, match="nanogka/evaluate|tasks/")
    assert mutants == draw(ROOT, 40, seed=3, match="nanogka/evaluate|tasks/") != draw(ROOT, 40, seed=4)
    assert {mutant.package for mutant in mutants} == {"evaluate", "tasks"}
    known = "tests/model/test_gpt.py"
    assert nearest_tests(ROOT, "nanogka/train/progress.py", [known]) == ["tests/train/test_progress.py", known]
    assert "tests/tasks/test_skills.py" in nearest_tests(ROOT, "tasks/dates.py", [])


SHAPE = """from functools import cache
ONE = 1
def area(a):
    def double(b):
        return 2 * b
    return double(a) + ONE
@cache
def edge():
    return 4
def unused():
    return 5
def imported():
    return 6
SIX = imported()
"""
TESTS = """import shape, subprocess, sys, pytest
@pytest.fixture(scope="module")
def four(): return shape.edge()
def test_area(): assert shape.area(2) == 5
def test_fails(): assert shape.area(2) == 4
def test_first(four): pass
def test_starts(): subprocess.run([sys.executable, "-c", "1"], check=True)
"""
WATCH = """
import os, sys
from pathlib import Path
from mutate import watch
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
root = Path(sys.argv[1])
reach = watch(root, {"test_a.py", "test_b.py"}, {"shape.py"}, root / "log")
for line in (2, 3, 5, 7, 9, 11, 13):
    print(line, *sorted(test.split("_")[-1] for test in reach.of(root, "shape.py", line, ["test_a.py"])))
"""


def test_a_mutant_meets_the_passing_tests_that_call_its_function_or_start_a_process(tmp_path):
    for name, text in (("shape.py", SHAPE), ("test_a.py", TESTS), ("test_b.py", TESTS)):
        (tmp_path / name).write_text(text)
    words = [sys.executable, "-c", WATCH, str(tmp_path)]  # a process without threads, which can be forked
    run = subprocess.run(words, cwd=ROOT / "tests", check=True, capture_output=True, text=True)
    first, *lines = run.stdout.splitlines()
    assert first == ".: 6 tests pass in 0 s, pytest's exit code 1"
    # Line 2 has no function around it. `edge` keeps its result, so the second file's fixture does not run it again.
    everything, callers = "area area first starts", "area area starts"
    assert lines == [
        f"2 {everything}",
        f"3 {callers}",
        f"5 {callers}",
        f"7 {everything}",
        f"9 {everything}",
        "11 starts",
        f"13 {everything}",
    ]


def test_the_nearest_and_cheapest_tests_come_first_and_the_time_has_an_end(tmp_path):
    (tmp_path / "a.py").write_text("def f():\n    return 1\n")
    times = {"t.py::slow": MOST_SECONDS - 1, "t.py::quick": 0.6, "u.py::one": 0.3, "u.py::other": 0.2, "v.py::far": 0.1}
    reach = Reach({test: (seconds, ["a.py:1"]) for test, seconds in times.items()} | {"u.py::not": (0.1, ["a.py:7"])})
    assert reach.of(tmp_path, "a.py", 2, ["t.py", "u.py"]) == ["u.py::other", "u.py::one", "t.py::quick"]
    assert reach.of(tmp_path, "a.py", 2, ["u.py"]) == ["u.py::other", "u.py::one", "v.py::far", "t.py::quick"]
