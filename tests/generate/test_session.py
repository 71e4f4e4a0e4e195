"""The session: a chat model sees the conversation, a base model its prompt alone; replies are kept as they come."""

import json

import pytest
from generate_models import LETTERS, byte_tokenizer, chat_session, greedy_without_cache, say, small_model, talking_model

from nanogka.data.chat import jsonl_source
from nanogka.data.conversation import Conversation
from nanogka.generate import Engine, SamplingSettings
from nanogka.generate.session import Session

TOKENIZER = byte_tokenizer()
SPECIAL = TOKENIZER.special_tokens
GREEDY = SamplingSettings(temperature=0)


@pytest.fixture
def base():
    return Session(Engine(small_model(), TOKENIZER), SamplingSettings(temperature=1.0), max_tokens=8)


@pytest.fixture
def prompts(monkeypatch):
    """The ids of each prompt that an engine gets."""
    seen = []
    original = Engine.stream

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


# ---- replies ----


def test_a_reply_is_known_as_far_as_it_came(base):
    text = next(base.reply("Hi"))
    assert (base.last.text, base.last.finish) == (text, None)
    say(base, "Hi")
    assert (base.last.tokens, base.last.finish) == (8, "length")
    assert base.last.tokens_per_second > 0
    with pytest.raises(ValueError, match="takes at most 31"):
        base.reply("x" * 50)
    assert base.last is None


def test_a_base_model_gets_each_prompt_alone_and_a_chat_model_the_conversation(base, prompts):
    say(base, "Hi", "Ho")
    assert prompts == [[SPECIAL["<|bos|>"], *b"Hi"], [SPECIAL["<|bos|>"], *b"Ho"]]
    session = chat_session(system="Be kind.")
    first, second, _ = say(session, "Hi 中文", "And?", "So")
    assert prompts[2] == by_hand("Hi 中文", system="Be kind.")
    assert prompts[4] == by_hand("Hi 中文", first, "And?", second, "So", system="Be kind.")


def test_only_what_is_new_is_read_and_the_reply_is_that_of_a_model_that_reads_all():
    model = small_model(sequence_len=96)
    session = Session(Engine(model, TOKENIZER), GREEDY, 8, chat=True)
    said, read = [], 0
    for prompt in ("Hi", "And?", "One more"):
        say(session, prompt)
        assert session.last.reused_tokens == read
        read = session.last.prompt_tokens + session.last.tokens - 1
        tokens, _ = greedy_without_cache(model, by_hand(*said, prompt), 8, TOKENIZER.vocab_size)
        assert session.last.ids == tokens
        said += [prompt, tokens]


def test_replies_keep_the_ids_that_they_were_generated_as(prompts):
    tokenizer = byte_tokenizer([b"aa"])
    # Its only word is the byte a, which the tokenizer would write in pairs.
    session = Session(Engine(talking_model([97]), tokenizer), GREEDY, 6, chat=True)
    assert say(session, "Hi") == ["aaaaaa"]
    assert len(tokenizer.encode("aaaaaa")) < 6
    say(session, "Ho")
    assert prompts[1][len(prompts[0]) :][:6] == [97] * 6
    assert session.last.reused_tokens == len(prompts[0]) + 5


@pytest.mark.parametrize("mark", ["<|assistant_end|>", "<|bos|>"])
def test_any_special_token_ends_a_reply_and_is_not_part_of_it(mark):
    session = chat_session([*LETTERS[:3], SPECIAL[mark]], max_tokens=100)
    said = [text for seed in range(8) for text in say(session, f"{seed}") if text]
    assert session.last.finish == "stop"
    assert all(set(text) <= set("abc") for text in said)
    assert [e.text for e in session.exchanges] == said
    assert [bytes(e.ids).decode() for e in session.exchanges] == said


def test_an_abandoned_reply_is_kept_as_far_as_it_came(prompts):
    session = chat_session()
    reply = session.reply("Hi")
    text = next(reply) + next(reply)
    reply.close()
    say(session, "Ho")
    assert prompts[1] == by_hand("Hi", text, "Ho")
    session.reply("before the first token")
    assert (len(session.exchanges), session.kept) == (2, False)


def test_retry_replaces_the_last_reply_with_the_next_seed_once_there_is_some_text(prompts):
    session = chat_session()
    first, second = say(session, "Hi", "Ho")
    session.retry()
    assert [e.text for e in session.exchanges] == [first, second]
    again = "".join(session.retry())
    assert again != second
    assert prompts[3] == prompts[1] == by_hand("Hi", first, "Ho")
    assert [(e.prompt, e.text) for e in session.exchanges] == [("Hi", first), ("Ho", again)]


# ---- the context's limit ----


