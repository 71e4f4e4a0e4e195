"""The one way of every script from a command line to an exit code.

    @dataclass(frozen=True)
    class Settings:
        depth: int = flag(20, "number of layers", ge=1, le=1000)
        prompt: str = flag("", "text to continue", short="p")

    def body(settings: Settings, errors: Errors) -> int | None: ...

    main = command("model_info", Settings, body, __doc__)

A field of the settings is a flag, its help beside it, said once. Values are parsed after argparse is done, so that all
bad ones are reported together with those that `body` finds. `--config FILE` of every script gives flags by their names
in YAML, of which a run's config.yaml is one; the command line wins.

Of the libraries that make command lines from dataclasses, tyro, jsonargparse and simple-parsing stop at the first bad
value, and pydantic-settings ends in a traceback of its own.
"""

import argparse
import errno
import math
import os
import re
import sys
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import Field, field, fields
from typing import Any, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from nanogka.common.errors import Errors
from nanogka.common.files import expand_path, read_yaml
from nanogka.common.formatting import as_started, say
from nanogka.common.signals import Terminated, terminated_by_signal

T = TypeVar("T")

LARGEST_INTEGER = 10**18  # larger values are typos, on which arithmetic hangs or overflows
WHOLE = re.compile(r"[+-]?\d[\d_]*(\.0*)?(e\+?\d{1,2})?", re.IGNORECASE | re.ASCII)


def flag(
    default: Any,
    help: str,
    choices: tuple[str, ...] | None = None,
    short: str | None = None,
    *,
    ge: float | None = None,
    le: float | None = None,
    gt: float | None = None,
    positional: bool = False,
) -> Any:
    """A dataclass field that is also a flag `--its-name`.

    `default` need not be in range; `ge` and `le` are inclusive bounds, `gt` an exclusive one; `short` is a
    letter, for `-s`; the value of a `positional` flag may also be given as a word without it.
    """
    bounds = {"ge": ge, "le": le, "gt": gt}
    metadata = {"help": help, "choices": choices, "short": short, "positional": positional, "bounds": bounds}
    return field(default=default, metadata=metadata)


def flags(declare: Callable[[], dict[str, tuple[type, Field]]]) -> Any:
    """A dataclass field that holds, by name, the given ones of the flags `declare()`: {name: (type, flag(…))}."""
    return field(default_factory=dict, metadata={"declare": declare})


def flag_name(name: str) -> str:
    """The flag of a field: `--depth` of `depth`."""
    return "--" + name.replace("_", "-")


def command(
    script: str, settings: type[T], body: Callable[[T, Errors], int | None], description: str
) -> Callable[[list[str] | None], int]:
    """The `main(argv=None)` of a script, which returns its exit code; the fields of `settings` are its flags.

    `body` is given the settings and the errors found so far; it adds its own and calls `errors.raise_if_any()` before
    it does anything that lasts. `description` is printed by `--help`.
    """

    def main(argv: list[str] | None = None) -> int:
        """Run the script and return its exit code."""

        def parsed() -> int | None:
            errors = Errors()
            return body(parse(settings, argv, script, description, errors), errors)

        return run_script(parsed, script)

    return main


def run_script(function: Callable[[], object], script: str) -> int:
    """Call `function` and return an exit code.

    A `ValueError` (a mistake of the user) is printed to stderr and returns 2. An `OSError` (a missing file, no network,
    a full disk) returns 1. Ctrl-C returns 130, SIGTERM 143 and SIGHUP 129. Any other exception is a bug and keeps its
    traceback.
    """
    prepare_streams()
    try:
        with terminated_by_signal():
            result = function()
    except (ValueError, OSError) as error:
        for line in str(error).splitlines() or [type(error).__name__]:
            say(as_started(f"{script}: {line}"))
        return 2 if isinstance(error, ValueError) or error.errno == errno.ENAMETOOLONG else 1
    except (KeyboardInterrupt, Terminated) as stopped:
        with suppress(OSError):  # the terminal is gone after SIGHUP
            print(file=sys.stderr)
            say(f"{script}: ended by {getattr(stopped, 'name', 'SIGINT')}")
        return getattr(stopped, "code", 130)
    return result if isinstance(result, int) else 0


