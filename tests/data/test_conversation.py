import pytest

from nanogka.data.conversation import ChatFormat, Conversation, ConversationError
from nanogka.tokenizer import Tokenizer

TEXTS = ["Hello there, how are you? I am fine, and you? Fine, thank you.", "List: 1, 2, 3. Ünïcödé 😀"]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(TEXTS * 4, 300)


def by_hand(tokenizer, *pieces):
    """Ids and mask from pieces: a special token's name, or (text, learned)."""
    ids, mask = [], []
    for piece in pieces:
        text, learned = piece if isinstance(piece, tuple) else (None, piece.endswith("+"))
        new = [tokenizer.special_tokens[piece.rstrip("+")]] if text is None else tokenizer.encode(text)
        ids += new
        mask += [learned] * len(new)
    return ids, mask


def test_only_the_assistants_words_and_the_end_of_its_turn_are_learned(tokenizer):
    conversation = Conversation.of("Hello, how are you?", "Fine 😀", "And?", "Thank you.")
    expected = by_hand(
        tokenizer, "<|bos|>",
        "<|user_start|>", ("Hello, how are you?", False), "<|user_end|>",
        "<|assistant_start|>", ("Fine 😀", True), "<|assistant_end|>+",
        "<|user_start|>", ("And?", False), "<|user_end|>",
        "<|assistant_start|>", ("Thank you.", True), "<|assistant_end|>+",
    )  # fmt: skip
    assert ChatFormat(tokenizer).render(conversation) == expected


CALL = [
    {"type": "text", "text": "She earned 0.2 x 50 = $"},
    {"type": "python", "text": "0.2*50"},
    {"type": "python_output", "text": "10"},
    {"type": "text", "text": "10.\n#### 10"},
]


def test_a_tool_call_is_learned_and_its_output_is_not(tokenizer):
    conversation = Conversation.from_json(messages(("system", "S"), ("user", "How much?"), ("assistant", CALL)))
    # nanochat's `render_conversation` gives these ids and this mask.
    expected = by_hand(
        tokenizer, "<|bos|>", "<|user_start|>", ("S\n\nHow much?", False), "<|user_end|>",
        "<|assistant_start|>", ("She earned 0.2 x 50 = $", True),
        "<|python_start|>+", ("0.2*50", True), "<|python_end|>+",
        "<|output_start|>", ("10", False), "<|output_end|>",
        ("10.\n#### 10", True), "<|assistant_end|>+",
    )  # fmt: skip
    template = ChatFormat(tokenizer)
    assert template.render(conversation) == expected
    prompt = template.render_prompt(Conversation.of("S\n\nHow much?"))
    assert [*prompt, *template.encode_reply(conversation.messages[-1]), template.stop_id] == expected[0]
    assert conversation.messages[-1].text == "She earned 0.2 x 50 = $10.\n#### 10"
    assert conversation.to_json() == messages(("system", "S"), ("user", "How much?"), ("assistant", CALL))


def test_the_system_message_stands_in_front_of_the_first_user_message(tokenizer):
    conversation = Conversation.of("Hello", "Fine", "And?", "Fine", system="List: 1")
    plain = Conversation.of("List: 1\n\nHello", "Fine", "And?", "Fine")
    assert conversation.system == "List: 1"
    assert ChatFormat(tokenizer).render(conversation) == ChatFormat(tokenizer).render(plain)


def test_a_prompt_ends_where_the_reply_begins_and_the_reply_with_the_stop_token(tokenizer):
    form = ChatFormat(tokenizer)
    asked, answered = Conversation.of("Hello", "Fine", "And?"), Conversation.of("Hello", "Fine", "And?", "Thank you.")
    prompt = form.render_prompt(asked)
    ids, _ = form.render(answered)
    assert prompt[-1] == form.start_id == tokenizer.special_tokens["<|assistant_start|>"]
    assert ids == [*prompt, *tokenizer.encode("Thank you."), form.stop_id]
    assert form.stop_id == tokenizer.special_tokens["<|assistant_end|>"]
    turns = [(message.role, [("text", tokenizer.encode(message.text))]) for message in asked.turns]
    assert form.render_ids(turns) == form.render(asked)
    with pytest.raises(ConversationError, match="expected the user's to reply to"):
        form.render_prompt(answered)


