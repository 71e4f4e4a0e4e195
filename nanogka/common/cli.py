"""Build the `main` of a script from a settings dataclass.

    @dataclass(frozen=True)
    class Settings:
        depth: int = flag(20, "number of layers", ge=1)
        prompt: str = flag("", "text to continue", short="p")

    def body(settings: Settings, errors: Errors) -> int | None: ...

    main = command("model_info", Settings, body, __doc__)

argparse splits the command line into texts. pydantic converts each text to the type of its field and checks its
bounds. All bad flags are collected, so that a user corrects them in one go. Every script has `--config FILE`: a YAML
file with flags by name, such as a run's config.yaml. The command line overrides it.
"""

import argparse
import errno
import inspect
import json
import os
import select
import sys
import types
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import Field, dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from nanogka.common import nanochat
from nanogka.common.errors import Errors, SettingsError
from nanogka.common.files import base_dir, expand_path, read_yaml
from nanogka.common.formatting import as_started, say
from nanogka.common.signals import Terminated, terminated_by_signal
from nanogka.common.validate import convert

T = TypeVar("T")

READER_LEFT = 141  # 128 + 13, as a shell reports SIGPIPE
CONFIG = "config"  # the flag that every script has
MOST_FOREIGN = 3  # settings of a file that a script lacks and that are named one by one
Affects = Literal["losses", "speed", "output"]


# ---- declare ----


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
    affects: Affects | None = None,
    through: str | None = None,
) -> Any:
    """A dataclass field that is also the flag `--its-name`.

    `short` is the letter of a short form. `ge`, `le` and `gt` bound a number, as in pydantic; the default need not
    obey them. The value of a `positional` flag may also be given without the flag.

    Settings of a training run say what they change (`affects`). A setting that decides the losses may do so `through`
    a value that config.yaml records, such as the fingerprint of a corpus: a resumed run compares that value.
    """
    limits = {"choices": choices, "ge": ge, "le": le, "gt": gt}
    metadata = {"help": help, "short": short, "positional": positional, "limits": limits}
    return field(default=default, metadata=metadata | {"affects": affects, "through": through})


def flags(declare: Callable[[], dict[str, tuple[type, Field]]]) -> Any:
    """A dataclass field with a dictionary of flags that `declare()` lists as {name: (type, flag(…))}.

    The dictionary holds the flags that are set.
    """
    return field(default_factory=dict, metadata={"declare": declare})


def json_flag() -> Any:
    """The field `json` of a script that ends with `print_json`."""
    return flag(False, "also print the results as one line of JSON on a terminal")


@dataclass(frozen=True)
class DeviceSettings:
    """Machine."""

    device: str = flag("auto", "device to compute on: auto, cpu, cuda, cuda:N or mps")
    dtype: str = flag("auto", "dtype of activations and matrix products: auto, float32, bfloat16 or float16")


@dataclass(frozen=True)
class WhichRun:
    """Run."""

    run: str | None = flag(None, "tag or folder of a run (default: the latest run)")
    step: int | None = flag(None, "step of the checkpoint (default: the newest valid one)", ge=0)


def flag_name(name: str) -> str:
    """The flag of a field: `--total-batch-size` of `total_batch_size`."""
    return "--" + name.replace("_", "-")


@dataclass(frozen=True)
class Flag:
    """A flag of a settings class."""

    name: str
    kind: type
    default: object
    help: str
    limits: Mapping[str, Any]  # `choices`, `ge`, `le` and `gt` of `flag`
    group: str  # heading in --help: the first sentence of the class that declares the flag
    short: str | None = None
    positional: bool = False
    owner: str | None = None  # the field whose dictionary holds this flag, see `flags`
    affects: Affects | None = None
    through: str | None = None

    def convert(self, value: object, label: str | None = None, strict: bool = False) -> Any:
        """`value` as this flag's type, see `convert`. `label` names the flag in errors."""
        return convert(label or flag_name(self.name), value, self.kind, **self.limits, strict=strict)


def flags_of(settings: type) -> dict[str, Flag]:
    """{name: flag} of a settings class: its own flags first, then those of its bases."""
    hints, found = get_type_hints(settings), {}
    for declaring in settings.__mro__:
        group = (declaring.__doc__ or "").partition("\n")[0].partition(". ")[0].rstrip(".")
        for name in inspect.get_annotations(declaring):
            one = settings.__dataclass_fields__[name]
            if "help" in one.metadata and name not in found:
                found[name] = Flag(name, _plain_type(hints[name]), one.default, group=group, **one.metadata)
            elif "declare" in one.metadata:
                for option, (kind, declared) in one.metadata["declare"]().items():
                    extra: dict[str, Any] = {"group": group, "owner": name, **declared.metadata}
                    found[option] = Flag(option, kind, declared.default, **extra)
    return found


