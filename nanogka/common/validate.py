"""Check a value of a setting: its type, its bounds, or its choices. pydantic does the checking."""

from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from nanogka.common.errors import MOST_SHOWN, SettingsError
from nanogka.common.formatting import shorten

if TYPE_CHECKING:
    import pydantic

MAX_INTEGER = 10**18  # a larger one is a typo, and arithmetic with it hangs or overflows


def convert(
    label: str,
    value: object,
    kind: type,
    choices: tuple[str, ...] | None = None,
    ge: float | None = None,
    le: float | None = None,
    gt: float | None = None,
    strict: bool = False,
) -> Any:
    """`value` as a `kind` within limits: int, a finite float, bool or str. With `strict`, texts are not converted.

    Raises SettingsError of the form "LABEL: got VALUE, expected …".
    """
    import pydantic  # here, so that `import nanogka.model` does not load it

    try:
        return _adapter(kind, choices, ge, le, gt).validate_python(value, strict=strict)
    except pydantic.ValidationError as error:
        text = error.errors()[0]["msg"].removeprefix("Input should be ")
        text = text.partition(", unable to")[0].partition(", got a")[0].replace("a valid int", "an int")
        text = f"a number {text}" if text.startswith(("greater", "less")) else text
        raise SettingsError(f"{label}: got {shorten(repr(value), MOST_SHOWN)}, expected {text}") from None


@cache
def _adapter(kind: type, choices: tuple[str, ...] | None, *bounds: float | None) -> "pydantic.TypeAdapter":
    import pydantic

    ge, le, gt = bounds
    if choices:
        # pyrefly: ignore[not-a-type]  # pydantic reads the choices from the object, which is made at run time
        return pydantic.TypeAdapter(Literal[choices])
    if kind is int:
        limited = pydantic.Field(ge=-MAX_INTEGER if ge is None else ge, le=MAX_INTEGER if le is None else le, gt=gt)
        return pydantic.TypeAdapter(Annotated[int, limited, pydantic.BeforeValidator(_scientific)])
    if kind is float:
        return pydantic.TypeAdapter(Annotated[float, pydantic.Field(ge=ge, le=le, gt=gt, allow_inf_nan=False)])
    return pydantic.TypeAdapter(kind)


def _scientific(value: object) -> object:
    """1000 for "1e3", which pydantic does not accept as an integer."""
    with suppress(ValueError):
        if isinstance(value, str) and "e" in value.lower() and float(value).is_integer():
            return int(float(value))
    return value
