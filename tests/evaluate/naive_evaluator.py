"""The evaluator nobody would run: one item, one choice, one full prompt at a time, in float64.

Written from the definition of the protocols alone and sharing no code with `nanogka.evaluate`: it is what the fast
evaluator is checked against.
"""

import random

import pytest
import torch


def check_against_naive(predictions, exact, tokenizer, data, tolerance, limit=None, sequence_len=None):
    """Assert that predictions and losses of `data` are those that the float64 model `exact` gives naively."""
    task = data.task
    options = task.num_fewshot, task.delimiter, limit, sequence_len
    expected = naive_evaluate(exact, tokenizer, task.type, data.items, *options)
    assert [p.prediction for p in predictions] == [prediction for prediction, _ in expected]
    golds = [prediction.gold if task.type != "language_modeling" else True for prediction in predictions]
    assert [p.correct for p in predictions] == [p.prediction == gold for p, gold in zip(predictions, golds)]
    for prediction, (_, losses) in zip(predictions, expected):
        assert prediction.losses == pytest.approx(losses, rel=tolerance, abs=tolerance)


def naive_evaluate(model, tokenizer, type_, items, num_fewshot, delimiter, limit, sequence_len):
    """[(prediction, [mean loss of each candidate])] an item, in the shuffled order; `model` is a float64 model."""
    assert next(model.parameters()).dtype == torch.float64
    pool = list(items)
    random.Random(1337).shuffle(pool)
    pool = pool[:limit] if limit is not None else pool
    outcomes = []
    for i, item in enumerate(pool):
        others = [j for j in range(len(pool)) if j != i]
        shown = [pool[j] for j in random.Random(1234 + i).sample(others, num_fewshot)] if num_fewshot else []
        outcomes.append(_OF_TYPE[type_](model, tokenizer, item, shown, delimiter, sequence_len))
    return outcomes


def _multiple_choice(model, tokenizer, item, shown, delimiter, sequence_len):
    head = "".join(f"{ex['query']}{delimiter}{ex['choices'][ex['gold']]}\n\n" for ex in shown)
    rows = [_tokens(tokenizer, f"{head}{item['query']}{delimiter}{choice}") for choice in item["choices"]]
    start = 0
    while all(start < len(row) for row in rows) and len({row[start] for row in rows}) == 1:
        start += 1
    losses = [_losses(model, row, start, sequence_len)[0] for row in rows]
    return _first_lowest(losses), losses


def _schema(model, tokenizer, item, shown, delimiter, sequence_len):
    head = "".join(f"{ex['context_options'][ex['gold']]}{delimiter}{ex['continuation']}\n\n" for ex in shown)
    texts = [f"{head}{context}{delimiter}{item['continuation']}" for context in item["context_options"]]
    rows = [_tokens(tokenizer, text) for text in texts]
    shared = 0
    while all(shared < len(row) for row in rows) and len({row[-1 - shared] for row in rows}) == 1:
        shared += 1
    losses = [_losses(model, row, len(row) - shared, sequence_len)[0] for row in rows]
    return _first_lowest(losses), losses


def _language_modeling(model, tokenizer, item, shown, delimiter, sequence_len):
    head = "".join(f"{ex['context'].strip()}{delimiter}{ex['continuation']}\n\n" for ex in shown)
    prompt = f"{head}{item['context'].strip()}{delimiter}"
    without, full = _tokens(tokenizer, prompt.strip()), _tokens(tokenizer, prompt + item["continuation"])
    start = 0
    while start < min(len(without), len(full)) and without[start] == full[start]:
        start += 1
    loss, all_right = _losses(model, full, start, sequence_len)
    return all_right, [loss]


_OF_TYPE = {"multiple_choice": _multiple_choice, "schema": _schema, "language_modeling": _language_modeling}


def _tokens(tokenizer, text):
    return [tokenizer.bos_id] + list(tokenizer.encode(text))


@torch.no_grad()
def _losses(model, row, start, sequence_len):
    """Mean loss of row[start:], and whether each of those tokens was the most likely one."""
    if sequence_len is not None and len(row) > sequence_len:
        start -= len(row) - sequence_len
        row = row[-sequence_len:]
    assert 1 <= start < len(row)
    logits = model(torch.tensor([row]))[0].double()
    log_probabilities = torch.log_softmax(logits, dim=-1)
    total, right = 0.0, True
    for position in range(start, len(row)):
        total -= log_probabilities[position - 1, row[position]].item()
        right = right and logits[position - 1].argmax().item() == row[position]
    return total / (len(row) - start), right


def _first_lowest(losses):
    return min(range(len(losses)), key=lambda i: (losses[i], i))