def _plain_type(hint: Any) -> type:
    """`int` for `int | None`, and so on."""
    if get_origin(hint) in (Union, types.UnionType):
        return next(part for part in get_args(hint) if part is not type(None))
    return hint


# ---- run ----


class Main(Protocol):
    """The `main` of a script, which returns the exit code."""

    def __call__(self, argv: list[str] | None = None) -> int: ...


def command(script: str, settings: type[T], body: Callable[[T, Errors], int | None], description: str) -> Main:
    """The `main` of a script.

    `body` gets the settings and the errors found so far. It adds its own, and calls `errors.raise_if_any()` before it
    writes anything. `description` is printed by --help.
    """

    def main(argv: list[str] | None = None) -> int:
        """Run the script and return its exit code."""

        def parse_and_run() -> int | None:
            errors = Errors()
            try:
                return body(parse(settings, argv, script, description, errors), errors)
            except ValueError as error:
                raise SettingsError(as_flags(str(error), flags_of(settings))) from error

        return run_script(parse_and_run, script)

    return main


def as_flags(text: str, known: Collection[str]) -> str:
    """Name flags instead of the fields that begin the lines of an error: `--total-batch-size: got …`."""
    # The code below the scripts names its own arguments, for users of the Python API.
    lines = text.splitlines()
    for i, line in enumerate(lines):
        name, colon, rest = line.partition(": ")
        if colon and name in known:
            lines[i] = f"{flag_name(name)}: {rest}"
    return "\n".join(lines)


def run_script(function: Callable[[], object], script: str) -> int:
    """Call `function` and return an exit code.

    A `ValueError` (a mistake of the user) is printed to stderr and returns 2. An `OSError` (a missing file, no network,
    a full disk) returns 1. Ctrl-C returns 130, SIGTERM 143 and SIGHUP 129. If the reader of a pipe has left, as in
    `| head`, it is 141 without a line. Any other exception is a bug and keeps its traceback.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the caller closed it
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
        elif mode == "w" and hasattr(getattr(sys, name), "reconfigure"):
            getattr(sys, name).reconfigure(errors="replace")  # not every locale can encode σ
    try:
        with terminated_by_signal():
            result = function()
            sys.stdout.flush()
    except (ValueError, OSError) as error:
        if isinstance(error, BrokenPipeError) and _reader_left():
            return READER_LEFT
        for line in str(error).splitlines() or [type(error).__name__]:
            say(as_started(f"{script}: {line}{_path_hint(error)}"))
        return 2 if isinstance(error, ValueError) or error.errno == errno.ENAMETOOLONG else 1
    except (KeyboardInterrupt, Terminated) as stopped:
        with suppress(OSError):  # the terminal is gone after SIGHUP
            print(file=sys.stderr)
            say(f"{script}: ended by {getattr(stopped, 'name', 'SIGINT')}")
        return getattr(stopped, "code", 130)
    finally:
        _drop_unwritten()
    return result if isinstance(result, int) else 0


def _drop_unwritten() -> None:
    """Drop what stdout holds and cannot write. Otherwise Python tries it again at its end and exits with code 120."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _reader_left() -> bool:
    """True if stdout is a pipe from which nobody reads."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # errors are reported in any case
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _path_hint(error: Exception) -> str:
    """Advice on the path of an error, for example to a user without a home folder; else empty."""
    if not isinstance(error, OSError) or not isinstance(error.filename, str):
        return ""
    if error.errno == errno.EEXIST and not os.path.exists(error.filename):  # from mkdir
        return f"; it is a link to {os.readlink(error.filename)}, which does not exist: make that, or delete the link"
    if os.environ.get("NANOGKA_BASE_DIR"):
        return ""
    outputs, path = base_dir(), Path(error.filename)
    concerned = outputs in (path, *path.parents) or path in outputs.parents
    refused = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
    return "; set NANOGKA_BASE_DIR to a folder that you can write" if concerned and refused else ""


def print_json(document: object, always: bool) -> None:
    """Print results as one line of JSON if `always`, or if stdout is a file or pipe. On a terminal it hides a table."""
    if always or not sys.stdout.isatty():
        print(json.dumps(document))


# ---- parse ----


def parse(settings: type[T], argv: list[str] | None, script: str, description: str, errors: Errors) -> T:
    """The settings of a command line and of its `--config` file.

    A bad value is recorded in `errors` and left at its default, so that the script can check the other settings too.
    """
    known = flags_of(settings)
    words = list(sys.argv[1:] if argv is None else argv)
    words, wrong, notices = nanochat.translate(words, known, {one.short for one in known.values() if one.short})
    errors.lines += wrong
    for notice in (*notices, *nanochat.ignored_variables()):
        say(f"{script}: {notice}")
    parsed, unknown = _parser(known, script, description).parse_known_args(words)
    given = {name: (flag_name(name), text) for name, text in vars(parsed).items() if text is not None}
    for name in [name for name, (_, text) in given.items() if nanochat.is_off(name, text)]:
        label, _ = given.pop(name)
        if (off := nanochat.OFF_HERE[name]) is not None:
            given[name] = label, off
    names = [word.partition("=")[0] for word in unknown if word.startswith("-")]
    for name in names:
        errors.lines.append(f"{name}: unknown flag{_suggestion(name, map(flag_name, known))}")
    for word in () if names else unknown:
        errors.lines.append(f"{word}: a word without a flag; each flag has one value")

    _, file = given.pop(CONFIG, (None, None))
    foreign = []
    for name, text in (errors.capture(lambda: read_settings(file)) or {} if file is not None else {}).items():
        off = text in ("null", "false", "off")
        if name in known and not (text == "null" and known[name].default is None):
            given.setdefault(name, (f"{file}: {name}", text))
        elif name not in known and not off:  # a run of an earlier version may have settings that are gone
            foreign.append(name)
    if len(foreign) > MOST_FOREIGN:  # the file is of another script
        others = f"{', '.join(foreign[:MOST_FOREIGN])} and {len(foreign) - MOST_FOREIGN} more"
        errors.lines.append(f"{file}: {script} has no flags {others}; expected settings of {script}")
    else:
        errors.lines += (f"{file}: {name}: {script} has no such flag{_suggestion(name, known)}" for name in foreign)

    values: dict[str, Any] = {}
    for name, (label, text) in given.items():
        one = known[name]
        value = errors.capture(lambda: one.convert(text, label))  # noqa: B023 (called at once)
        if value is not None:
            (values.setdefault(one.owner, {}) if one.owner else values)[name] = value
    hint = "a name; in nanochat `dummy` means no tracker, which is the default here"
    errors.require(values.get("run") != "dummy", "--run", "dummy", hint)
    return settings(**values)


def _suggestion(name: str, known: Any) -> str:
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def read_settings(file: str) -> dict[str, str]:
    """{name: value as written} of a YAML file, or of its section `settings`, which a run's config.yaml has."""
    try:
        # The base loader keeps every value as text: `on` is not true, and 1e-3 is read as on a command line.
        content = read_yaml(expand_path(file), yaml.BaseLoader) or {}
    except (OSError, ValueError) as error:
        raise ValueError(f"--config: {error}") from error
    if isinstance(content, dict) and isinstance(content.get("settings"), dict):
        content = content["settings"]
    if not isinstance(content, dict) or not all(isinstance(part, str) for item in content.items() for part in item):
        raise ValueError(f"--config: {file} cannot be used, expected YAML with a line `name: value` for each flag")
    return {name.removeprefix("--").replace("-", "_"): value for name, value in content.items()}


