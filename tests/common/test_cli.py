"""Command lines from a dataclass: every bad flag at once, `--config`, and exit codes."""

import errno
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from nanogka.common import formatting
from nanogka.common.cli import command, flag, json_flag, parse, print_json, run_script
from nanogka.common.errors import Errors, SettingsError
from nanogka.common.formatting import as_started
from nanogka.runs import write_config
from nanogka.train.settings import TrainSettings

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Settings:
    depth: int = flag(4, "number of layers", short="d", ge=1, le=9000)
    rate: float | None = flag(None, "share, 100 % at most", gt=0)
    mode: str = flag("auto", "which", ("auto", "on"))
    fresh: bool = flag(False, "start over")
    grid: str = flag("", "a file", positional=True)
    steps: int = flag(0, "any number")
    json: bool = json_flag()
    hidden: int = 7


def parsed(*words, settings=Settings):
    errors = Errors()
    return parse(settings, list(words), "tool", "A tool.", errors), errors.lines


def named(lines):
    """The settings that messages are about."""
    return [line.split(": ")[0] for line in lines]


def test_flags_set_their_fields():
    assert parsed() == (Settings(), [])
    settings, _ = parsed("-d", "1_000", "--rate", "0.5", "--mode", "on", "--fresh")
    assert settings == Settings(1000, 0.5, "on", True)
    assert [parsed("--depth", text)[0].depth for text in ("2e3", "2.0", "1.5e3")] == [2000, 2, 1500]
    for words in (["a.yaml"], ["--grid", "a.yaml"], ["--depth", "9", "a.yaml"]):
        assert parsed(*words)[0].grid == "a.yaml"


@pytest.mark.parametrize(
    "name,text",
    [*[("--steps", text) for text in ("2.5", "9" * 23, "1e999", "", "nan")], ("--rate", "nan"), ("--rate", "0")],
)
def test_other_texts_than_finite_numbers_in_range_are_refused(name, text):
    settings, (line,) = parsed(name, text)
    assert settings == Settings()
    assert line.startswith(f"{name}: got {text!r}, expected ")


def test_all_errors_are_reported_at_once(capsys):
    def body(settings, errors):
        errors.require(settings.depth > 9, "--body", settings.depth, "more than 9")
        errors.raise_if_any()

    bad = "--depth 9001 --rate 0 --mode off --depht 3 --nonsense=4".split()
    assert command("tool", Settings, body, "A tool.")(bad) == 2
    lines = [line.removeprefix("tool: ") for line in capsys.readouterr().err.splitlines()]
    assert named(lines) == ["--depht", "--nonsense", "--depth", "--rate", "--mode", "--body"]
    assert lines[0].endswith("did you mean --depth?")
    assert "'auto' or 'on'" in lines[4]
    assert parsed("a.yaml", "b.yaml")[1][-1] == "b.yaml: a word without a flag; each flag has one value"


def test_help_names_every_flag_and_default(capsys):
    with pytest.raises(SystemExit):
        parsed("--help")
    text = capsys.readouterr().out
    assert all(part in text for part in ("--depth", "-d", "(default: 4)", "100 % at most", "--no-fresh", "{auto,on}"))
    assert "--hidden" not in text
    assert "A tool." in text


def test_a_file_gives_flags_by_name_and_the_command_line_overrides_it(tmp_path):
    file = tmp_path / "my.yaml"
    file.write_text("depth: 1e3\nmode: on\nfresh: true\nrate: null\n")
    assert parsed("--config", str(file)) == (Settings(1000, None, "on", True), [])
    assert parsed("--config", str(file), "-d", "5", "--no-fresh")[0] == Settings(5, None, "on", False)
    # a run's config.yaml, which has other sections
    write_config(tmp_path, {"model": {"n_embd": 8}, "settings": {"depth": 6, "rate": 1e-05, "fresh": False}})
    assert parsed("--config", str(tmp_path / "config.yaml")) == (Settings(6, 1e-05), [])


@pytest.mark.parametrize(
    "text, name",
    [
        ("dept: 3", "{}: dept"),
        ("depth: two", "{}: depth"),
        ("depth: null", "{}: depth"),
        ("mode: off", "{}: mode"),
        ("- depth", "--config: {}"),
        ("depth: [3]", "--config: {}"),
        (None, "--config: "),
    ],
)
def test_errors_in_a_file_name_it(text, name, tmp_path):
    file = tmp_path / "my.yaml"
    if text is not None:
        file.write_text(text)
    settings, (line,) = parsed("--config", str(file))
    assert settings == Settings()
    assert line.startswith(name.format(file))
    assert str(file) in line


def test_names_of_nanochat():
    settings, lines = parsed("--max-seq-len", "64", "--model-tag", "mine", settings=TrainSettings)
    assert (settings.sequence_len, settings.run, lines) == (64, "mine", [])
    assert named(parsed("--run", "dummy", settings=TrainSettings)[1]) == ["--run"]


def test_json_is_printed_on_demand_or_without_a_terminal(monkeypatch, capsys):
    def printed(*words):
        print_json({"a": 1}, parsed(*words)[0].json)
        return capsys.readouterr().out

    assert json.loads(printed()) == {"a": 1}
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert printed() == ""
    assert json.loads(printed("--json")) == {"a": 1}


