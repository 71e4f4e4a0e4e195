"""The session: a chat model sees the conversation, a base model its prompt alone; replies are kept as they come."""

import pytest
from generate_models import LETTERS, byte_tokenizer, chat_session, say, talking_model

from nanogka.data.conversation import ChatFormat, Conversation
from nanogka.generate.engine import Engine
from nanogka.generate.prompt import prompt_of
from nanogka.generate.session import Session
from nanogka.generate.settings import SessionSettings

TOKENIZER = byte_tokenizer()
SPECIAL = TOKENIZER.special_tokens
GREEDY = SessionSettings(temperature=0, max_tokens=8)


@pytest.fixture
def prompts(monkeypatch):
    """The ids of each prompt that an engine gets."""
    seen, original = [], Engine.stream

    def recording(self, prompts, *args, **kwargs):
        seen.extend(prompts)
        return original(self, prompts, *args, **kwargs)

    monkeypatch.setattr(Engine, "stream", recording)
    return seen


def by_hand(*turns, system=""):
    """The ids of user and assistant in turn, each a text or ids, up to where the next reply begins."""
    ids = [SPECIAL["<|bos|>"]]
    for i, text in enumerate(turns):
        role = ("user", "assistant")[i % 2]
        head = system + "\n\n" if system and i == 0 else ""
        words = (head + text).encode() if isinstance(text, str) else text
        ids += [SPECIAL[f"<|{role}_start|>"], *words, SPECIAL[f"<|{role}_end|>"]]
    return [*ids, SPECIAL["<|assistant_start|>"]]


def test_a_chat_model_gets_the_conversation(prompts):
    session = chat_session(system="Be kind.")
    first, second, _ = say(session, "Hi 中文", "And?", "So")
    assert prompts[0] == by_hand("Hi 中文", system="Be kind.")
    assert prompts[2] == by_hand("Hi 中文", first, "And?", second, "So", system="Be kind.")
    assert (session.last.tokens, session.last.finish_reason) == (8, "length")
    assert session.prefix.reused == len(prompts[1]) + 7  # only what is new is read


def test_a_base_model_gets_each_prompt_alone(prompts):
    base = chat_session(chat=False)
    say(base, "Hi", "Ho")
    assert prompts == [[SPECIAL["<|bos|>"], *b"Hi"], [SPECIAL["<|bos|>"], *b"Ho"]]


def test_replies_keep_the_ids_that_they_were_generated_as(prompts):
    tokenizer = byte_tokenizer([b"aa"])
    # Its only word is the byte a, which the tokenizer would write in pairs.
    session = Session(Engine(talking_model([97]), tokenizer), GREEDY, chat=True)
    assert say(session, "Hi", "Ho") == ["a" * 8] * 2
    assert prompts[1][len(prompts[0]) :][:8] == [97] * 8


@pytest.mark.parametrize("mark", ["<|assistant_end|>", "<|bos|>"])
def test_a_special_token_ends_a_reply_and_is_not_part_of_it(mark):
    session = chat_session([*LETTERS[:3], SPECIAL[mark]], max_tokens=100)
    said = [text for seed in range(8) for text in say(session, f"{seed}") if text]
    assert session.last.finish_reason == "stop"
    assert all(set(text) <= set("abc") for text in said)
    assert [e.reply.text for e in session.turns] == [bytes(e.ids).decode() for e in session.turns] == said


def test_an_abandoned_reply_is_kept_as_far_as_it_came_and_retry_replaces_it(prompts):
    session = chat_session()
    (first,) = say(session, "Hi")
    reply = session.reply("Ho")
    text = next(reply) + next(reply)
    reply.close()
    assert (session.last.reply.text, session.last.finish_reason) == (text, None)
    session.retry()  # before the first token
    assert [e.reply.text for e in session.turns] == [first, text]
    again = "".join(session.retry())
    assert not again.startswith(text)
    assert prompts[3] == prompts[1] == by_hand("Hi", first, "Ho")
    assert [(e.prompt, e.reply.text) for e in session.turns] == [("Hi", first), ("Ho", again)]


