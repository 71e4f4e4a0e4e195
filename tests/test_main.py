"""The command `nanogka`, and the wheel that brings it."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import nanogka
from nanogka import __main__ as command
from nanogka.common.formatting import SHORT_NAMES

ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def argv(monkeypatch):
    monkeypatch.setattr("sys.argv", ["nanogka"])  # which the command changes


def test_help_lists_every_script_with_a_line(capsys):
    assert command.main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for path in (ROOT / "scripts").glob("[!_]*.py"):
        first = path.read_text(encoding="utf-8").splitlines()[0].strip('"')
        assert [line for line in lines if f"{path.stem} " in line and line.endswith(first)], path.stem
    assert any(line.startswith("  speedrun ") for line in lines)
    assert set(SHORT_NAMES) <= set(command.commands())


def test_a_command_is_the_script_by_either_name_and_what_is_none_is_refused(capsys):
    words = ["--depth", "2", "--vocab-size", "512", "--sequence-len", "64"]
    assert command.main(["info", *words]) == 0
    text = capsys.readouterr().out
    assert command.main(["--", "model_info", *words]) == 0
    assert capsys.readouterr().out == text
    assert text.startswith("gaussian: 2 layers")
    with pytest.raises(SystemExit):
        command.main(["info", "--help"])
    helped = capsys.readouterr().out
    assert helped.startswith("usage: nanogka info ")
    assert "    nanogka info --depth" in helped
    assert "python -m" not in helped
    assert command.main(["trian"]) == command.main([]) == 2
    assert "got 'trian', expected one of speedrun, train, " in capsys.readouterr().err
    assert command.main(["--version"]) == 0
    assert capsys.readouterr().out.endswith(f"nanogka {nanogka.__version__}\n")


def test_speedrun_is_the_file(tmp_path):
    run = [sys.executable, "-m", "nanogka", "speedrun"]
    done = subprocess.run([*run, "--help"], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert (done.returncode, "DRY_RUN=1" in done.stdout) == (0, True)


def test_the_wheel_has_one_name_at_top_level_and_all_that_the_command_needs(tmp_path):
    pytest.importorskip("setuptools", "77")
    source = tmp_path / "source"
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("nanogka", "scripts", "tasks"):
        shutil.copytree(ROOT / name, source / name, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE", "speedrun.sh"):
        shutil.copy(ROOT / name, source)
    leftover = source / "build" / "lib" / "nanogka" / "obsolete.py"  # of an earlier build
    leftover.parent.mkdir(parents=True)
    leftover.touch()
    build = ["-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-q", "-w", str(tmp_path), "."]
    subprocess.run([sys.executable, *build], cwd=source, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
        metadata = {Path(name).name: opened.read(name).decode() for name in names if ".dist-info/" in name}
    # The build imports a module, which Python may compile.
    files = [path for path in (source / "nanogka").rglob("*") if path.is_file() and path.parent.name != "__pycache__"]
    package = {str(path.relative_to(source)) for path in files}
    brought = {f"nanogka/bundled/{path.relative_to(source)}" for path in source.glob("[st][ca]*/*.py")}
    assert {name.split("/")[0] for name in names} == {"nanogka", f"nanogka-{nanogka.__version__}.dist-info"}
    brought |= {"nanogka/bundled/speedrun.sh", "nanogka/bundled/scripts/steps.sh"}
    assert {name for name in names if ".dist-info/" not in name} == package | brought
    assert "nanogka/bundled/scripts/base_train.py" in brought
    assert "nanogka = nanogka.__main__:main" in metadata["entry_points.txt"]
    assert f"Version: {nanogka.__version__}\n" in metadata["METADATA"]
