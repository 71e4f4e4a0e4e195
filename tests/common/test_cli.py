"""Command lines from a dataclass, every bad flag at once, and the exit codes."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from nanogka.common.cli import command, flag, parse, run_script
from nanogka.common.errors import Errors, SettingsError
from nanogka.runs import write_config
from nanogka.train.settings import ModelSettings

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Settings:
    depth: int = flag(4, "number of layers", short="d")
    rate: float | None = flag(None, "share, 100 % at most")
    mode: str = flag("auto", "which", ("auto", "on"))
    fresh: bool = flag(False, "start over")
    hidden: int = 7


def parsed(*words):
    errors = Errors()
    return parse(Settings, list(words), "tool", "A tool.", errors), errors.lines


def test_flags_set_their_fields():
    assert parsed() == (Settings(), [])
    settings, _ = parsed("-d", "1_000", "--rate", "0.5", "--mode", "on", "--fresh")
    assert settings == Settings(1000, 0.5, "on", True)
    assert parsed("--depth", "2e3")[0].depth == 2000


@pytest.mark.parametrize("text", ["2.5", "1e999", "inf", "9" * 23, "1e300", "²", "1e19", "", "0x10"])
def test_what_is_no_integer_is_refused(text):
    settings, lines = parsed("--depth", text)
    assert settings == Settings()
    assert lines == [f"--depth: got {text!r}, expected an integer of at most 1e+18"]


@pytest.mark.parametrize("text", ["nan", "inf", "1e999", "fast"])
def test_what_is_no_finite_number_is_refused(text):
    assert parsed("--rate", text)[1] == [f"--rate: got {text!r}, expected a finite number"]


@dataclass(frozen=True)
class Bounded:
    grid: str = flag("", "a file", positional=True)
    layers: int = flag(4, "layers", ge=1, le=9)
    rate: float = flag(1.0, "rate", gt=0)
    most: int | None = flag(None, "at most", ge=0)


def test_bounds_are_checked_after_parsing_all_at_once(capsys):
    bad = ["--layers", "10", "--rate", "0", "--most", "-1"]
    assert command("tool", Bounded, lambda settings, errors: errors.raise_if_any(), "A tool.")(bad) == 2
    assert capsys.readouterr().err == (
        "tool: --layers: got '10', expected an integer from 1 to 9\n"
        "tool: --rate: got '0', expected a number above 0\n"
        "tool: --most: got '-1', expected an integer of at least 0\n"
    )


def test_a_positional_flag_may_come_without_its_name():
    for words in (["a.yaml"], ["--grid", "a.yaml"], ["--layers", "9", "a.yaml"]):
        errors = Errors()
        assert parse(Bounded, words, "tool", "A tool.", errors).grid == "a.yaml"
    assert parse(Bounded, [], "tool", "A tool.", errors).grid == ""


def test_every_bad_flag_is_reported_at_once_with_what_the_body_finds(capsys):
    def body(settings, errors):
        errors.require(settings.depth > 9, "--depth", settings.depth, "more than 9")
        errors.raise_if_any()

    assert command("tool", Settings, body, "A tool.")(["--rate", "fast", "--mode", "off"]) == 2
    assert capsys.readouterr().err == (
        "tool: --rate: got 'fast', expected a finite number\n"
        "tool: --mode: got 'off', expected auto, on\n"
        "tool: --depth: got 4, expected more than 9\n"
    )


def test_help_names_every_flag_and_default(capsys):
    with pytest.raises(SystemExit):
        parsed("--help")
    text = capsys.readouterr().out
    assert all(part in text for part in ("--depth", "-d", "(default: 4)", "100 % at most", "--no-fresh", "{auto,on}"))
    assert "--hidden" not in text
    assert "A tool." in text


def test_a_file_gives_flags_by_name_and_the_command_line_wins(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text("depth: 1e3\nmode: on\nfresh: true\nrate: null\n")
    assert parsed("--config", str(file)) == (Settings(1000, None, "on", True), [])
    assert parsed("--config", str(file), "-d", "5", "--no-fresh")[0] == Settings(5, None, "on", False)
    # a run's own configuration, with other sections beside
    write_config(tmp_path, {"model": {"n_embd": 8}, "settings": {"depth": 6, "rate": 1e-05, "fresh": False}})
    assert parsed("--config", str(tmp_path / "config.yaml")) == (Settings(6, 1e-05), [])


@pytest.mark.parametrize(
    "text, line",
    [
        ("dept: 3", "{}: dept: got '3', expected settings of tool only: no such flag"),
        ("hidden: 3", "{}: hidden: got '3', expected settings of tool only: no such flag"),
        ("depth: two", "{}: depth: got 'two', expected an integer of at most 1e+18"),
        ("depth: null", "{}: depth: got 'null', expected an integer of at most 1e+18"),
        ("fresh: 7", "{}: fresh: got '7', expected true or false"),
        ("mode: off", "{}: mode: got 'off', expected auto, on"),
        ("- depth", "--config: {} cannot be used, expected YAML with a line `name: value` for each flag"),
        ("depth: [3]", "--config: {} cannot be used, expected YAML with a line `name: value` for each flag"),
        ("a: {", "--config: {}: cannot be read as YAML"),
        (None, "--config: [Errno 2] No such file or directory: '{}'"),
    ],
)
def test_what_is_wrong_with_a_file_is_named_with_it(text, line, tmp_path):
    file = tmp_path / "my.yaml"
    if text is not None:
        file.write_text(text)
    settings, lines = parsed("--config", str(file))
    assert settings == Settings()
    assert [found[: len(line.format(file))] for found in lines] == [line.format(file)]


def test_nanochats_names_are_taken():
    settings = parse(ModelSettings, ["--max-seq-len", "64"], "tool", "A tool.", Errors())
    assert settings.sequence_len == 64


def fail(error):
    raise error


@pytest.mark.parametrize(
    "error,code,text",
    [
        (SettingsError("--a: got 1\n--b: got 2"), 2, "tool: --a: got 1\ntool: --b: got 2\n"),
        (OSError("no space left"), 1, "tool: no space left\n"),
        (ValueError("\x1b]0;title\x07" + "x" * 5000), 2, "tool: ␛]0;title␇" + "x" * 1983 + "…\n"),
        (OSError(36, "too long", "x" * 9), 2, "tool: [Errno 36] too long: 'xxxxxxxxx'\n"),
        (KeyboardInterrupt(), 130, "\ntool: ended by SIGINT\n"),
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


def test_a_locale_without_utf8_prints_question_marks():
    code = "from nanogka.common.cli import run_script; run_script(lambda: print('bandwidth \\u03c3'), 'tool')"
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert subprocess.check_output([sys.executable, "-c", code], env=environment, cwd=ROOT) == b"bandwidth ?\n"


def test_closed_streams_are_no_error():
    code = "import sys; from nanogka.common.cli import run_script"
    code += "; sys.exit(run_script(lambda: int(sys.stdin.read() or 'none'), 'tool'))"
    words = ["bash", "-c", f'exec "{sys.executable}" -c "{code}" <&- >&- 2>&-']
    assert subprocess.run(words, cwd=ROOT).returncode == 2


FAST = "base_eval chat_cli chat_eval export fetch make_shards report serve study tok_eval tok_train".split()
FAST += ["vision_compare", "vision_eval", "visualize"]


def test_help_does_not_wait_for_torch():
    code = """
import contextlib, importlib, sys
for name in sys.argv[1:]:
    with contextlib.suppress(SystemExit):
        importlib.import_module(f"scripts.{name}").main(["--help"])
    assert "torch" not in sys.modules, name
"""
    subprocess.run(
        [sys.executable, "-c", code, *FAST],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
    )
