"""Bad arguments, collected so that a user corrects them all in one go."""

from collections.abc import Callable, Mapping
from typing import TypeVar

T = TypeVar("T")


class SettingsError(ValueError):
    """One or more settings are wrong; the text has one line per setting."""


class Errors:
    """Settings found wrong so far."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def require(self, ok: bool, setting: str, got: object, expected: str) -> bool:
        """Record a problem unless `ok`; returns `ok`, so that dependent checks can be skipped."""
        if not ok:
            self.lines.append(f"{setting}: got {got!r}, expected {expected}")
        return ok

    def extend(self, error: ValueError) -> None:
        """Record the lines of an error that a lower floor raised."""
        self.lines.extend(str(error).splitlines())

    def capture(self, function: Callable[[], T], renamed: Mapping[str, str] | None = None) -> T | None:
        """The result of `function`, or None with its error recorded, in which flags are called as `renamed` says."""
        try:
            return function()
        except ValueError as error:
            text = str(error)
            for name, other in (renamed or {}).items():
                text = text.replace(f"{name}:", f"{other}:")
            self.extend(ValueError(text))
            return None

    def raise_if_any(self) -> None:
        """Raise `SettingsError` with every recorded problem; nothing if there is none."""
        if self.lines:
            raise SettingsError("\n".join(self.lines))


def in_one_line(error: Exception) -> str:
    """Type and text of an error, shortened: for a log, where a compiler's would fill pages."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