def prepare_streams() -> None:
    """Replace closed standard streams by /dev/null, and print `?` for characters that the locale cannot encode."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
        elif mode == "w" and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def parse(settings: type[T], argv: list[str] | None, script: str, description: str, errors: Errors) -> T:
    """The settings on a command line, and in the file that its `--config` names.

    A value that is not of its flag's type or choices is recorded in `errors` and left at the default, so that the
    other settings can be checked as well.
    """
    given = vars(_parser(settings, script, description).parse_args(argv))
    file = given.pop(CONFIG)
    configured = {} if file is None else errors.capture(lambda: read_settings(file)) or {}
    values, known = {}, flags_of(settings)
    for name in sorted(configured.keys() - known.keys()):
        unset = configured[name] in ("null", "false", "off")  # of a run that an earlier version trained
        errors.require(unset, f"{file}: {name}", configured[name], f"settings of {script} only: no such flag")
    for f in known.values():
        text, kind, choices = given[f.name], f.kind, f.metadata["choices"]
        label = flag_name(f.name)
        if text is None and f.name in configured:
            text, label = configured[f.name], f"{file}: {f.name}"
            if text == "null" and f.default is None:
                continue
        if text is None:
            continue
        try:
            value = text if isinstance(text, bool) else parse_value(kind, text)
            fits = value in choices if choices else in_range(value, **f.metadata["bounds"])
        except ValueError:
            fits = False
        takes = ", ".join(choices) if choices else describe_range(kind, **f.metadata["bounds"])
        if errors.require(fits, label, text, takes):
            (values.setdefault(f.owner, {}) if f.owner else values)[f.name] = value
    return settings(**values)


def read_settings(file: str) -> dict[str, str]:
    """{name: value as written} of a YAML file, or of the section `settings` in it, as a run's config.yaml has one."""
    try:
        # The base loader leaves every value as it is written: `on` is a text and 1e-3 a number as on a command line.
        content = read_yaml(expand_path(file), yaml.BaseLoader) or {}
    except (OSError, ValueError) as error:
        raise ValueError(f"--config: {error}") from error
    if isinstance(content, dict) and isinstance(content.get("settings"), dict):
        content = content["settings"]
    if not isinstance(content, dict) or not all(isinstance(part, str) for item in content.items() for part in item):
        raise ValueError(f"--config: {file} cannot be used, expected YAML with a line `name: value` for each flag")
    return {name.removeprefix("--").replace("-", "_"): value for name, value in content.items()}


UNITS = ("bytes", "chars", "epochs", "minutes", "seconds", "steps", "tokens")  # that end a flag's name
CONFIG = "config"  # the flag that every script has
NANOCHAT = {  # its names of flags that mean the same here, taken as well
    "sequence_len": "--max-seq-len",
    "core_every": "--core-metric-every",
    "core_max_per_task": "--core-metric-max-per-task",
    "device": "--device-type",
    "run": "--model-tag",
}


def in_range(value: Any, ge: float | None = None, le: float | None = None, gt: float | None = None) -> bool:
    """True if `value` is within the bounds that are given: ge <= value <= le, value > gt."""
    low = (ge is None or value >= ge) and (gt is None or value > gt)
    return low and (le is None or value <= le)


def describe_range(kind: type, ge: float | None = None, le: float | None = None, gt: float | None = None) -> str:
    """The values that a flag takes, for an error message: "an integer from 1 to 9"."""
    if kind not in (int, float):
        return {str: "text", bool: "true or false"}[kind]
    noun = "an integer" if kind is int else "a number"
    if gt is not None:
        return f"{noun} above {gt:,}" + ("" if le is None else f", at most {le:,}")
    if ge is not None:
        return f"{noun} of at least {ge:,}" if le is None else f"{noun} from {ge:,} to {le:,}"
    if le is not None:
        return f"{noun} of at most {le:,}"
    return f"an integer of at most {LARGEST_INTEGER:.0e}" if kind is int else "a finite number"


