"""Apply the reviewed one-line faults, one at a time, and check that the named test catches each.

    python tests/mutate.py                      all of them
    python tests/mutate.py --since HEAD~1       those in files that changed since a commit
    python tests/mutate.py --match optimizer    those whose file or test matches a regular expression
    python tests/mutate.py --most 20            a fixed sample of at most 20 of the chosen ones
    python tests/mutate.py --sample 30 --seed 1 [--match attention]
                                                30 mutants that are drawn at random, against those of the nearest
                                                tests that call the function

The faults are in tests/faults.txt. A mutant is caught if its test fails by an assertion, `pytest.fail` or a missing
exception, or with the exception that its heading declares. It survives if its test passes: then the test does not see
what it promises. It is not judged if its test is skipped on this machine or fails in another way, for example by a
time limit. Each mutant runs in a copy of the source tree and in its own process, forked from this one after the slow
imports.

A drawn mutant is chosen by nobody, so it often cannot compute at all: it divides a path by a path, or reads past the
end of a list. Its tests then fail by the mutant's own exception before they reach an assertion. An engineer sees such
a fault at once, but not because a test states what is right. The exception would be raised under any test that calls
the line. So it is not counted as caught: the table has a column for assertions and another one for exceptions. It
prints three shares: of all judged mutants, those that an assertion caught, and those that an assertion or an exception
ended; and of those that raise no exception, those that an assertion caught. Mutants that a reader found equivalent
(`--equivalent`, with their numbers) are not judged.
"""

import argparse
import compileall
import hashlib
import importlib
import json
import os
import py_compile
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from draw import Drawn, draw, files_of, nearest_tests
from reach import IMPORTS, MOST_SECONDS, CallLog, Reach

ROOT = Path(__file__).parents[1]
PARTS = ("nanogka", "scripts", "tasks", "tests", "docs", "pyproject.toml", "speedrun.sh")
PARTS += ("README.md", "CONTRIBUTING.md", "SECURITY.md")
# A test that fails in another way may have another reason. `Failed` is pytest's: `pytest.fail`, DID NOT RAISE.
ASSERTIONS = ("AssertionError", "Failed")
LIMIT = 300  # seconds of CPU time of one pytest process
SLOW_IMPORTS = ("torch", "torch._dynamo", "pytest", "numpy", "pyarrow.parquet", "pandas", "tiktoken", "tokenizers")
SLOW_IMPORTS += ("hypothesis", "safetensors.torch", "matplotlib.pyplot", "pydantic")


@dataclass(frozen=True)
class Mutant:
    """A fault: in `file`, the only occurrence of `old` becomes `new`, and `test` (a pytest argument) must fail.

    In a document, a blank of `old` is also a line break: a paragraph may be wrapped again, and the fault stays.
    """

    file: str
    old: str
    new: str
    test: str
    raises: str = ""  # name of the exception that counts as a failure of the test, next to an assertion

    def fault(self, root: Path) -> str | None:
        """Why this is no mutant of the tree `root`; None if it is one."""
        path, (test, _, name) = root / self.file, self.test.partition("::")
        if not path.is_file() or not (root / test).exists():
            return f"{self.file}, {self.test}: expected two files"
        if name and not re.search(rf"def {re.escape(name.partition('[')[0])}\b", (root / test).read_text("utf-8")):
            return f"{test}: got no test {name}"
        places = len(re.findall(self._pattern, path.read_text(encoding="utf-8")))
        return f"{self.file}: got {places} places with {self.old!r}, expected one" if places != 1 else None

    def apply(self, root: Path) -> str:
        """Write the mutated file below `root` and return its text before."""
        path = root / self.file
        text = path.read_text(encoding="utf-8")
        path.write_text(re.sub(self._pattern, lambda _: self.new, text), encoding="utf-8")
        return text

    @property
    def _pattern(self) -> str:
        """A regular expression for `old`."""
        if not self.file.endswith(".md"):
            return re.escape(self.old)
        return r"\s+".join(re.escape(word) for word in self.old.split(" "))


def read_mutants(path: Path = ROOT / "tests" / "faults.txt") -> list[Mutant]:
    """The faults of a file whose first lines describe its format."""
    mutants, heading, sides = [], (), {"-": [], "+": []}
    for line in [*path.read_text(encoding="utf-8").splitlines(), ""]:
        mark = line[:1]
        if sides["+"] and mark != "+":  # the fault before is complete
            file, test, raises = heading
            mutants.append(Mutant(file, "\n".join(sides["-"]), "\n".join(sides["+"]), test, raises))
            sides = {"-": [], "+": []}
        if mark in sides:
            sides[mark].append(line[2:])
        elif mark not in ("", "#"):
            assert not sides["-"], f"{sides}: expected a line of + before {line}"
            file, test, *raises = line.split("  ")
            heading = file, test, "".join(raises).removeprefix("raises ")
    return mutants


