"""Chat evaluation: an oracle scores 1, a constant answer the chance level, and batches change nothing."""

import random
import re
from types import SimpleNamespace

import pytest
import torch
from generate_models import byte_tokenizer, greedy_without_cache, small_model

from nanogka.data.conversation import ChatFormat, Conversation
from nanogka.evaluate.chat import (
    ChatItem,
    ChatModel,
    ChatTask,
    evaluate_chat_task,
    final_number,
    format_results,
    letter_item,
    letter_task,
    same_number,
)
from nanogka.generate.engine import Engine
from tasks.promise import REFUSAL
from tasks.skills import HELD_OUT, SKILLS, evaluations

CHOICES = letter_task(
    "science", [letter_item(f"Which is {i}?", [f"{j} of {i}" for j in range(4)], i % 4) for i in range(40)]
)
NUMBERS = ChatTask(
    "sums", [ChatItem(f"Twice {i}?", f"{i} and {i}.\n#### {2 * i:,}", same_number) for i in range(990, 1010)], 0.05
)


class Oracle:
    """Answers every question of a task correctly."""

    def __init__(self, task):
        self.known = {item.prompt: item.answer for item in task.items}

    def replies(self, prompts, _):
        return [self.known[prompt.turns[-1].content] for prompt in prompts]

    letters = replies


@pytest.mark.parametrize("task", [*(make(60) for make in evaluations().values()), CHOICES, NUMBERS])
def test_an_oracle_scores_1(task):
    result, replies = evaluate_chat_task(Oracle(task), task)
    assert result.correct == result.items == len(task.items) == sum(reply["right"] for reply in replies)
    # A model that always refuses is right in all that is to be refused.
    assert 0 < result.chance < 0.9 or {item.answer for item in task.items} == {REFUSAL}


def test_always_the_most_common_answer_scores_the_chance_level():
    task = SKILLS["counting"].task(HELD_OUT, 100)
    answers = [item.answer for item in task.items]
    parrot = SimpleNamespace(replies=lambda prompts, _: [max(set(answers), key=answers.count)] * len(prompts))
    assert evaluate_chat_task(parrot, task)[0].accuracy == task.chance


def test_several_wordings_of_one_item_count_once():
    items = [ChatItem(f"{words} {number}", str(number), key=str(number)) for number in range(10) for words in "abcd"]
    result, _ = evaluate_chat_task(Oracle(task := ChatTask("t", items, 0.1)), task)
    assert (result.correct, result.items, result.sample) == (40, 40, 10)
    assert result.to_json()["distinct"] == 10
    addition = SKILLS["addition"].task(HELD_OUT, 100)
    result, _ = evaluate_chat_task(Oracle(addition), addition)
    assert result.sample == len({tuple(sorted(re.findall(r"\d+", item.prompt))) for item in addition.items})


def test_a_question_that_does_not_fit_counts_as_wrong_and_is_reported():
    task = ChatTask("t", [ChatItem("a", "b"), ChatItem("c", "d")], 0.0)
    result, replies = evaluate_chat_task(SimpleNamespace(replies=lambda prompts, _: ["b", None]), task)
    assert (result.correct, result.items, result.unscorable, replies[1]["reply"]) == (1, 2, 1, None)
    assert [result.to_json()[name] for name in ("shots", "truncated")] == [0, 0]
    table = format_results([result])
    assert table.splitlines() == [
        "task  method       right  95 % interval  chance  questions  different",
        "t     generation  50.0 %  9.5 to 90.5 %   0.0 %          2          2",
        "t: 1 do not fit the context and count as wrong",
    ]


def test_choices_are_rendered_as_in_nanochat():
    # The text that nanochat's render_mc gives for these arguments, at commit 92d63d4.
    ending = "\n\nRespond only with the letter of the correct answer."
    item = letter_item("Why?", ["so", "or so"], 1)
    assert item.prompt == f"Multiple Choice question: Why?\n- so=A\n- or so=B{ending}"
    assert (item.answer, item.letters) == ("B", ("A", "B"))
    assert "- so=1\n- or so=2\n" in letter_item("Why?", ["so", "or so"], 1, ["1", "2"]).prompt


@pytest.mark.parametrize(
    "text,number",
    [
        ("so 3 + 4 = 7", 7), ("#### 1,234 dollars, not 5", 1234), ("it costs $1,234.50.", 1234.5), ("-3", -3),
        ("none", None), ("#### .5", 0.5), ("7.", 7), ("####  12", 12),
        ("\u22123", -3), ("#### \u22121,000", -1000), ("3-5", 5), ("3\u22125", 5), ("(2)-5", 5), ("x = -5", -5),
        ("-.5", -0.5), (".5", 0.5), ("so...5", 5), ("1.5-2", 2), ("1,2,3", 3), ("12,34", 34), ("2,5000", 5000),
        ("-1,234,567.8", -1234567.8), ("1e5", 100000), ("1.5e-3", 0.0015),
    ],
)  # fmt: skip
def test_the_final_number(text, number):
    assert final_number(text) == number


@pytest.fixture(scope="module")
def model():
    # Few tokens per batch make several batches.
    return ChatModel(Engine(small_model(sequence_len=48), byte_tokenizer()), batch_tokens=60)


PROMPTS = [Conversation.of("x" * random.Random(i).randint(1, 30)) for i in range(12)]


def test_replies_are_the_greedy_ones_of_each_prompt_alone(model):
    tokenizer, found = model.engine.tokenizer, model.replies(PROMPTS, 6)
    for prompt, text in zip(PROMPTS, found):
        ids = ChatFormat(model.engine.tokenizer).render_prompt(prompt)
        tokens, _ = greedy_without_cache(model.engine.model, ids, 6, tokenizer.vocab_size)
        # A special token ends the reply, or begins a tool call, which is not part of it.
        ends = [i for i, token in enumerate(tokens) if token in tokenizer.special_tokens.values()]
        assert text == tokenizer.decode(tokens[: ends[0] if ends else 6])


def test_a_letter_is_the_most_likely_of_the_choices(model):
    choices = ["ABCDEF"[: 2 + i % 4] for i in range(len(PROMPTS))]
    found = model.letters(PROMPTS, choices)
    for prompt, letters, letter in zip(PROMPTS, choices, found):
        with torch.no_grad():
            logits = model.engine.model(torch.tensor([ChatFormat(model.engine.tokenizer).render_prompt(prompt)]))[0, -1]
        assert letter == max(letters, key=lambda letter: logits[ord(letter)])
    assert len(set(found)) > 1


def test_a_prompt_that_leaves_no_room_for_a_reply_gets_none(model):
    long = Conversation.of("x" * 44)  # and four special tokens
    assert model.replies([long, PROMPTS[0]], 3)[0] is None
    assert model.letters([PROMPTS[0], long], ["ABCD", "ABCD"])[1] is None
