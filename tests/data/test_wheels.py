"""The corpus of docstrings: two small wheels, built and served here, are read as pip would read the pinned ones."""

import ast
import hashlib
import json
import zipfile
from pathlib import Path

import pytest

from nanogka.data import open_corpus, wheels
from nanogka.data.docstrings import docstring, module_name
from nanogka.data.wheels import docstring_corpus, names_of

SHARED = "This paragraph is longer than eighty characters and is in two packages, so that only one split may have it."
ALPHA = f'''"""Alpha adds numbers. {"It is small. " * 20}

{SHARED}
"""
raise SystemExit("this code must not run")

class Adder:
    """Add.

        An indented line.

    A plain line.
    """

    def add(self, a, /, b=(1, 2), *rest: "int", carry=f"{{1}}", **more):
        """Return the sum of all arguments. {"Again. " * 40}"""
'''
BETA = f'"""Beta is for validation. {"It is large. " * 30}\n\n{SHARED}\n"""\n'
TRAINING = (
    "Module alpha\n\nAlpha adds numbers." + " It is small." * 20 + "\n\nclass Adder\n\nAdd."
    "\n\n    An indented line.\n\nA plain line.\n\nAdder.add(self, a, b, *rest, carry, **more)"
    "\n\nReturn the sum of all arguments." + " Again." * 40 + "\n"
)
VALIDATION = "Module beta\n\nBeta is for validation." + " It is large." * 30 + f"\n\n{SHARED}\n"


def make_wheel(folder: Path, name: str, files: dict[str, str]) -> str:
    """Write a wheel of version 1.0 with fixed bytes and return its line of requirements."""
    info = f"{name}-1.0.dist-info"
    files = files | {f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"}
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/RECORD"] = ""
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as opened:
        for path, text in files.items():
            opened.writestr(zipfile.ZipInfo(path), text)
    return f"{name}==1.0 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"


@pytest.fixture
def index(base, tmp_path, monkeypatch) -> Path:
    """A folder in which pip finds the two wheels, which are the pinned ones. Nothing reaches the network."""
    folder = tmp_path / "index"
    folder.mkdir()
    alpha = {"alpha/__init__.py": ALPHA, "alpha/bad.py": "def ("}
    alpha["alpha/tests/test_alpha.py"] = f'"""{"A test. " * 80}"""'
    pinned = make_wheel(folder, "alpha", alpha) + make_wheel(folder, "beta_b", {"beta/__init__.py": BETA})
    monkeypatch.setattr(wheels, "REQUIREMENTS", tmp_path / "wheels.txt")
    wheels.REQUIREMENTS.write_text("# a comment\n" + pinned.replace("beta_b", "beta-b"))
    monkeypatch.setattr(wheels, "VALIDATION", ("beta-b",))
    monkeypatch.setattr(wheels, "FINGERPRINT", wheels.fingerprint([[TRAINING], [VALIDATION]]))
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", str(folder)), ("CONFIG_FILE", "/dev/null")):
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.delenv("PIP_INDEX_URL", raising=False)
    return folder


def test_pip_fetches_the_wheels_and_whole_packages_are_for_validation(index, base, monkeypatch):
    corpus = open_corpus("docstrings")
    assert list(corpus.documents("train")) == [TRAINING]
    assert list(corpus.documents("val")) == [VALIDATION]
    files = sorted(file.name for file in (base / "corpora" / "docstrings").iterdir())
    assert files == ["corpus.json", "shard_00000.parquet", "shard_00001.parquet"]
    # It identifies the text and not the bytes of the files, which another version of pyarrow writes differently.
    manifest = json.loads((base / "corpora" / "docstrings" / "corpus.json").read_text())
    shard = b"shard_0000%d.parquet\0%s\0[1]\n"
    texts = [record["documents_sha256"].encode() for _, record in sorted(manifest["files"].items())]
    assert corpus.fingerprint == hashlib.sha256(shard % (0, texts[0]) + shard % (1, texts[1])).hexdigest()
    monkeypatch.setattr(wheels, "download", lambda folder: pytest.fail("downloaded again"))
    assert open_corpus("docstrings").fingerprint == corpus.fingerprint


def test_a_changed_wheel_a_missing_one_and_other_documents_get_one_message(index, base, monkeypatch):
    monkeypatch.setattr(wheels, "FINGERPRINT", "0" * 64)
    with pytest.raises(ValueError, match=r"^docstrings: got documents with the SHA-256 [0-9a-f]{64}, expected 0{64}$"):
        docstring_corpus()
    make_wheel(index, "alpha", {"alpha/__init__.py": "changed"})
    with pytest.raises(ValueError, match=r"(?s)^docstrings: pip could not download.* SHA-256 .*alpha==1\.0"):
        docstring_corpus()
    (index / "alpha-1.0-py3-none-any.whl").unlink()
    with pytest.raises(ValueError, match=r"^docstrings: pip could not download.* alpha==1\.0[^\n]*$"):
        docstring_corpus()
    assert not list((base / "corpora").iterdir())  # no half-built corpus and no wheels


def test_the_pinned_list_names_each_wheel_once_with_its_hash_and_holds_the_packages_for_validation():
    lines = [line for line in wheels.REQUIREMENTS.read_text().splitlines() if not line.startswith("#")]
    names = [line.split("==")[0] for line in lines]
    assert len(set(names)) == len(names)
    assert set(wheels.VALIDATION) < set(names)
    assert all(len(line.split(" --hash=sha256:")[1]) == 64 for line in lines)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('"""  One.\n      two\n\n    three\n    """', "One.\n  two\n\nthree"),
        ('"""\n\n    One.\n\ttab\n"""', "One.\n    tab"),
        ('"""One.\n    \\fform feed\n      two\n"""', "One.\n\\fform feed\n two".replace("\\f", "")),
        ("'one line'", "one line"),
        ("1", ""),
    ],
)
def test_docstrings_lose_their_indentation_in_the_same_way_on_every_python(source, expected):
    assert docstring(ast.parse(source)) == expected


def test_arguments_and_modules_have_the_same_names_on_every_python():
    for text in ("", "a", "a, /, b", "*, k", "*args, k, **kwargs", "**kwargs", "a, *args"):
        assert names_of(ast.parse(f"def f({text}): pass").body[0].args) == text.replace("/, ", "")
    names = ("a/b.py", "a/__init__.py", "a/tests/b.py", "a/b-c.py", "a.py", "a/b.pyi", "a-1.0.data/b.py")
    assert [module_name(name) for name in names] == ["a.b", "a", None, None, "a", None, None]