def messages(*pairs):
    return {"messages": [{"role": role, "content": content} for role, content in pairs]}


GOOD = messages(("system", "S"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))


def test_json_is_read_and_written():
    conversation = Conversation.from_json(GOOD)
    assert [m.role for m in conversation.turns] == ["user", "assistant"] * 2
    assert conversation.to_json() == GOOD
    assert Conversation.from_json(GOOD["messages"]) == conversation  # a bare list, as nanochat's own files have
    assert Conversation.from_json(GOOD | {"source": "elsewhere"}) == conversation
    unanswered = Conversation.of("Hello", "Fine", "And?")
    assert Conversation.from_json(unanswered.to_json(), complete=False) == unanswered


@pytest.mark.parametrize(
    "value,kind,text",
    [
        (messages(("user", "a"), ("robot", "b")), "unknown role", "message 2: role: got 'robot'"),
        (messages(("user", "a"), ("assistant", "\ud800")), "content is not text", "message 2: .* lone surrogate"),
        (messages(("user", "a"), ("user", "b"), ("assistant", "c")), "out of turn", "message 2: got user after user"),
        (messages(("user", "a")), "no reply at the end", "the last is the user's"),
        (
            messages(("user", CALL), ("assistant", "b")),
            "tool call out of place",
            "message 1: content of user: got a tool",
        ),
        (messages(("user", "a"), ("assistant", [])), "empty content", r"message 2: content of assistant: got ''"),
        (
            messages(("user", "a"), ("assistant", [{"type": "c", "text": "x"}])),
            "content is not text",
            "got a part of type 'c'",
        ),
        ("hello", "no messages", "got 'hello', expected an object"),
        ({"messages": ["hello"]}, "not a message", "message 1: got 'hello'"),
    ],
)
def test_a_fault_of_a_conversation_is_named_and_classed(value, kind, text):
    with pytest.raises(ConversationError, match=text) as error:
        Conversation.from_json(value)
    assert error.value.kind == kind


@pytest.mark.parametrize(
    "key,off,on",
    [
        ("weight", 0, 1),
        ("weight", 0.0, None),
        ("train", False, True),
        ("training", False, None),
        ("loss", False, True),
        ("loss_mask", 0, 1),
    ],
)
def test_a_reply_that_is_not_to_be_learned_is_context(tokenizer, key, off, on):
    talk = messages(("user", "a"), ("assistant", "Fine"), ("user", "b"), ("assistant", "Thank you."))
    talk["messages"][1][key], talk["messages"][3][key] = off, on
    conversation = Conversation.from_json(talk)
    expected = by_hand(
        tokenizer, "<|bos|>", "<|user_start|>", ("a", False), "<|user_end|>",
        "<|assistant_start|>", ("Fine", False), "<|assistant_end|>",
        "<|user_start|>", ("b", False), "<|user_end|>",
        "<|assistant_start|>", ("Thank you.", True), "<|assistant_end|>+",
    )  # fmt: skip
    assert ChatFormat(tokenizer).render(conversation) == expected
    assert Conversation.from_json(conversation.to_json()) == conversation
    assert repr(conversation) == repr(Conversation.of("a", "Fine", "b", "Thank you."))  # its hash chooses the split
    talk["messages"][3][key] = off
    with pytest.raises(ConversationError, match="every reply has the weight 0"):
        Conversation.from_json(talk)


@pytest.mark.parametrize("weights", [(0, None), (None, 0), (0, 1), (1, 0), (0, 0)])
def test_a_reply_with_a_call_is_learned_only_if_no_message_of_it_has_the_weight_0(tokenizer, weights):
    call = {"function": {"name": "calculator", "arguments": '{"expression": "1+1"}'}}
    talk = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": [call], "weight": weights[0]},
        {"role": "tool", "content": "2"}, {"role": "assistant", "content": "It is 2.", "weight": weights[1]},
        {"role": "user", "content": "b"}, {"role": "assistant", "content": "Fine"},
    ]  # fmt: skip
    ids, mask = ChatFormat(tokenizer).render(Conversation.from_json(talk))
    assert tokenizer.decode([token for token, learned in zip(ids, mask) if learned]) == "Fine<|assistant_end|>"


