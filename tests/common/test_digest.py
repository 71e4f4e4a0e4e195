"""The hash of what decides a result changes with each value and each source file, and with nothing else."""

import pytest

from nanogka.common.digest import digest, digest_of_code, digest_of_file
from nanogka.common.files import MAX_DATA_BYTES


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package `pkg` with a subpackage, a page and a module next to it."""
    (tmp_path / "pkg" / "inner").mkdir(parents=True)
    for name in ("pkg/__init__.py", "pkg/inner/__init__.py", "pkg/inner/deep.py", "pkg/page.css", "alone.py"):
        (tmp_path / name).write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    digest_of_code.cache_clear()
    yield tmp_path
    digest_of_code.cache_clear()


def test_it_changes_with_values_and_with_every_file_of_the_code(package):
    def found(values=("a", 2, None), code=("pkg", "alone")) -> str:
        digest_of_code.cache_clear()
        return digest(values, code)

    first = found()
    assert found(["a", 2, None]) == first
    seen = {first, found(("a", 3, None)), found(code=["pkg"]), found(code=["pkg", "none_such"])}
    for name in ("pkg/inner/deep.py", "pkg/page.css", "alone.py"):
        (package / name).write_text("x = 2\n")
        seen.add(found())
    (package / "pkg/page.css").rename(package / "pkg/other.css")
    seen.add(now := found())
    assert len(seen) == 8
    (package / "pkg/__pycache__").mkdir()
    (package / "pkg/__pycache__/deep.pyc").write_bytes(b"\0")
    assert found() == now


def test_a_file_that_no_reader_would_take_is_not_hashed(tmp_path):
    with (tmp_path / "a").open("wb") as file:
        file.truncate(MAX_DATA_BYTES + 1)
    with pytest.raises(ValueError, match="expected at most"):
        digest_of_file(tmp_path / "a")