class Outcomes:
    """A pytest plugin that writes each outcome to a file: of a failed test, the classes of its exception."""

    def __init__(self, path: Path, stops: bool) -> None:
        self.path, self.of, self.raised = path, {}, "failed"
        self.stops = stops  # at the first assertion that fails, and not at other failures

    def _write(self, test: str, outcome: str) -> None:
        self.of[test] = outcome
        self.path.write_text(json.dumps(self.of))

    def pytest_collectreport(self, report) -> None:
        if report.outcome == "skipped":  # a whole file, for a package that is not installed
            self._write(report.nodeid, report.outcome)

    def pytest_runtest_makereport(self, item, call) -> None:
        if call.excinfo:
            names = [kind.__name__ for kind in call.excinfo.type.__mro__]
            self.raised = " ".join(names)
            if self.stops and {*ASSERTIONS} & {*names}:
                item.session.shouldfail = "an assertion failed"

    def pytest_runtest_logreport(self, report) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._write(report.nodeid, self.raised if report.outcome == "failed" else report.outcome)


def run_pytest(
    root: Path,
    tests: list[str],
    log: Path,
    *options: str,
    plugin: Callable[[], object] = object,
    stops: bool = False,
    limit: int = LIMIT,
) -> tuple[int, dict[str, str]]:
    """Return pytest's exit code for `tests` in the tree `root`, in a forked process, and the outcome of each test.

    With `stops` the tests end at the first assertion that fails. The process makes the `plugin`, and is killed after
    `limit` seconds of CPU time.
    """
    outcomes = log.with_suffix(".json")
    outcomes.write_text("{}")
    child = os.fork()
    if child == 0:
        code = 99
        try:
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.chdir(root)
            sys.path.insert(0, str(root))
            if all(test.startswith("tests/vision") for test in tests):  # packages that other tests must not see
                sys.path.append(str(ROOT / ".venv" / "images"))
            # A fault may make an endless loop. The processor's time does not depend on what else the machine does.
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
            signal.alarm(10 * limit)
            import pytest

            words = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", *options, *tests]
            code = int(pytest.main(words, plugins=[Outcomes(outcomes, stops), plugin()]))
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code, json.loads(outcomes.read_text())


def verdict(code: int, outcomes: Mapping[str, str], raises: str = "") -> str:
    """What a run of the tests says of a fault: "caught", "survived", or "not judged" with the reason."""
    if code == 0:
        return "survived"
    failed = [outcome.split() for outcome in outcomes.values() if outcome not in ("passed", "skipped")]
    if code == 1 and any({*ASSERTIONS, raises} & {*classes} for classes in failed):
        return "caught"
    return f"not judged ({failed[0][0] if failed else f'exit code {code}'})"


def verdict_of_drawn(code: int, outcomes: Mapping[str, str]) -> str:
    """As `verdict`, with "raised" and its name for a mutant whose exception, or failing import, ended the tests."""
    said = verdict(code, outcomes)
    timed_out = any("TimeoutError" in outcome.split() for outcome in outcomes.values())
    if said.startswith("not judged") and code in (1, 2, 4) and not timed_out:
        return said.replace("not judged", "raised")
    return said


def changed_since(commit: str) -> set[str]:
    """Files that differ from `commit`, as paths from the root."""
    command = ["git", "diff", "--name-only", commit]
    return set(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split())


def sample(mutants: list[Mutant], most: int) -> list[Mutant]:
    """At most `most` mutants, the same ones on every call: those with the smallest hashes."""
    key = lambda m: hashlib.sha256(f"{m.file}\0{m.old}\0{m.new}".encode()).digest()  # noqa: E731
    kept = set(sorted(mutants, key=key)[:most])
    return [mutant for mutant in mutants if mutant in kept]


def copy_tree(root: Path) -> None:
    """Copy what the tests need."""
    root.mkdir()
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, root / part, ignore=shutil.ignore_patterns("__pycache__", "*.png"))
        else:
            shutil.copy(source, root / part)
    # By the hash of the source: by its time, a mutant written in the same second would be taken for the original.
    by_hash = py_compile.PycInvalidationMode.CHECKED_HASH
    compileall.compile_dir(root / "nanogka", quiet=2, invalidation_mode=by_hash)


def prepare_forks() -> None:
    """Import what the tests need, once for all children; not the project, because each child imports its own copy."""
    os.environ.setdefault("TRITON_INTERPRET", "1")  # triton reads it when it is imported; without a GPU, tests need it
    for name in SLOW_IMPORTS:
        with suppress(ImportError):
            importlib.import_module(name)
    sys.modules["torch"].set_num_threads(1)
    assert "nanogka" not in sys.modules
    # Neither the tests nor mutants may be compiled by time, see `copy_tree`.
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True


