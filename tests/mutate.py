"""Apply the one-line faults of tests/mutants.py, one at a time, and check that the named test catches each.

    python tests/mutate.py                      all of them
    python tests/mutate.py --since HEAD~1       those in files that changed since a commit
    python tests/mutate.py --match optimizer    those whose file or test contains a word

A mutant survives if its test still passes: then the test does not see what it promises. Each one runs in a copy of the
source tree and in a process of its own, forked from this one after the slow imports.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTS = ("nanogka", "scripts", "tasks", "tests", "docs", "pyproject.toml", "README.md", "speedrun.sh")


@dataclass(frozen=True)
class Mutant:
    """A fault: in `file`, the only occurrence of `old` becomes `new`, and `test` (a pytest argument) must fail."""

    file: str
    old: str
    new: str
    test: str

    def apply(self, root: Path) -> str:
        """Write the mutated file below `root` and return its text before. ValueError if `old` is not there once."""
        path = root / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.old) != 1 or self.old == self.new:
            raise ValueError(f"{self.file}: got {text.count(self.old)} places with {self.old!r}, expected one")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")
        return text


def run_pytest(root: Path, tests: list[str], log: Path) -> int:
    """Return pytest's exit code for `tests` in the tree `root`, in a forked process."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.chdir(root)
            sys.path.insert(0, str(root))
            import pytest

            code = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", *tests]))
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def changed_since(commit: str) -> set[str]:
    """Files that differ from `commit`, as paths from the root."""
    command = ["git", "diff", "--name-only", commit]
    return set(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split())


def main(argv: list[str] | None = None) -> int:
    """Run the chosen mutants. Returns 1 if one survives, cannot be applied, or has a test that fails without it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--since", help="only mutants of files that changed since this commit, or whose test did")
    parser.add_argument("--match", default="", help="only mutants whose file or test contains this text")
    options = parser.parse_args(argv)
    sys.path.insert(0, str(ROOT / "tests"))
    from mutants import MUTANTS

    chosen = [m for m in MUTANTS if options.match in m.file or options.match in m.test]
    if options.since:
        changed = changed_since(options.since)
        chosen = [m for m in chosen if m.file in changed or m.test.partition("::")[0] in changed]
    # Imported here, once for all children. The project itself must not be: each child imports its own copy.
    import numpy  # noqa: F401
    import pytest  # noqa: F401
    import torch

    torch.set_num_threads(1)
    assert "nanogka" not in sys.modules
    problems = []
    with tempfile.TemporaryDirectory(prefix="mutants") as folder:
        root, log = Path(folder) / "tree", Path(folder) / "log"
        root.mkdir()
        for part in PARTS:
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, root / part, ignore=shutil.ignore_patterns("__pycache__", "*.png"))
            else:
                shutil.copy(source, root / part)
        # A mutant of the same size, written in the same second, would be taken for the compiled file.
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        sys.dont_write_bytecode = True
        for test in dict.fromkeys(m.test for m in chosen):
            if run_pytest(root, [test], log):
                problems.append(f"{test}: fails without a mutant\n{log.read_text(errors='replace')[-800:]}")
        for number, mutant in enumerate(chosen, 1):
            place = f"{mutant.file}: {mutant.old!r} → {mutant.new!r}"
            try:
                before = mutant.apply(root)
            except (OSError, ValueError) as error:
                problems.append(str(error))
                continue
            code = run_pytest(root, [mutant.test], log)
            (root / mutant.file).write_text(before, encoding="utf-8")
            if code != 1:  # 1: tests failed; 2 to 5: pytest itself could not run them
                problems.append(f"survived (exit code {code}): {place}, which {mutant.test} should catch")
            print(f"{number}/{len(chosen)} {'caught' if code == 1 else 'SURVIVED'}  {place}", flush=True)
    for problem in problems:
        print(problem)
    print(f"{len(chosen) - len(problems)} passed, {len(problems)} failed")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