def _parser(known: Mapping[str, Flag], script: str, description: str) -> argparse.ArgumentParser:
    module, *words = (script if "." in script else f"scripts.{script}").split()
    parser = argparse.ArgumentParser(
        prog=" ".join([sys.argv[0] if sys.argv[0].startswith("nanogka ") else f"python -m {module}", *words]),
        usage="%(prog)s [flags]",  # argparse's list of dozens of flags would hide the description
        description=as_started(description),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    groups: dict[str, Any] = {}
    for one in known.values():
        group = groups.get(one.group) or groups.setdefault(one.group, parser.add_argument_group(one.group))
        names = [flag_name(one.name), *([f"-{one.short}"] if one.short else [])]
        text = one.help.replace("%", "%%")
        if one.default not in (None, "") and "default" not in text:
            text += f" (default: {('on' if one.default else 'off') if one.kind is bool else one.default})"
        if one.affects == "losses" and one.through is None:
            text += " [fixed once a run has started]"
        if one.kind is bool:
            group.add_argument(*names, action=argparse.BooleanOptionalAction, default=None, help=text)
            continue
        choices = one.limits["choices"]
        metavar = "{" + ",".join(choices) + "}" if choices else one.kind.__name__.upper()
        group.add_argument(*names, dest=one.name, metavar=metavar, help=text)
        if one.positional:
            word = {"nargs": "?", "default": argparse.SUPPRESS, "metavar": one.name.upper()}
            group.add_argument(one.name, **word, help=f"same as {names[0]}")
    parser.add_argument(f"--{CONFIG}", metavar="FILE", help="YAML file of flags by name, such as a run's config.yaml")
    return parser
