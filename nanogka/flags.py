"""Command-line flags from a settings dataclass: each field is one flag, its help beside it, said once.

    @dataclass(frozen=True)
    class Settings:
        depth: int = flag(20, "number of layers")
"""

import argparse
import types
from dataclasses import Field, field, fields
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from nanogka.problems import Problems

T = TypeVar("T")


def flag(default: Any, help: str, choices: tuple[str, ...] | None = None) -> Any:
    """A dataclass field that is also a flag: `--its-name`, with `help`."""
    return field(default=default, metadata={"help": help, "choices": choices})


def add_flags(parser: argparse.ArgumentParser, settings: type) -> None:
    """Give `parser` one flag for each field of the dataclass `settings` that was made with `flag`.

    What the class itself declares comes before what it inherits.
    """
    hints = get_type_hints(settings)
    own = vars(settings).get("__annotations__", {})
    for f in sorted(fields(settings), key=lambda f: f.name not in own):
        if "help" not in f.metadata:
            continue
        name = "--" + f.name.replace("_", "-")
        kind = _plain_type(hints[f.name])
        text = f.metadata["help"].replace("%", "%%")
        if kind is bool:
            parser.add_argument(name, action=argparse.BooleanOptionalAction, default=f.default, help=text)
            continue
        shown = "" if f.default in (None, "") else f" (default: {f.default})"
        parser.add_argument(
            name, type=str, default=None, metavar=_metavar(f, kind), help=text + shown
        )  # parsed in `from_flags`, which reports every bad one at once


def parse_flags(settings: type, script: str, description: str, argv: list[str] | None) -> argparse.Namespace:
    """The command line of `scripts.<script>`, whose flags are those of the dataclass `settings` alone."""
    parser = argparse.ArgumentParser(
        prog=f"python -m scripts.{script}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_flags(parser, settings)
    return parser.parse_args(argv)


def from_flags(settings: type[T], namespace: argparse.Namespace, problems: Problems) -> T:
    """The settings that the parsed flags stand for.

    A flag whose text is not of its type or choices is recorded in `problems` and left at its default, so that the other
    settings can be checked as well.
    """
    hints = get_type_hints(settings)
    values = {}
    for f in fields(settings):
        given = getattr(namespace, f.name, None)
        if "help" not in f.metadata or given is None:
            continue
        kind, choices = _plain_type(hints[f.name]), f.metadata["choices"]
        name = "--" + f.name.replace("_", "-")
        if kind is bool:
            values[f.name] = given
            continue
        try:
            values[f.name] = _parse(kind, given)
        except ValueError:
            problems.check(False, name, given, _takes(kind))
            continue
        if choices and not problems.check(values[f.name] in choices, name, given, ", ".join(choices)):
            del values[f.name]
    return settings(**values)


def _parse(kind: type, text: str) -> Any:
    if kind is int:
        return int(text.replace("_", "")) if "e" not in text.lower() else _whole(float(text))
    return kind(text)


def _whole(number: float) -> int:
    if number != int(number):
        raise ValueError("not whole")
    return int(number)


def _plain_type(hint: Any) -> type:
    """int of `int | None`, and so on."""
    if get_origin(hint) in (Union, types.UnionType):
        return next(part for part in get_args(hint) if part is not type(None))
    return hint


def _metavar(f: Field, kind: type) -> str:
    return "{" + ",".join(f.metadata["choices"]) + "}" if f.metadata["choices"] else kind.__name__.upper()


def _takes(kind: type) -> str:
    return {int: "an integer", float: "a number"}.get(kind, "text")
