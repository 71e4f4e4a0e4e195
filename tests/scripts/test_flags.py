"""Every flag of a script is read by its code. tests/train/test_settings.py watches trainings read theirs."""

import ast
import importlib
import inspect
from functools import cache
from pathlib import Path

import pytest
from test_architecture import ROOT, imported

from nanogka.common.cli import flags_of

SCRIPTS = sorted(path.stem for path in (ROOT / "scripts").glob("[!_]*.py"))
# Names that code gives the settings that it is handed.
SETTINGS = ("settings", "s", "own", "rates", "lr", "params", "limits")
BOUNDS = {"ge": ">=", "gt": ">", "le": "<="}


def settings_of(script):
    """The settings class of a script; None for one that has no flags of `command`."""
    main = importlib.import_module(f"scripts.{script}").main
    return inspect.getclosurevars(main).nonlocals.get("settings")


def declares_flags(node):
    """Whether a node is a class with a field `name: type = flag(…)`."""
    fields = (
        [field for field in node.body if isinstance(field, ast.AnnAssign)] if isinstance(node, ast.ClassDef) else []
    )
    calls = [field.value.func for field in fields if isinstance(field.value, ast.Call)]
    return any(getattr(function, "id", "") in ("flag", "flags") for function in calls)


@cache
def names_read(path):
    """Attributes that a module reads from settings, and texts, by which `getattr` may read them."""
    found, tree = set(), ast.parse((ROOT / path).read_text(encoding="utf-8"))
    own = {id(part) for node in ast.walk(tree) if declares_flags(node) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            base = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            if base in SETTINGS or base.endswith("settings") or (base == "self" and id(node) in own):
                found.add(node.attr)
        elif isinstance(node, ast.Tuple):  # for name in ("depth", "network"): getattr(settings, name)
            found |= {one.value for one in node.elts if isinstance(one, ast.Constant) and isinstance(one.value, str)}
    return found


def reachable(path):
    """A module and all modules of the project that it imports, directly or not."""
    found, left = set(), [Path(path)]
    while left:
        one = left.pop()
        if one not in found:
            found.add(one)
            left += map(Path, imported(one))
    return found


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_reads_every_flag(script):
    settings = settings_of(script)
    if settings is None:
        pytest.skip("no flags of `command`")
    read = set().union(*map(names_read, reachable(f"scripts/{script}.py")))
    assert [name for name, one in flags_of(settings).items() if (one.owner or name) not in read] == []


def described(one):
    """The default of a flag and, if it is a number, its bounds."""
    bounds = [f"{sign} {one.limits[name]}" for name, sign in BOUNDS.items() if one.limits[name] is not None]
    return " ".join([str(one.default), *bounds])


def test_defaults_and_bounds_of_numbers_and_switches_are_those_of_the_list():
    """They are part of what a command promises, and results were measured with them."""
    found = {}
    for script in SCRIPTS:
        for name, one in flags_of(settings_of(script)).items() if settings_of(script) else ():
            if one.kind in (int, float, bool):
                found.setdefault(f"{name} = {described(one)}", []).append(script)
    lines = (Path(__file__).parent / "defaults.txt").read_text(encoding="utf-8").splitlines()
    assert sorted(f"{text}: {' '.join(scripts)}" for text, scripts in found.items()) == lines
