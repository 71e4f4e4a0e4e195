"""Slash commands change what they name, and bad ones say what they take."""

import pytest
from generate_models import chat_session, say

from nanogka.generate.commands import COMMANDS, SETTINGS, run_command


@pytest.fixture
def session():
    return chat_session()


@pytest.mark.parametrize(
    "line, field, value",
    [("/temperature 0.5", "temperature", 0.5), ("/top_k off", "top_k", None), ("/TOP-P  .9", "top_p", 0.9)],
)
def test_a_command_sets_its_setting_and_without_a_value_shows_it(session, line, field, value):
    shown = f"{field.replace('_', '-')} = {'off' if value is None else value}"
    assert run_command(session, line) == run_command(session, line.split()[0]) == shown
    assert getattr(session.settings, field) == value


@pytest.mark.parametrize(
    "line, message",
    [
        ("/temperature -1", "/temperature: got '-1', takes a number from 0 to 100"),
        ("/top-k 1.5", "/top-k: got '1.5', takes an integer of at least 0, or off"),
        ("/sing", "/sing: no such command"),
        ("/undo 3", "/undo: got '3', takes no argument"),
        ("/undo", "/undo: there is nothing to take back"),
        ("/retry", "/retry: there is no reply yet"),
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
    assert (session.settings, session.max_tokens, session.system) == (before, 8, None)
    assert not list(tmp_path.iterdir())


def test_help_lists_every_command_that_the_model_has(session):
    base, everything = chat_session(chat=False), {*COMMANDS, *SETTINGS}
    chat, continuing = run_command(session, "/help"), run_command(base, "/")
    assert all(f"  /{name}" in chat for name in everything)
    for_chat = {name for name, command in COMMANDS.items() if command.chat}
    assert {name for name in everything if f"  /{name}" in continuing} == everything - for_chat
    for line in ("/undo", "/system Be kind."):
        with pytest.raises(ValueError, match="a base model keeps no history"):
            run_command(base, line)


def test_seed_and_reset_begin_again(session):
    first, second = say(session, "Hi", "Hi")
    assert run_command(session, "/reset") == "back to seed 0; the conversation is forgotten"
    assert not session.exchanges
    assert say(session, "Hi") == [first]
    run_command(session, "/seed 1")
    assert say(session, "Hi") == [second]  # this model never looks back, so the seed alone decides


def test_history_shows_the_system_prompt_the_exchanges_and_which_of_them_are_no_longer_in_the_context(session):
    assert run_command(session, "/history") == "no exchanges yet"
    assert run_command(session, "/system Be kind.") == "system prompt: Be kind."
    replies = say(session, "Hi\nthere", "x" * 220)
    assert run_command(session, "/history").splitlines() == [
        "system  Be kind.",
        "     1  > Hi there  (no longer in the context)",
        f"        {replies[0]}",
        f"     2  > {'x' * 99}…",
        f"        {replies[1]}",
    ]
    assert run_command(session, "/system off") == "there is no system prompt"


def test_undo_retry_save_and_load_act_on_the_conversation(session, tmp_path):
    replies, path = say(session, "Hi", "Ho"), tmp_path / "my talk 2"
    assert run_command(session, "/undo") == "taken back: Ho (1 exchange left)"
    assert "".join(run_command(session, "/retry")) not in replies
    assert run_command(session, f"/save {path}") == f"saved 1 exchange to {path}"
    session.reset()
    assert "loaded 1 exchange from" in run_command(session, f"/load {path}")
    assert session.exchanges[0].prompt == "Hi"
