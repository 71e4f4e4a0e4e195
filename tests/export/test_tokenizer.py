"""The exported tokenizer and chat template give our ids."""

import pytest
import remote
from exported import WORDS
from generate_models import byte_tokenizer

from nanogka.data.conversation import OUTPUT, PYTHON, TEXT, ChatFormat, Conversation, Part
from nanogka.data.tool_calls import CALCULATOR, read_reply
from nanogka.export.tokenizer import exported_tokenizer, tokenizer_config

TEXTS = ["The <|bos|> and <|user_end|>", "<|", "<<||>\n\n", "é \u200b<|assistant_start|><|assistant_end|>", " the  the"]


@pytest.fixture(scope="module")
def ours():
    return byte_tokenizer(WORDS)


@pytest.fixture(scope="module")
def theirs(ours, tmp_path_factory):
    """The tokenizer as transformers reads it."""
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "tokenizer.json").write_text(exported_tokenizer(ours).to_str())
    config = tokenizer_config(64, "<|assistant_end|>")
    config.pop("tokenizer_class")
    return remote.transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **config)


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_the_document_token_and_our_ids(ours, theirs, text):
    ids = theirs(text, split_special_tokens=True)["input_ids"]
    assert ids == [ours.bos_id, *ours.encode(text)]
    assert theirs.decode(ids, skip_special_tokens=True) == text


@pytest.mark.parametrize("system", [None, "Be brief: <|user_end|>"])
def test_a_conversation_has_our_ids_whatever_it_says(ours, theirs, system):
    """Ids and loss mask of a conversation, and the prompt of a reply."""
    form = ChatFormat(ours)
    conversation = Conversation.of(*TEXTS[:4], system=system)
    messages = conversation.to_json()["messages"]
    options = {"return_dict": True, "return_assistant_tokens_mask": True}
    found = theirs.apply_chat_template(messages, **options)
    ids, mask = form.render(conversation)
    assert found["input_ids"] == ids
    assert [bool(learned) for learned in found["assistant_masks"]] == mask
    prompt = theirs.apply_chat_template(messages[:-1], add_generation_prompt=True, return_dict=True)
    assert prompt["input_ids"] == form.render_prompt(Conversation(conversation.messages[:-1]))


def calling(expression, content=None):
    """A message of the assistant that calls the calculator."""
    function = {"name": "calculator", "arguments": {"expression": expression}}
    return {"role": "assistant", "content": content, "tool_calls": [{"type": "function", "function": function}]}


@pytest.mark.parametrize("result", ["9", "<|output_end|>", ""])
def test_a_tool_call_and_its_result_have_the_ids_of_our_parts(ours, theirs, result):
    """Two calls in one reply, texts around them, and a loss mask without the results."""
    form, call = ChatFormat(ours), "2 + <|python_end|>"
    outputs = (Part(OUTPUT, result),) if result else ()  # a call that failed has no result
    reply = [Part(TEXT, "The "), Part(PYTHON, call), *outputs, Part(TEXT, " the"), Part(PYTHON, "3"), Part(OUTPUT, "3")]
    conversation = Conversation.of("Add", [*reply, Part(TEXT, "and")], "The", "the")
    user, last = {"role": "user", "content": "Add"}, {"role": "assistant", "content": "and"}
    results = [{"role": "tool", "content": text, "tool_call_id": "a"} for text in (result, "3")]
    messages = [user, calling(call, "The "), results[0], calling("3", " the"), results[1]]
    rest = [last, {"role": "user", "content": "The"}, {"role": "assistant", "content": "the"}]
    options = {"return_dict": True, "return_assistant_tokens_mask": True, "tools": [CALCULATOR]}
    found = theirs.apply_chat_template([*messages, *rest], **options)
    ids, mask = form.render(conversation)
    assert found["input_ids"] == ids
    assert [bool(learned) for learned in found["assistant_masks"]] == mask
    prompt = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert prompt == ids[: len(prompt)]
    assert ours.decode(ids[len(prompt) :]).startswith("and<|assistant_end|>")


@pytest.mark.parametrize(
    "messages,tools,expected",
    [
        ([calling("1")] * 2, None, "messages: expected"),
        ([calling("1")], None, "messages: expected a tool message at the end"),
        ([{"role": "assistant", "content": "a"}, {"role": "tool", "content": "1"}], None, "messages: expected"),
        ([calling(None)], None, "tool_calls: expected a single call of calculator"),
        ([{"role": "assistant", "tool_calls": calling("1")["tool_calls"] * 2}], None, "tool_calls: expected a single"),
        ([], [{"type": "function", "function": {"name": "weather"}}], "tools: expected the function calculator alone"),
    ],
)
def test_calls_that_the_model_does_not_know_are_refused(theirs, messages, tools, expected):
    with pytest.raises(Exception, match=expected):
        theirs.apply_chat_template(
            [{"role": "user", "content": "a"}, *messages], tools=tools, add_generation_prompt=True
        )


@pytest.mark.parametrize(
    "generated,content,expression",
    [
        ("It is <|python_start|>2 + 4<|python_end|>", "It is ", "2 + 4"),
        ("<|python_start|> 2 <|python_end|><|output_end|><|output_end|>", "", " 2 "),  # a padded row
        ("<|python_start|>2 +<|output_start|>", "", "2 +"),
        (" 9 < <| <|assistant_end|><|output_end|>", " 9 < <| ", None),
        ("cut sh", "cut sh", None),
    ],
)
def test_a_generated_reply_is_split_into_its_text_and_its_call(generated, content, expression):
    assert read_reply(generated) == (content, expression)
    assert read_reply(generated.partition("<|python_end|>")[0]) == (content, expression)  # without its last token


@pytest.mark.parametrize("text", ["a <| b", "<<||>\n\n<", "<|bos", "\uffff |>"])
def test_a_reply_that_holds_half_a_mark_is_continued(ours, theirs, text):
    """transformers looks for the given text in the rendered conversation."""
    messages = [{"role": "user", "content": "The <|bos|>"}, {"role": "assistant", "content": text}]
    ids = theirs.apply_chat_template(messages, continue_final_message=True, return_dict=True)["input_ids"]
    conversation = Conversation.of("The <|bos|>", text)
    assert ids == ChatFormat(ours).render(conversation)[0][:-1]


@pytest.mark.parametrize("roles", [["assistant"], ["user", "user"], ["user", "system"], ["user", "tool"], ["system"]])
def test_messages_out_of_turn_are_refused(theirs, roles):
    with pytest.raises(Exception, match="messages: expected"):
        theirs.apply_chat_template([{"role": role, "content": "a"} for role in roles])


def test_the_character_that_hides_marks_is_lost_only_between_the_halves_of_a_mark(ours, theirs):
    assert theirs("\uffff <|\uffff <\uffff").input_ids == [ours.bos_id, *ours.encode("\uffff <|\uffff <\uffff")]
    assert theirs("a <\uffff| b").input_ids == theirs("a <| b").input_ids