def parse_value(kind: type, text: str) -> Any:
    """`text` as an int (1000, 1_000 and 1e3 alike), a finite float, a bool, or text. Raises ValueError."""
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError("neither true nor false")
        return text.lower() == "true"
    if kind is int:
        if not WHOLE.fullmatch(text):
            raise ValueError("no integer")
        plain = text.replace("_", "").lower()
        number = int(plain) if plain.lstrip("+-").isdigit() else int(float(plain))
        if abs(number) > LARGEST_INTEGER:
            raise ValueError("too large")
        return number
    if kind is float:
        number = float(text)
        if not math.isfinite(number):
            raise ValueError("not finite")
        return number
    text.encode()  # UnicodeEncodeError, a ValueError, of an argument that is not UTF-8
    return text


def _parser(settings: type, script: str, description: str) -> argparse.ArgumentParser:
    module, *words = (script if "." in script else f"scripts.{script}").split()
    parser = argparse.ArgumentParser(
        prog=" ".join([sys.argv[0] if sys.argv[0].startswith("nanogka ") else f"python -m {module}", *words]),
        usage="%(prog)s [flags]",  # argparse's own list of dozens of flags would hide the description
        description=as_started(description),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    groups: dict[str, Any] = {}
    for f in flags_of(settings).values():
        group = groups.get(f.group) or groups.setdefault(f.group, parser.add_argument_group(f.group))
        kind, text = f.kind, f.metadata["help"].replace("%", "%%")
        names = [flag_name(f.name), *([f"-{f.metadata['short']}"] if f.metadata["short"] else [])]
        if f.default not in (None, "") and "default" not in text:
            text += f" (default: {('off', 'on')[f.default] if kind is bool else f.default})"
        if kind is bool:
            group.add_argument(*names, action=argparse.BooleanOptionalAction, default=None, help=text)
            continue
        group.add_argument(*names, dest=f.name, metavar=_metavar(f, kind), help=text)
        if f.metadata["positional"]:
            group.add_argument(
                f.name, nargs="?", default=argparse.SUPPRESS, metavar=f.name.upper(), help=f"as {names[0]}"
            )
        if f.name in NANOCHAT:
            group.add_argument(NANOCHAT[f.name], dest=f.name, help=argparse.SUPPRESS)
    parser.add_argument(f"--{CONFIG}", metavar="FILE", help="YAML with flags by name, as a run's config.yaml has them")
    return parser


class Flag(NamedTuple):
    """A flag of a settings class."""

    name: str
    kind: type
    default: object
    metadata: Mapping[str, Any]  # the other arguments of `flag`
    group: str  # heading in `--help`: the first sentence of the class that declares it
    owner: str | None = None  # the field that holds it in a dictionary, see `flags`


def flags_of(settings: type) -> dict[str, Flag]:
    """{name: flag} of a settings class, in the order in which the class and then its bases declare them."""

    def rank(f: Field) -> int:
        return next(i for i, base in enumerate(settings.__mro__) if f.name in vars(base).get("__annotations__", {}))

    hints, found = get_type_hints(settings), []
    for f in sorted(fields(settings), key=rank):
        group = (settings.__mro__[rank(f)].__doc__ or "").partition("\n")[0].partition(". ")[0].rstrip(".")
        if "help" in f.metadata:
            found.append(Flag(f.name, plain_type(hints[f.name]), f.default, f.metadata, group))
        elif "declare" in f.metadata:
            declared = f.metadata["declare"]()
            found += [
                Flag(name, kind, one.default, one.metadata, group, f.name) for name, (kind, one) in declared.items()
            ]
    return {one.name: one for one in found}


def plain_type(hint: Any) -> type:
    """int of `int | None`, and so on."""
    if get_origin(hint) in (Union, types.UnionType):
        return next(part for part in get_args(hint) if part is not type(None))
    return hint


def _metavar(f: Flag, kind: type) -> str:
    if f.metadata["choices"]:
        return "{" + ",".join(f.metadata["choices"]) + "}"
    unit = f.name.rpartition("_")[2]
    return unit.upper() if unit in UNITS else kind.__name__.upper()