def test_hints_have_the_form_that_the_installation_has(monkeypatch, tmp_path):
    text = "`python -m scripts.base_eval --run x`, `torchrun -m scripts.base_train` or `bash speedrun.sh`"
    assert as_started(text) == text
    monkeypatch.setattr(formatting, "BUNDLED", tmp_path)
    assert as_started(text) == "`nanogka eval --run x`, `torchrun -m nanogka train` or `nanogka speedrun`"


def fail(error):
    raise error


@pytest.mark.parametrize(
    "error,code,text",
    [
        (SettingsError("--a: got 1\n--b: got 2"), 2, "tool: --a: got 1\ntool: --b: got 2\n"),
        (OSError("no space left"), 1, "tool: no space left\n"),
        (ValueError("\x1b]0;title\x07" + "x" * 5000), 2, "tool: ␛]0;title␇" + "x" * 1983 + "…\n"),
        (KeyboardInterrupt(), 130, "\ntool: ended by SIGINT\n"),
    ],
)
def test_what_a_user_got_wrong_ends_without_a_traceback(error, code, text, capsys):
    assert run_script(lambda: fail(error), "tool") == code
    assert capsys.readouterr().err == text


@pytest.mark.parametrize(
    "path, named, hint", [("/home/x", "", True), ("/home/x/.cache/nanogka/runs/a", "", True), ("/data/a", "", False)]
    + [("/home/x", "/home/x/runs", False)]
)  # fmt: skip
def test_a_home_that_cannot_be_written_names_the_variable(path, named, hint, monkeypatch, capsys):
    monkeypatch.setenv("HOME", "/home/x")
    monkeypatch.setenv("NANOGKA_BASE_DIR", named)
    assert run_script(lambda: fail(PermissionError(errno.EACCES, "Permission denied", path)), "tool") == 1
    assert ("set NANOGKA_BASE_DIR to a folder that you can write\n" in capsys.readouterr().err) == hint


def test_a_link_that_leads_nowhere_is_named(tmp_path, capsys):
    link = tmp_path / "data"
    link.symlink_to(tmp_path / "disk")
    assert run_script(lambda: (link / "runs").mkdir(parents=True), "tool") == 1
    assert f"'{link}'; it is a link to {tmp_path / 'disk'}, which does not exist" in capsys.readouterr().err


def test_our_own_errors_keep_their_traceback_and_codes_pass_through():
    with pytest.raises(KeyError):
        run_script(lambda: fail(KeyError("x")), "tool")
    assert run_script(lambda: 7, "tool") == 7
    assert run_script(lambda: None, "tool") == 0


def test_a_locale_without_utf8_and_closed_streams_are_no_error():
    code = "from nanogka.common.cli import run_script; run_script(lambda: print('bandwidth \\u03c3'), 'tool')"
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert subprocess.check_output([sys.executable, "-c", code], env=environment, cwd=ROOT) == b"bandwidth ?\n"
    code = "import sys; from nanogka.common.cli import run_script"
    code += "; sys.exit(run_script(lambda: int(sys.stdin.read() or 'none'), 'tool'))"
    words = ["bash", "-c", f'exec "{sys.executable}" -c "{code}" <&- >&- 2>&-']
    assert subprocess.run(words, cwd=ROOT).returncode == 2


@pytest.mark.parametrize(
    "where, code, said",
    [("| true", 141, ""), (">/dev/full", 1, "tool: [Errno 28] No space left on device\n")],
)
@pytest.mark.parametrize("flush", [False, True])
def test_output_that_nobody_takes_ends_a_script_with_a_code_and_at_most_a_line(where, code, said, flush):
    program = "import sys; from nanogka.common.cli import run_script"
    program += f"; sys.exit(run_script(lambda: print(sys.stdin.read(), flush={flush}), 'tool'))"
    # The text arrives after the reader has left.
    words = f'(sleep 0.3; echo x) | "{sys.executable}" -c "{program}" {where}; exit ${{PIPESTATUS[1]}}'
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    result = subprocess.run(["bash", "-c", words], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (code, said)


FAST = "base_eval chat_cli chat_eval export fetch make_shards report serve study tok_eval tok_train".split()
FAST += ["visualize"]


def test_help_does_not_wait_for_torch():
    code = """
import contextlib, importlib, sys
for name in sys.argv[1:]:
    with contextlib.suppress(SystemExit):
        importlib.import_module(f"scripts.{name}").main(["--help"])
    assert "torch" not in sys.modules, name
"""
    subprocess.run([sys.executable, "-c", code, *FAST], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def test_a_file_of_another_script_is_one_line_and_a_few_strange_settings_are_named(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("".join(f"other_{i}: {i}\n" for i in range(40)))
    _, (line,) = parsed("--config", str(file))
    assert line == f"{file}: tool has no flags other_0, other_1, other_2 and 37 more; expected settings of tool"
    file.write_text("other_0: 1\ndept: 2\n")
    assert len(parsed("--config", str(file))[1]) == 2
