"""The exported tokenizer and chat template give our ids."""

import pytest
from exported import WORDS
from generate_models import byte_tokenizer

from nanogka.data.conversation import ChatFormat, Conversation
from nanogka.export.tokenizer import exported_tokenizer, tokenizer_config

transformers = pytest.importorskip("transformers")

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
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **config)


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


@pytest.mark.parametrize("roles", [["assistant"], ["user", "user"], ["user", "system"], ["user", "tool"], ["system"]])
def test_messages_out_of_turn_are_refused(theirs, roles):
    with pytest.raises(Exception, match="messages: expected"):
        theirs.apply_chat_template([{"role": role, "content": "a"} for role in roles])
