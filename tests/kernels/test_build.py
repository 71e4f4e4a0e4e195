"""C++ is compiled once, with or without OpenMP, and nothing that others could have written is loaded."""

import shutil
import subprocess
import sys

import pytest

from nanogka.kernels import build

pytestmark = pytest.mark.skipif(not any(map(shutil.which, ("c++", "g++", "clang++"))), reason="no C++ compiler")


@pytest.fixture
def source(monkeypatch, tmp_path):
    """A source in a file, of which nothing has been compiled yet."""
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(tmp_path / "base"))
    file = tmp_path / "answer.cpp"
    file.write_text('extern "C" int answer() { return 42; }')
    return file


def library_of(tmp_path):
    (library,) = (tmp_path / "base" / "kernels").iterdir()
    return library


def test_it_is_built_once_until_something_changes(source, monkeypatch, tmp_path):
    assert build.load(source).answer() == 42
    library = library_of(tmp_path)
    assert (library.parent.stat().st_mode & 0o777, library.stat().st_mode & 0o777) == (0o700, 0o700)
    with monkeypatch.context() as context:
        context.setattr(subprocess, "run", None)
        assert build.load(source).answer() == 42
    source.write_text(source.read_text().replace("42", "43"))
    assert build.load(source).answer() == 43
    monkeypatch.setattr(build, "FLAGS", [*build.FLAGS, "-DX=1"])
    build.load(source)
    assert len(list(library.parent.iterdir())) == 3


@pytest.mark.parametrize("what", ["folder", "library"])
@pytest.mark.parametrize("how", ["writable by all", "a link"])
def test_what_others_could_have_written_is_not_loaded(what, how, source, monkeypatch, tmp_path):
    build.load(source)
    path = library_of(tmp_path) if what == "library" else library_of(tmp_path).parent
    if how == "a link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.chmod(0o777)
    monkeypatch.setattr(build.ctypes, "CDLL", None)
    with pytest.raises(OSError, match=f"{path} is not loaded: a link, another user's or writable by others"):
        build.load(source)


@pytest.mark.parametrize(
    "path,reason",
    [
        ("nothing", r"no C\+\+ compiler \(c\+\+, g\+\+ or clang\+\+\)"),
        ("broken", r"c\+\+ failed \(3\): no such standard$"),
    ],
)
def test_where_it_cannot_be_built_the_reason_is_said(path, reason, source, monkeypatch, tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    if path == "broken":
        compiler = folder / "c++"
        compiler.write_text(f"#!{sys.executable}\nimport sys\nsys.stderr.write('no such standard')\nsys.exit(3)\n")
        compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(OSError, match=reason):
        build.load(source)
    assert not list((tmp_path / "base").glob("kernels/*"))
