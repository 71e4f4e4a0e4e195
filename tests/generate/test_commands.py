"""Slash commands change what they say, and say what they take."""

import pytest
from generate_models import byte_tokenizer, talking_model

from nanogka.generate import Engine, SamplingSettings
from nanogka.generate.commands import COMMANDS, SETTINGS, SessionEnd, run_command
from nanogka.generate.session import Session

ENGINE = Engine(talking_model(range(97, 123)), byte_tokenizer())


@pytest.fixture
def session():
    return Session(ENGINE, SamplingSettings(temperature=1.0), max_tokens=8, chat=True)


@pytest.fixture
def base():
    return Session(ENGINE, SamplingSettings(temperature=1.0), max_tokens=8)


def say(session, *prompts):
    return ["".join(session.reply(prompt)) for prompt in prompts]


@pytest.mark.parametrize(
    "line, field, value",
    [
        ("/temperature 0.5", "temperature", 0.5),
        ("/top-k 40", "top_k", 40),
        ("/top_k off", "top_k", None),
        ("/TOP-P  .9", "top_p", 0.9),
        ("/min-p 0.1", "min_p", 0.1),
        ("/repetition-penalty 1.2", "repetition_penalty", 1.2),
        ("/seed 9", "seed", 9),
    ],
)
def test_a_command_sets_its_setting(session, line, field, value):
    assert run_command(session, line) == f"{field.replace('_', '-')} = {'off' if value is None else value}"
    assert getattr(session.settings, field) == value


def test_a_command_without_a_value_shows_it(session):
    assert run_command(session, "/max-tokens") == "max-tokens = 8"
    assert run_command(session, "/max-tokens off") == "max-tokens = off"
    assert session.max_tokens is None


@pytest.mark.parametrize(
    "line, message",
    [
        ("/temperature -1", "/temperature: got -1.0, takes a number from 0"),
        ("/temperature hot", "/temperature: got 'hot', takes a number"),
        ("/top-k 1.5", "/top-k: got '1.5', takes an integer, or off"),
        ("/max-tokens -2", "/max-tokens: got -2, takes"),
        ("/sing", "/sing: no such command"),
        ("/undo 3", "/undo: got '3', takes nothing behind it"),
        ("/undo", "/undo: there is nothing to take back"),
        ("/retry", "/retry: there is no reply yet"),
        ("/save", "/save: takes the name of a file"),
        ("/save a.json", "/save: there is nothing to save"),
        ("/load nowhere.json", "/load: cannot read nowhere.json: No such file"),
        ("/system \ud800", "/system: content of system: text: got a lone surrogate"),
    ],
)
def test_a_bad_command_names_what_it_takes_and_changes_nothing(session, line, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = session.settings
    with pytest.raises(ValueError) as error:
        run_command(session, line)
    assert str(error.value).startswith(message)
    assert (session.settings, session.max_tokens, session.dialogue.system) == (before, 8, None)
    assert not list(tmp_path.iterdir())


def test_help_lists_every_command_that_the_model_has(session, base):
    everything = {*COMMANDS, *SETTINGS}
    chat, continuing = run_command(session, "/help"), run_command(base, "/")
    assert all(f"  /{name}" in chat for name in everything)
    for_chat = {name for name, command in COMMANDS.items() if command.chat}
    assert {name for name in everything if f"  /{name}" in continuing} == everything - for_chat
    assert "it replies" in chat
    assert "it continues" in continuing


@pytest.mark.parametrize("line", ["/undo", "/history", "/system Be kind.", "/load a.json"])
def test_a_base_model_says_that_it_has_no_history(base, line):
    with pytest.raises(ValueError, match="a base model keeps no history"):
        run_command(base, line)
    assert "a base model keeps no history" in run_command(base, "/reset")


@pytest.mark.parametrize("line", ["/quit", "/exit"])
def test_quit_ends(session, line):
    with pytest.raises(SessionEnd):
        run_command(session, line)


def test_seed_and_reset_begin_again(session):
    first, second = say(session, "Hi")[0], say(session, "Hi")[0]
    assert run_command(session, "/reset") == "back to seed 0; the conversation is forgotten"
    assert not session.exchanges
    assert say(session, "Hi") == [first]
    run_command(session, "/reset")
    run_command(session, "/seed 1")
    assert say(session, "Hi") == [second]  # this model never looks back, so the seed alone decides
    assert session.replies == 1


def test_system_is_set_shown_and_taken_away(session):
    assert run_command(session, "/system") == "there is no system prompt"
    assert run_command(session, "/system Be kind.\nAnd brief.") == "system prompt: Be kind.\nAnd brief."
    assert session.dialogue.system == "Be kind.\nAnd brief."
    assert run_command(session, "/system off") == "there is no system prompt"


def test_history_shows_what_was_said_and_what_is_out_of_sight(session):
    assert run_command(session, "/history") == "nothing was said yet"
    run_command(session, "/system Be kind.")
    replies = say(session, "Hi\nthere", "x" * 220)
    assert run_command(session, "/history").splitlines() == [
        "system  Be kind.",
        "     1  > Hi there  (out of the model's sight)",
        f"        {replies[0]}",
        f"     2  > {'x' * 99}…",
        f"        {replies[1]}",
    ]


def test_undo_and_retry_act_on_the_last_exchange(session):
    replies = say(session, "Hi", "Ho")
    assert run_command(session, "/undo") == "taken back: Ho (1 exchange left)"
    again = "".join(run_command(session, "/retry"))
    assert again not in replies
    assert [(e.prompt, e.text) for e in session.exchanges] == [("Hi", again)]


def test_save_and_load_take_a_name_with_blanks_and_a_number(session, tmp_path):
    say(session, "Hi")
    path = tmp_path / "my talk 2"
    assert run_command(session, f"/save {path}") == f"saved 1 exchange to {path}"
    say(session, "Ho")
    assert "loaded 1 exchange from" in run_command(session, f"/load {path}")
    assert [e.prompt for e in session.exchanges] == ["Hi"]
    lines = tmp_path / "many.jsonl"
    lines.write_text((tmp_path / "my talk 2").read_text().replace("\n", "") * 1 + "\n" + '[{"role": "x"}]\n')
    assert "loaded 1 exchange" in run_command(session, f"/load {lines} 1")
    with pytest.raises(ValueError, match=r"/load: .*many.jsonl, line 2: message 1: got"):
        run_command(session, f"/load {lines} 2")
    with pytest.raises(ValueError, match="has 2 conversations, takes the number of one as well"):
        run_command(session, f"/load {lines}")
    assert [e.prompt for e in session.exchanges] == ["Hi"]
