"""The session: commands change what they say, replies are known as far as they came."""

import pytest
from generate_models import byte_tokenizer, small_model

from nanogka.generate import Engine, SamplingSettings
from nanogka.generate.session import SETTINGS, Session, SessionEnd


@pytest.fixture
def session():
    return Session(Engine(small_model(), byte_tokenizer()), SamplingSettings(temperature=1.0), max_tokens=8)


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
    assert session.command(line) == f"{field.replace('_', '-')} = {'off' if value is None else value}"
    assert getattr(session.settings, field) == value


def test_a_command_without_a_value_shows_it(session):
    assert session.command("/max-tokens") == "max-tokens = 8"
    assert session.command("/max-tokens off") == "max-tokens = off"
    assert session.max_tokens is None


@pytest.mark.parametrize(
    "line, message",
    [
        ("/temperature -1", "/temperature: got -1.0, takes a number from 0"),
        ("/temperature hot", "/temperature: got 'hot', takes a number"),
        ("/top-k 1.5", "/top-k: got '1.5', takes an integer, or off"),
        ("/max-tokens -2", "/max-tokens: got -2, takes"),
        ("/sing", "/sing: no such command"),
    ],
)
def test_a_bad_command_names_what_it_takes_and_changes_nothing(session, line, message):
    before = session.settings
    with pytest.raises(ValueError) as error:
        session.command(line)
    assert str(error.value).startswith(message)
    assert (session.settings, session.max_tokens) == (before, 8)


def test_help_lists_every_command(session):
    text = session.command("/help")
    assert all(f"/{name}" in text for name in ("help", "reset", "quit", *SETTINGS))


@pytest.mark.parametrize("line", ["/quit", "/exit"])
def test_quit_ends(session, line):
    with pytest.raises(SessionEnd):
        session.command(line)


def test_replies_go_through_the_seeds_and_reset_goes_back(session):
    first, second = ("".join(session.reply("Hi")) for _ in range(2))
    assert first != second
    session.command("/reset")
    assert "".join(session.reply("Hi")) == first
    session.command("/seed 1")
    assert "".join(session.reply("Hi")) == second


def test_a_reply_is_known_as_far_as_it_came(session):
    text = next(session.reply("Hi"))
    assert session.last.text == text
    assert session.last.finish is None
    assert list(session.reply("Hi"))
    assert session.last.tokens == 8
    assert session.last.finish == "length"
    assert session.last.tokens_per_second > 0
    with pytest.raises(ValueError, match="takes at most 31"):
        list(session.reply("x" * 50))
    assert session.last is None