@pytest.mark.parametrize(
    "key,value",
    [
        ("reasoning_content", "hm"),
        ("prefix", True),
        ("channel", "analysis"),
        ("images", ["a"]),
        ("video", "a.mp4"),
        ("loss_scale", 0.5),
        ("masked", True),
        ("weight", 0.5),
        ("weight", "0"),
        ("loss", "no"),
    ],
)
def test_a_key_that_would_change_what_is_learned_is_refused(key, value):
    talk = messages(("user", "a"), ("assistant", "b"))
    talk["messages"][1][key] = value
    with pytest.raises(ConversationError, match=f"message 2: {key}: got") as error:
        Conversation.from_json(talk)
    assert error.value.kind == "a key that is not obeyed"
    call = {"function": {"name": "calculator", "arguments": '{"expression": "1+1"}'}}
    first = {"role": "assistant", "content": None, "tool_calls": [call]}
    later = [talk["messages"][0], first, {"role": "tool", "content": "2"}, talk["messages"][1]]
    with pytest.raises(ConversationError, match=f"message 2: {key}: got"):  # the first message of the reply
        Conversation.from_json(later)
    if key not in ("weight", "loss"):
        assert len(Conversation.from_json(talk, complete=False).messages) == 2  # a client sends earlier replies back
        talk["messages"][1][key] = None
        assert Conversation.from_json(talk) == Conversation.of("a", "b")


@pytest.mark.parametrize("content", ["", " \n", None, []])
def test_an_empty_system_message_is_none(content):
    talk = messages(("system", content), ("user", "a"), ("assistant", "b"))
    assert Conversation.from_json(talk) == Conversation.of("a", "b")


@pytest.mark.parametrize(
    "system,talk,expected",
    [
        ("", [("developer", "S")], "S"),
        ("T", [("system", "S")], "T\n\nS"),
        ("S", [("system", "S")], "S"),  # the same prompt twice
        ("", [("system", "S"), ("developer", ""), ("developer", "T")], "S\n\nT"),
    ],
)
@pytest.mark.parametrize("name", ["system", "system_prompt"])
def test_system_messages_at_the_start_are_joined(name, system, talk, expected):
    value = messages(*talk, ("user", "a"), ("assistant", "b")) | {name: system}
    assert Conversation.from_json(value) == Conversation.of("a", "b", system=expected)


def test_the_forms_of_other_programs_are_read():
    alpaca = {"instruction": "a", "input": "b", "output": "c", "history": [["d", "e"]]}
    assert Conversation.from_json(alpaca) == Conversation.of("d", "e", "a\n\nb", "c")
    assert Conversation.from_json(alpaca | {"instruction": " ", "history": None}) == Conversation.of("b", "c")
    for prompt in ("a", [{"role": "user", "content": "a"}]):
        for completion in ("b", [{"role": "assistant", "content": "b"}]):
            assert Conversation.from_json({"prompt": prompt, "completion": completion}) == Conversation.of("a", "b")
    turns = messages(("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"))["messages"]
    found = Conversation.from_json({"prompt": turns[:3], "completion": turns[3:]})
    assert [message.learned for message in found.messages] == [True, False, True, True]
    system = messages(("system", "S"), ("user", "a"), ("assistant", "b"))
    assert Conversation.from_json(messages(("user", "a"), ("assistant", "b")) | {"system": "S"}).to_json() == system
    for value, said in (
        ({"prompt": "a", "completion": "b", "label": False}, "good or bad"),
        (GOOD | {"label": False}, "good or bad"),
        (GOOD | {"images": ["a.png"]}, "images: got"),
        ({"prompt": "a", "completion": "b", "label": 0}, "good or bad"),
        (GOOD | {"kto_tag": True}, "good or bad"),
        (GOOD | {"weight": 0}, "weight: got 0 for a whole conversation"),
        (messages(("user", "a"), ("assistant", "b"), ("system", "S"), ("user", "c"), ("assistant", "d")), "message 3"),
        (messages(("user", "a"), ("assistant", "b\0")), "message 2: content: holds NUL"),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "chosen and a rejected"),
        ({"text": "a"}, "expected messages, conversations"),
        ({"conversations": "a"}, "expected a list"),
        ({"instruction": "a", "output": "b", "history": [1]}, "history: "),
    ):
        with pytest.raises(ConversationError, match=said):
            Conversation.from_json(value)
