"""Which tests call which function: the ones that can see a mutant, cheapest first."""

import ast
import builtins
import importlib.machinery
import json
import multiprocessing.process
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

MOST_SECONDS = 20  # of tests per mutant, by their time without one
ANY = "*"  # a process was started, which may call anything
IMPORTS = "imports"  # the name, among those of tests, of what the imports of the tests call


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module whose functions note their calls: `note_call` in builtins gets "file:first line"."""

    name_of_file = ""

    def get_code(self, fullname):
        tree = ast.parse(self.get_data(self.path))
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                call = ast.parse(f"note_call({f'{self.name_of_file}:{_first_line(node)}'!r})").body[0]
                for part in ast.walk(call):  # tracebacks and inspect see the lines of the source
                    if isinstance(part, (ast.stmt, ast.expr)):
                        ast.copy_location(part, node.body[-1])
                node.body.insert(ast.get_docstring(node, clean=False) is not None, call)
        return compile(tree, self.path, "exec", dont_inherit=True)


class CallLog:
    """A pytest plugin that writes, for every test that passes, its seconds of CPU time and the functions it calls.

    These are functions of `files` below `root`, each as "file:first line". What a fixture calls counts for all tests
    of the file, because fixtures are shared.
    """

    def __init__(self, root: Path, files: set[str], path: Path) -> None:
        self.files, self.path = {str(root / file): file for file in files}, path
        self.calls: set[str] = set()
        self.of_fixtures: defaultdict[str, set[str]] = defaultdict(set)
        self.of_tests: dict[str, tuple[float, set[str]]] = {}
        self.since = time.process_time()
        builtins.__dict__["note_call"] = self.calls.add
        sys.meta_path.insert(0, self)
        sys.addaudithook(lambda event, _: self.calls.add(ANY) if event == "subprocess.Popen" else None)
        start = multiprocessing.process.BaseProcess.start
        multiprocessing.process.BaseProcess.start = lambda process: (self.calls.add(ANY), start(process))[1]

    def find_spec(self, fullname, path=None, target=None):
        """Ours for modules of `files`; part of `sys.meta_path`."""
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec and spec.origin in self.files:
            spec.loader = _Loader(fullname, spec.origin)
            spec.loader.name_of_file = self.files[spec.origin]
            return spec
        return None

    def pytest_collection_finish(self) -> None:
        self.of_tests[IMPORTS] = 0.0, set(self.calls)
        self.calls.clear()
        self.since = time.process_time()

    def pytest_runtest_logreport(self, report) -> None:
        now, calls = time.process_time(), set(self.calls)
        self.calls.clear()
        if report.when == "call" and report.passed:
            self.of_tests[report.nodeid] = now - self.since, calls
        elif report.when != "call":
            self.of_fixtures[report.nodeid.partition("::")[0]] |= calls
        self.since = now

    def pytest_sessionfinish(self) -> None:
        of_tests = {
            test: [seconds, sorted(calls | self.of_fixtures[test.partition("::")[0]])]
            for test, (seconds, calls) in self.of_tests.items()
        }
        self.path.write_text(json.dumps(of_tests))


@dataclass
class Reach:
    """What `CallLog` wrote of many tests."""

    of_tests: dict[str, tuple[float, list[str]]]

    def of(self, root: Path, file: str, line: int, near: list[str]) -> list[str]:
        """Tests that call the function around a line, those of the files `near` first, for at most `MOST_SECONDS`.

        A test that starts a process may call anything, and counts only if its file is near. The cheapest files come
        first. Where calls say little, these are all tests of `near`, then those that call any function of the file:
        without a function around the line, and of a function that imports call or that keeps its results.
        """
        lines = function_lines(root, file, line)
        functions = {f"{file}:{number}" for number in lines or ()}
        if functions & {*self.of_tests.get(IMPORTS, (0.0, []))[1]}:
            lines = None
        by_file: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
        for test, (seconds, calls) in self.of_tests.items():
            name = test.partition("::")[0]
            if lines is None:
                sees = name in near or any(call.startswith(f"{file}:") for call in calls)
            else:
                sees = functions & {*calls} or (ANY in calls and name in near)
            if sees and test != IMPORTS:
                by_file[name].append((seconds, test))
        cost = {name: sum(seconds for seconds, _ in tests) for name, tests in by_file.items()}
        chosen, total = [], 0.0
        for name in sorted(by_file, key=lambda name: (name not in near, cost[name])):
            for seconds, test in sorted(by_file[name]):
                total += seconds
                if total < MOST_SECONDS:
                    chosen.append(test)
        return chosen


def _first_line(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min(part.lineno for part in [function, *function.decorator_list])


def function_lines(root: Path, file: str, line: int) -> range | None:
    """The lines of the innermost function with a name around a line of a file; None if there is none, or it caches."""
    found = None
    for node in ast.walk(ast.parse((root / file).read_bytes())):  # a function comes after those around it
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and _first_line(node) <= line <= node.end_lineno:
            caches = any("cache" in ast.unparse(decorator) for decorator in node.decorator_list)
            found = None if caches else range(_first_line(node), node.end_lineno + 1)
    return found
