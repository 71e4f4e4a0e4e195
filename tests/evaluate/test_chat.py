"""Evaluation in conversations: an oracle scores 1, a constant answer the chance level; batches change nothing."""

import random
from types import SimpleNamespace

import pytest
import torch
from generate_models import byte_tokenizer, greedy_without_cache, small_model

from nanogka.data.conversation import ChatFormat, Conversation
from nanogka.evaluate.chat import (
    ChatItem,
    ChatTask,
    ModelResponder,
    chat_task,
    evaluate_chat_task,
    final_number,
    format_results,
)
from nanogka.evaluate.task import Task, TaskData
from nanogka.generate.engine import Engine
from tasks.skills import SKILLS

CHOICES = TaskData(
    Task("science", "multiple_choice", chance=0.25),
    [{"query": f"Which is {i}?", "choices": [f"{j} of {i}" for j in range(4)], "gold": i % 4} for i in range(40)],
)
NUMBERS = TaskData(
    Task("sums", "language_modeling"),
    [{"context": f"What is {i} twice?", "continuation": f"{i} and {i}.\n#### {2 * i:,}"} for i in range(990, 1010)],
)


class Oracle:
    """Answers every question of a task rightly."""

    def __init__(self, task):
        self.known = {item.prompt: item.answer for item in task.items}

    def replies(self, prompts, max_tokens):
        return [self.known[prompt.turns[-1].content] for prompt in prompts]

    def letters(self, prompts, choices):
        return ["ABCD".index(self.known[prompt.turns[-1].content]) for prompt in prompts]


ALL_TASKS = [*(skill.task(200) for skill in SKILLS.values()), chat_task(CHOICES), chat_task(NUMBERS)]


@pytest.mark.parametrize("task", ALL_TASKS)
def test_an_oracle_scores_1(task):
    result, replies = evaluate_chat_task(Oracle(task), task)
    assert result.correct == result.items == len(task.items) == sum(reply["right"] for reply in replies)
    assert 0 < result.chance < 0.8


def test_always_the_commonest_answer_scores_the_level_that_is_stated():
    task = SKILLS["counting"].task(300)
    answers = [item.answer for item in task.items]
    commonest = max(set(answers), key=answers.count)
    parrot = SimpleNamespace(replies=lambda prompts, max_tokens: [commonest] * len(prompts))
    result, _ = evaluate_chat_task(parrot, task)
    assert result.accuracy == result.chance == answers.count(commonest) / len(answers)


def test_a_question_that_does_not_fit_counts_as_wrong_and_is_reported():
    task = ChatTask("t", [ChatItem("a", "b"), ChatItem("c", "d")], 0.0)
    full = SimpleNamespace(replies=lambda prompts, max_tokens: ["b", None])
    result, replies = evaluate_chat_task(full, task)
    assert (result.correct, result.items, result.unscorable) == (1, 2, 1)
    assert replies[1]["reply"] is None
    table = format_results([result])
    assert "t generation 50.0 % 50.0 % 0.0 % 2" in " ".join(table.split())
    assert "t: 1 do not fit the context and count as wrong" in table


def test_choices_are_listed_by_letters_and_the_right_one_is_the_answer():
    task = chat_task(CHOICES, max_items=3)
    assert task.items[2].answer == "C"
    assert task.items[2].prompt == (
        "Which is 2?\n\nA. 0 of 2\nB. 1 of 2\nC. 2 of 2\nD. 3 of 2\n\nReply with the letter of the right answer only."
    )
    assert len(task.items) == 3


@pytest.mark.parametrize(
    "text,number",
    [
        ("so 3 + 4 = 7", 7), ("#### 1,234 dollars, not 5", 1234), ("it costs $1,234.50.", 1234.5), ("-3", -3),
        ("none", None), ("#### .5", 0.5), ("7.", 7), ("####  12", 12),
    ],
)  # fmt: skip
def test_the_final_number(text, number):
    assert final_number(text) == number


@pytest.fixture(scope="module")
def responder():
    # few tokens a batch, so that there are several
    return ModelResponder(Engine(small_model(sequence_len=48), byte_tokenizer()), batch_tokens=60)


PROMPTS = [Conversation.of("x" * random.Random(i).randint(1, 30)) for i in range(12)]


def test_replies_are_the_greedy_ones_of_each_prompt_alone(responder):
    tokenizer = responder.engine.tokenizer
    form, found = ChatFormat(tokenizer), responder.replies(PROMPTS, 6)
    for prompt, text in zip(PROMPTS, found):
        ids = form.render_prompt(prompt)
        tokens, _ = greedy_without_cache(responder.engine.model, ids, 6, tokenizer.vocab_size)
        ends = [i for i, token in enumerate(tokens) if token in (form.stop_id, tokenizer.bos_id)]
        special = set(tokenizer.special_tokens.values())
        expected = [token for token in tokens[: ends[0] if ends else 6] if token not in special]
        assert text == tokenizer.decode(expected)


def test_letters_are_the_likeliest_among_those_that_stand_for_a_choice(responder):
    form, model = ChatFormat(responder.engine.tokenizer), responder.engine.model
    choices = [2 + i % 4 for i in range(len(PROMPTS))]
    found = responder.letters(PROMPTS, choices)
    for prompt, count, index in zip(PROMPTS, choices, found):
        with torch.no_grad():
            logits = model(torch.tensor([form.render_prompt(prompt)]))[0, -1]
        assert index == int(logits[ord("A") : ord("A") + count].argmax())
    assert len(set(found)) > 1


def test_a_prompt_that_leaves_no_room_for_a_reply_gets_none(responder):
    long = Conversation.of("x" * 44)  # and four special tokens
    assert responder.replies([long, PROMPTS[0]], 3)[0] is None
    assert responder.letters([PROMPTS[0], long], [4, 4])[1] is None
