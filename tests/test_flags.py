"""Flags from a dataclass, and the shared handling of bad ones."""

import argparse
from dataclasses import dataclass

import pytest

from nanogka.flags import add_flags, flag, from_flags
from nanogka.problems import Problems, SettingsError, run_script


@dataclass(frozen=True)
class Settings:
    depth: int = flag(4, "number of layers")
    rate: float | None = flag(None, "share, 100 % at most")
    mode: str = flag("auto", "which", ("auto", "on"))
    fresh: bool = flag(False, "start over")
    hidden: int = 7


def parse(*words):
    parser = argparse.ArgumentParser()
    add_flags(parser, Settings)
    problems = Problems()
    return from_flags(Settings, parser.parse_args(words), problems), problems.lines


def test_flags_set_their_fields():
    assert parse() == (Settings(), [])
    settings, _ = parse("--depth", "1_000", "--rate", "0.5", "--mode", "on", "--fresh")
    assert settings == Settings(1000, 0.5, "on", True)
    assert parse("--depth", "2e3")[0].depth == 2000


def test_every_bad_flag_is_recorded_and_left_at_its_default():
    settings, lines = parse("--depth", "2.5", "--rate", "fast", "--mode", "off")
    assert settings == Settings()
    assert lines == [
        "--depth: got '2.5', takes an integer",
        "--rate: got 'fast', takes a number",
        "--mode: got 'off', takes auto, on",
    ]


def test_help_names_every_flag_and_default(capsys):
    parser = argparse.ArgumentParser()
    add_flags(parser, Settings)
    text = parser.format_help()
    assert all(part in text for part in ("--depth", "(default: 4)", "100 % at most", "--no-fresh", "{auto,on}"))
    assert "--hidden" not in text


def fail(error):
    raise error


@pytest.mark.parametrize(
    "error,code,text",
    [
        (SettingsError("--a: got 1\n--b: got 2"), 2, "tool: --a: got 1\ntool: --b: got 2\n"),
        (OSError("no space left"), 1, "tool: no space left\n"),
        (KeyboardInterrupt(), 130, "\ntool: interrupted\n"),
    ],
)
def test_what_a_user_got_wrong_ends_without_a_traceback(error, code, text, capsys):
    assert run_script(lambda: fail(error), "tool") == code
    assert capsys.readouterr().err == text


def test_our_own_errors_keep_their_traceback_and_codes_pass_through():
    with pytest.raises(KeyError):
        run_script(lambda: fail(KeyError("x")), "tool")
    assert run_script(lambda: 7, "tool") == 7
    assert run_script(lambda: None, "tool") == 0