def judge(chosen: list[Mutant], root: Path, log: Path) -> tuple[list[str], int]:
    """Return a line about every mutant that is not caught, and the number of those whose test is skipped here."""
    # All tests in one process: most of the time of a short test is its imports.
    outcomes, text = {}, ""
    for of_images in (False, True):
        tests = list(dict.fromkeys(m.test for m in chosen if m.test.startswith("tests/vision") == of_images))
        if tests:
            outcomes |= run_pytest(root, tests, log, "--no-header", "--tb=short")[1]
            text += log.read_text(errors="replace")
    problems, skipped = [], 0
    for number, mutant in enumerate(chosen, 1):
        place = f"{mutant.file}: {mutant.old!r} → {mutant.new!r}"
        before = {
            outcome
            for test, outcome in outcomes.items()
            if f"{test}[".startswith((f"{mutant.test}[", f"{mutant.test}::"))
        }
        file_skipped = outcomes.get(mutant.test.partition("::")[0]) == "skipped"
        if before == {"skipped"} or file_skipped:
            skipped += 1
            continue
        if before - {"passed", "skipped"} or not before:
            problems.append(f"{mutant.test}: {'fails' if before else 'does not run'} without a mutant\n{text[-800:]}")
            continue
        original = mutant.apply(root)
        said = verdict(*run_pytest(root, [mutant.test], log, "-x"), mutant.raises)
        (root / mutant.file).write_text(original, encoding="utf-8")
        if said != "caught":
            problems.append(f"{said}: {place}, which {mutant.test} should catch")
        print(f"{number}/{len(chosen)} {said}  {place}", flush=True)
    return problems, skipped


def watch(root: Path, tests: set[str], files: set[str], log: Path) -> Reach:
    """Run the quick `tests` without a mutant, folder by folder, and note which functions of `files` each one calls."""
    of_tests = {}
    for folder in sorted({str(Path(test).parent) for test in tests}):
        calls = log.with_suffix(".calls")
        calls.write_text("{}")
        own = sorted(test for test in tests if str(Path(test).parent) == folder)
        code, _ = run_pytest(root, own, log, "-m", "not slow", plugin=partial(CallLog, root, files, calls))
        found = json.loads(calls.read_text())
        seconds, imported = sum(seconds for seconds, _ in found.values()), found.pop(IMPORTS, (0.0, []))[1]
        print(f"{folder}: {len(found)} tests pass in {seconds:.0f} s, pytest's exit code {code}", flush=True)
        of_tests |= {**found, IMPORTS: (0.0, [*of_tests.get(IMPORTS, (0.0, []))[1], *imported])}
    return Reach(of_tests)


def digest_of_code(root: Path) -> str:
    """A hash of the Python files that mutants change and that test them."""
    found = hashlib.sha256()
    for path in sorted(path for part in PARTS for path in (root / part).rglob("*.py")):
        found.update(f"{path.relative_to(root)} {path.stat().st_size} ".encode() + path.read_bytes())
    return found.hexdigest()


def judge_sample(
    drawn: Mapping[int, Drawn], files: list[str], root: Path, log: Path, kept: Path | None
) -> dict[str, Counter]:
    """Print what the nearest tests say of the drawn mutants, each with its number.

    The file `kept` has what the tests call of `files`, for other mutants of the same tree. It is written again if the
    tree has changed. Returns the number of each verdict by package.
    """
    reviewed, counts = read_mutants(), {}
    near = {
        file: nearest_tests(root, file, [m.test.partition("::")[0] for m in reviewed if m.file == file])
        for file in files
    }
    # Tests on images need packages that the others must not see.
    near = {file: [test for test in tests if not test.startswith("tests/vision")] for file, tests in near.items()}
    tree = digest_of_code(root)
    found = json.loads(kept.read_text()) if kept and kept.exists() else {}
    if found.get("tree") == tree:
        reach = Reach(found["tests"])
    else:
        reach = watch(root, {test for tests in near.values() for test in tests}, set(near), log)
        if kept:
            kept.write_text(json.dumps({"tree": tree, "tests": reach.of_tests}))
    for number, mutant in drawn.items():
        tests, outcomes, said = reach.of(root, mutant.file, mutant.line, near[mutant.file]), {}, "survived"
        if tests:
            original = mutant.apply(root)
            code, outcomes = run_pytest(root, tests, log, "--maxfail", "30", stops=True, limit=4 * MOST_SECONDS)
            (root / mutant.file).write_text(original, encoding="utf-8")
            said = verdict_of_drawn(code, outcomes)
        counts.setdefault(mutant.package, Counter())[said.partition(" (")[0]] += 1
        print(f"{number} {said}  {mutant.file}:{mutant.line}: {mutant.old!r} → {mutant.new!r}", flush=True)
        failed = [test for test, outcome in outcomes.items() if outcome not in ("passed", "skipped")]
        print(f"    {failed[-1] if failed else f'{len(tests)} tests of {len(near[mutant.file])} files'}", flush=True)
    return counts


