"""The gate of the tests: its faults fit the code, and only an assertion kills one."""

import json
import subprocess
import sys
from collections import Counter

import mutate
import pytest
from mutate import describe_rates


def test_every_fault_fits_the_code_and_names_a_test():
    mutants = mutate.read_mutants()
    assert len(mutants) > 250
    assert [fault for mutant in mutants if (fault := mutant.fault(mutate.ROOT))] == []


def test_faults_are_read_as_they_are_written(tmp_path):
    path = tmp_path / "faults.txt"
    text = "# about\n\na.py  t.py::one\n- x\n-\n-   y\n+ z\n- p\n+\n\nb.py  t.py  raises KeyError\n- q\n+ r\n+ - s\n"
    path.write_text(text)
    assert mutate.read_mutants(path) == [
        mutate.Mutant("a.py", "x\n\n  y", "z", "t.py::one"),
        mutate.Mutant("a.py", "p", "", "t.py::one"),
        mutate.Mutant("b.py", "q", "r\n- s", "t.py", "KeyError"),
    ]
    path.write_text("a.py  t.py\n- x\nb.py  t.py\n- y\n+ z\n")
    with pytest.raises(AssertionError, match="before b.py"):
        mutate.read_mutants(path)


def test_a_stale_fault_is_named(tmp_path):
    (tmp_path / "a.py").write_text("x = x + 1\n")
    (tmp_path / "t.py").write_text("def test_one():\n    pass\n")
    fault = lambda *words: mutate.Mutant(*words).fault(tmp_path)  # noqa: E731
    assert fault("a.py", "+ 1", "+ 2", "t.py::test_one") is fault("a.py", "+ 1", "+ 2", "t.py") is None
    assert "got 2 places" in fault("a.py", "x", "y", "t.py")
    assert "got 0 places" in fault("a.py", "y", "x", "t.py")
    assert "got no test test_on" in fault("a.py", "+ 1", "+ 2", "t.py::test_on")
    assert "expected two files" in fault("b.py", "+ 1", "+ 2", "t.py")


def test_a_fault_of_a_document_stays_if_a_paragraph_is_wrapped_again(tmp_path):
    (tmp_path / "t.py").write_text("")
    for file, places in (("a.md", 1), ("a.py", 0)):
        (tmp_path / file).write_text("It spends 1.47\nand 2 times.\n")
        mutant = mutate.Mutant(file, "1.47 and 2", r"1.47 and \1", "t.py")
        assert (mutant.fault(tmp_path) is None) is bool(places)
        mutant.apply(tmp_path)
        changed = "It spends 1.47 and \\1 times.\n"
        assert (tmp_path / file).read_text() == (changed if places else "It spends 1.47\nand 2 times.\n")


CASES = {  # of a test's body and the exception that the heading declares
    ("pass", ""): "survived",
    ("pytest.skip()", ""): "survived",
    ("assert 1 == 2", ""): "caught",
    ("pytest.fail('no')", ""): "caught",
    ("with pytest.raises(KeyError): pass", ""): "caught",
    ("{}['a']", ""): "not judged (KeyError)",
    ("{}['a']", "LookupError"): "caught",
    ("{}['a']", "TimeoutError"): "not judged (KeyError)",
    ("raise TimeoutError", ""): "not judged (TimeoutError)",
    ("(", ""): "not judged (exit code 2)",
}
RAISED = {"not judged (KeyError)": "raised (KeyError)", "not judged (exit code 2)": "raised (exit code 2)"}  # if drawn
JUDGE = """
import json, os, sys
from pathlib import Path
import pytest
from mutate import run_pytest, verdict, verdict_of_drawn
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
for number, (_, raises) in enumerate(json.loads(sys.argv[2])):
    run = run_pytest(Path(sys.argv[1]), [f"test_{number}.py"], Path(sys.argv[1], "log"), "-x")
    print(verdict(*run, raises), verdict_of_drawn(*run), sep="; ")
"""


def test_what_tests_call_is_kept_for_the_same_code_alone(tmp_path):
    code = tmp_path / "nanogka" / "a.py"
    code.parent.mkdir()
    seen = set()
    for text in ("x = 1\n", "x = 2\n", "\nx = 2\n"):
        code.write_text(text)
        seen.add(mutate.digest_of_code(tmp_path))
    code.rename(code.with_name("b.py"))
    seen.add(mutate.digest_of_code(tmp_path))
    assert len(seen) == 4
    assert mutate.digest_of_code(tmp_path) in seen


def test_only_an_assertion_or_a_declared_exception_catches_a_fault(tmp_path):
    for number, (body, _) in enumerate(CASES):
        (tmp_path / f"test_{number}.py").write_text(f"import pytest\ndef test_it():\n    {body}\n")
    # In a process without threads, which can be forked.
    words = [sys.executable, "-c", JUDGE, str(tmp_path), json.dumps(list(CASES))]
    run = subprocess.run(words, cwd=mutate.ROOT / "tests", check=True, capture_output=True, text=True)
    both = [line.split("; ") for line in run.stdout.splitlines()]
    assert [reviewed for reviewed, _ in both] == list(CASES.values())
    assert [drawn for (_, drawn), (_, raises) in zip(both, CASES) if not raises] == [
        RAISED.get(said, said) for (_, raises), said in CASES.items() if not raises
    ]


def test_the_rates_are_of_the_judged_mutants_that_are_not_equivalent():
    """94 by an assertion, 38 by an exception and 2 survivors; Wilson's intervals by hand."""
    model = Counter({"caught": 90, "raised": 30, "survived": 2, "equivalent": 5})
    tasks = Counter({"caught": 4, "raised": 8, "not judged": 3})
    *_, both = [" ".join(line.split()) for line in describe_rates({"model": model, "tasks": tasks}).splitlines()]
    assert both == "all 94 38 2 3 5 70% (62% to 77%) 99% (95% to 100%) 98% (93% to 99%)"
    empty = describe_rates({"page": Counter({"equivalent": 1})}).splitlines()[1]
    assert empty.split() == ["page", "0", "0", "0", "0", "1"]