def test_the_oldest_exchanges_are_left_out_and_the_system_prompt_stays(prompts, tmp_path):
    session = chat_session(sequence_len=64, system="Be.")
    said = []
    for prompt in ("one", "two", "three", "four"):
        said += [prompt, *say(session, prompt)]
    # An exchange is 4 marks, 8 letters and the prompt, the system prompt 5 letters: a reply is to have 8 of 64 tokens.
    assert [exchange.left_out_exchanges for exchange in session.exchanges] == [0, 0, 0, 1]
    assert prompts[2] == by_hand(*said[:5], system="Be.")
    assert prompts[3] == by_hand(*said[2:7], system="Be.")
    session.save(tmp_path / "a.json")  # with those left out
    assert [m["content"] for m in json.loads((tmp_path / "a.json").read_text())["messages"]] == ["Be.", *said]
    session.undo()
    session.undo()
    say(session, "all?")
    assert prompts[4] == by_hand(*said[:4], "all?", system="Be.")


@pytest.mark.parametrize("length, left_out", [(16, 0), (17, 1)])
def test_a_reply_of_any_length_gets_a_quarter_of_the_context(length, left_out):
    session = chat_session(sequence_len=64, max_tokens=4)
    say(session, "x" * 20)
    session.max_tokens = None
    say(session, "y" * length)
    # A document token, an exchange of 20 + 4 letters and 4 marks, the prompt and 3 marks: 48 with a prompt of 16.
    assert session.last.left_out_exchanges == left_out
    assert session.last.prompt_tokens == (48 if not left_out else 1 + 17 + 3)
    assert session.last.finish == "context"


def test_a_prompt_that_does_not_fit_or_is_not_text_is_refused_and_leaves_all_as_it_was():
    session = chat_session(sequence_len=64, system="Be kind.")
    say(session, "Hi")
    for prompt in (" \n", "\ud800"):
        with pytest.raises(ValueError, match="content of user|lone surrogate"):
            session.reply(prompt)
    # 64, without one for the reply, four marks, the eight letters of the system prompt and its blank line
    with pytest.raises(ValueError, match="prompt: got 50 tokens, takes at most 49: the context is 64 tokens, 14 go to"):
        session.reply("x" * 50)
    session.system = None
    with pytest.raises(ValueError, match="takes at most 59: the context is 64 tokens, 4 go to the marks"):
        session.reply("x" * 60)
    assert [e.prompt for e in session.exchanges] == ["Hi"]
    assert say(session, "x" * 59)


# ---- files ----


def test_what_is_saved_can_be_learned_from_and_resumed(tmp_path, prompts):
    session = chat_session(system="Be kind.")
    say(session, "Hi 中文 😀\nline", "Ho")
    session.save(tmp_path / "a.jsonl")
    session.save(tmp_path / "a.json")
    (line,) = (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()
    learned = Conversation.from_json(json.loads(line))
    assert [entry for _, entry in jsonl_source(tmp_path).train()] == [learned]
    assert learned == Conversation.from_json(json.loads((tmp_path / "a.json").read_text(encoding="utf-8")))
    texts = [m.content for m in learned.messages][1:]
    assert texts == [text for e in session.exchanges for text in (e.prompt, e.text)]
    other = chat_session()
    say(other, "to be replaced")
    other.load(tmp_path / "a.jsonl")
    say(other, "More")
    assert prompts[-1] == by_hand(*texts, "More", system="Be kind.")


def test_a_file_of_something_else_is_not_overwritten(tmp_path):
    session, mine, own = chat_session(), tmp_path / "a.json", tmp_path / "b.json"
    mine.write_text("mine")
    for expected in (2, 4):  # its own earlier state may be overwritten
        say(session, "Hi")
        session.save(own)
        assert len(json.loads(own.read_text())["messages"]) == expected
    session.reset()
    say(session, "Hi")
    for path in (mine, own):
        with pytest.raises(ValueError, match=r"json: exists already, takes a new name"):
            session.save(path)
    assert mine.read_text() == "mine"


def test_a_base_model_saves_continuations_and_has_no_history(tmp_path, base):
    said = [{"prompt": prompt, "continuation": say(base, prompt)[0]} for prompt in ("Hi", "Ho")]
    base.save(tmp_path / "a.jsonl")
    assert [json.loads(line) for line in (tmp_path / "a.jsonl").read_text("utf-8").splitlines()] == said
    acts = [base.undo, lambda: base.load(tmp_path / "a.jsonl"), lambda: base.resume(Conversation.of("Hi"))]
    for act in (*acts, lambda: Session(base.engine, GREEDY, system="Be kind.")):
        with pytest.raises(ValueError, match="a base model keeps no history"):
            act()
    assert len(base.exchanges) == 2