def describe_rates(counts: Mapping[str, Counter]) -> str:
    """A table: how many mutants each package's tests caught, and the three shares that this file's docstring names."""
    from nanogka.evaluate.intervals import share_interval

    def share(some: int, judged: int) -> str:
        if not judged:
            return ""
        interval = share_interval(some / judged, judged)
        return f"{some / judged:.0%} ({interval.low:.0%} to {interval.high:.0%})"

    names = ("caught", "raised", "survived", "not judged", "equivalent")
    columns = ("assertion", "exception", *names[2:])
    heads = "".join(f"{column:>{len(column) + 2}}" for column in columns)
    lines = [f"{'package':<12}{heads}   {'by an assertion':<20}{'either way':<20}without exceptions (95 %)"]
    for package, count in [*sorted(counts.items()), ("all", sum(counts.values(), Counter()))]:
        judged = count["caught"] + count["raised"] + count["survived"]
        numbers = "".join(f"{count[name]:>{len(column) + 2}}" for name, column in zip(names, columns, strict=True))
        some = count["caught"], count["caught"] + count["raised"]
        shares = f"{share(some[0], judged):<20}{share(some[1], judged):<20}"
        shares += share(count["caught"], count["caught"] + count["survived"])
        lines.append(f"{package:<12}{numbers}   {shares}".rstrip())
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Run the chosen mutants. Returns 1 if one survives, cannot be applied, or has a test that fails without it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--since", help="only mutants of files that changed since this commit, or whose test did")
    parser.add_argument("--match", default="", help="only mutants whose file or test matches this regular expression")
    parser.add_argument("--most", type=int, help="at most this number, the same ones on every call")
    parser.add_argument("--sample", type=int, help="this many mutants drawn at random, and not the reviewed ones")
    parser.add_argument("--seed", type=int, default=0, help="of --sample (default: %(default)s)")
    parser.add_argument("--first", type=int, default=1, help="of --sample, begin with this one (default: %(default)s)")
    parser.add_argument("--reach", type=Path, help="of --sample, a file that keeps which functions the tests call")
    parser.add_argument("--equivalent", default="", help="of --sample, numbers of mutants that change nothing: 3,17")
    options = parser.parse_args(argv)
    if options.sample is not None:
        prepare_forks()
        with tempfile.TemporaryDirectory(prefix="mutants") as folder:
            root = Path(folder) / "tree"
            copy_tree(root)
            drawn = dict(enumerate(draw(root, options.sample, options.seed, options.match), 1))
            last = options.first - 1 + (options.most or len(drawn))
            equivalent = {int(number) for number in options.equivalent.split(",") if number}
            chosen = {n: m for n, m in drawn.items() if options.first <= n <= last and n not in equivalent}
            files = files_of(root, options.match)
            counts = judge_sample(chosen, files, root, Path(folder) / "log", options.reach)
            for number in equivalent:
                counts.setdefault(drawn[number].package, Counter())["equivalent"] += 1
        sys.path.insert(0, str(ROOT))
        print(describe_rates(counts))
        return 0
    mutants = read_mutants()
    # Of all mutants, whatever is chosen: a line that was edited takes its mutants along.
    problems = [fault for m in mutants if (fault := m.fault(ROOT))]
    chosen = [m for m in mutants if not m.fault(ROOT) and re.search(options.match, f"{m.file} {m.test}")]
    if options.since:
        changed = changed_since(options.since)
        chosen = [m for m in chosen if m.file in changed or m.test.partition("::")[0] in changed]
    if options.most is not None:
        chosen = sample(chosen, options.most)
    prepare_forks()
    not_caught, skipped = [], 0
    if chosen:
        with tempfile.TemporaryDirectory(prefix="mutants") as folder:
            copy_tree(Path(folder) / "tree")
            not_caught, skipped = judge(chosen, Path(folder) / "tree", Path(folder) / "log")
            problems += not_caught
    for problem in problems:
        print(problem)
    caught = len(chosen) - skipped - len(not_caught)
    unjudged = f"; {skipped} not judged, because their tests are skipped here" if skipped else ""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = sum(one.ru_utime + one.ru_stime for one in used)
    print(f"{caught} mutants caught, {len(problems)} problems{unjudged}; {seconds:.0f} s of CPU time")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