def test_the_oldest_exchanges_are_left_out_and_the_system_prompt_stays(prompts):
    session = chat_session(sequence_len=64, system="Be.")
    said = []
    for prompt in ("one", "two", "three", "four"):
        said += [prompt, *say(session, prompt)]
    # An exchange is 4 marks, 8 letters and the prompt, the system prompt 5 letters: a reply is to have 8 of 64 tokens.
    assert [turn.turns_left_out for turn in session.turns] == [0, 0, 0, 1]
    assert prompts[2] == by_hand(*said[:5], system="Be.")
    assert prompts[3] == by_hand(*said[2:7], system="Be.")
    assert [text for turn in session.turns for text in (turn.prompt, turn.reply.text)] == said  # with the one left out
    session.undo()
    session.undo()
    say(session, "all?")
    assert prompts[4] == by_hand(*said[:4], "all?", system="Be.")


def test_a_reply_of_any_length_gets_a_quarter_of_the_context():
    session = chat_session(sequence_len=64, max_tokens=4)
    say(session, "x" * 20)
    session.settings = SessionSettings(max_tokens=None)
    for length, tokens in ((17, 1 + 17 + 3), (16, 1 + 20 + 4 + 4 + 16 + 3)):  # 48 at most; a turn has 3 or 4 marks
        say(session, "y" * length)
        assert (session.last.prompt_tokens, session.last.finish_reason) == (tokens, "context")
        session.undo()


def test_a_prompt_that_does_not_fit_or_is_not_text_is_refused_and_leaves_all_as_it_was():
    session = chat_session(sequence_len=64, system="Be kind.")
    say(session, "Hi")
    # One token for the reply, four marks, the eight letters of the system prompt and its blank line: 15 of 64.
    too_long = "prompt: got 50 tokens, expected at most 49: this model's maximum context length is 64 tokens, and 15"
    for prompt, message in ((" \n", "content of user"), ("\ud800", "lone surrogate"), ("x" * 50, too_long)):
        with pytest.raises(ValueError, match=message):
            session.reply(prompt)
        assert (session.last, [e.prompt for e in session.turns]) == (None, ["Hi"])
    assert say(session, "x" * 49)


def test_a_conversation_from_outside_loses_its_oldest_turns():
    options, texts = {"context": 64, "truncate": True, "max_tokens": 8}, ("Hi 中文", "Yes", "So")
    whole = prompt_of(TOKENIZER, Conversation.of(*texts, system="Be."), **options)
    assert (whole.ids, whole.turns_left_out) == (by_hand(*texts, system="Be."), 0)
    assert (whole.stop_ids, whole.calculator) == (ChatFormat(TOKENIZER).stop_ids, True)
    for length in (40, 400):  # what cannot fit at all is not tokenized
        cut = prompt_of(TOKENIZER, Conversation.of("a", "b", "x" * length, *texts[1:], system="Be."), **options)
        assert (cut.ids, cut.turns_left_out) == (by_hand("So", system="Be."), 2)
    with pytest.raises(ValueError, match="messages: the last is the assistant's"):
        prompt_of(TOKENIZER, Conversation.of("Hi", "Yes"), **options)
    text = prompt_of(TOKENIZER, "Hi", 64)
    assert (text.ids, text.stop_ids, text.calculator) == ([SPECIAL["<|bos|>"], *b"Hi"], [SPECIAL["<|bos|>"]], False)


def test_what_cannot_fit_is_refused_before_it_is_tokenized(monkeypatch):
    monkeypatch.setattr(TOKENIZER, "encode", lambda text: pytest.fail(f"{len(text)} characters were tokenized"))
    monkeypatch.setattr(TOKENIZER, "encode_batch", lambda texts: pytest.fail(f"{len(texts)} texts were tokenized"))
    many = Conversation.of(*"ab" * 20, "c")  # short texts, but each has two marks
    for given, options in (
        ("x" * 64, {}), (Conversation.of("x" * 64), {}), (Conversation.of("x" * 64), {"truncate": True}), (many, {}),
        (Conversation.of("x", system="x" * 64), {"truncate": True}),
    ):  # fmt: skip
        with pytest.raises(
            ValueError, match=r"got at least \d+ tokens, expected at most 63: this model's maximum context length is 64"
        ):
            prompt_of(TOKENIZER, given, 64, **options)
