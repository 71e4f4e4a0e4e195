"""Collect all bad settings, so that a user can correct them at once."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from nanogka.common.formatting import shorten

T = TypeVar("T")

MOST_SHOWN = 500  # characters of a wrong value that an error repeats


class SettingsError(ValueError):
    """One or more settings are wrong. The text has one line per setting."""


class Errors:
    """The wrong settings found so far, one line each."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def require(self, ok: bool, setting: str, got: object, expected: str) -> bool:
        """Record an error unless `ok`. Returns `ok`, so that dependent checks can be skipped."""
        if not ok:
            self.lines.append(f"{setting}: got {shorten(repr(got), MOST_SHOWN)}, expected {expected}")
        return ok

    def extend(self, error: ValueError) -> None:
        """Record the lines of an error that was raised."""
        self.lines.extend(str(error).splitlines())

    def capture(self, function: Callable[[], T]) -> T | Any:
        """The result of `function`, or None if it raises ValueError, whose lines are recorded."""
        # Not `T | None`: where it is None, `raise_if_any` raises before the result is used.
        try:
            return function()
        except ValueError as error:
            self.extend(error)
            return None

    def raise_if_any(self) -> None:
        """Raise `SettingsError` with all recorded lines, if there are any."""
        if self.lines:
            raise SettingsError("\n".join(self.lines))


def differences(now: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """{name: (value now, value before)} of what has changed; a value that was not there is None."""
    return {name: (value, before.get(name)) for name, value in now.items() if value != before.get(name)}


def in_one_line(error: Exception) -> str:
    """Type and text of an error in one line of at most 300 characters. Those of compilers fill pages."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
