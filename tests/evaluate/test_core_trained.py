"""All 22 tasks, 32 items each, with a small trained model: the fast evaluator against the naive one in float64.

Wants the real bundle: `NANOGKA_TEST_DATA` names the folder that has `eval_bundle/`.
"""

import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from naive_evaluator import naive_evaluate

from nanogka.evaluate import core_score, evaluate_tasks, open_bundle
from nanogka.model import GPT, GPTConfig
from nanogka.model.kv_cache import DecodeCache
from nanogka.tokenizer import Tokenizer
from tasks import CORE, TASKS

DATA = os.environ.get("NANOGKA_TEST_DATA")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not DATA, reason="NANOGKA_TEST_DATA is not set")]

ITEMS = 32
SEQUENCE_LEN = 256
STEPS, ROWS = 150, 8


def items_text(bundle):
    """The tasks' own words: a model trained on them predicts them with confidence, as a real one does."""
    for name in CORE:
        for item in bundle.load(name).items[:300]:
            query = item.get("query") or item.get("context") or item["context_options"][0]
            yield query + " " + str(item.get("continuation") or item["choices"][item["gold"]])


@pytest.fixture(scope="module")
def trained():
    """(bundle, tokenizer, float32 model, the same in float64)."""
    bundle = open_bundle(Path(DATA) / "eval_bundle", TASKS)
    texts = list(items_text(bundle))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = Tokenizer.train(texts, vocab_size=1024)
    stream = np.concatenate([[tokenizer.bos_id, *ids] for ids in tokenizer.encode_batch(texts)])
    config = GPTConfig(SEQUENCE_LEN, tokenizer.vocab_size, n_layer=3, n_head=2, n_embd=64, mixer_pattern="GDG")
    model = GPT(config, seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        begins = torch.randint(0, len(stream) - SEQUENCE_LEN - 1, (ROWS,), generator=generator).tolist()
        rows = torch.tensor(np.stack([stream[i : i + SEQUENCE_LEN + 1] for i in begins]))
        model(rows[:, :-1], rows[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()
    exact = GPT(config, compute_dtype=torch.float64).double()
    exact.load_state_dict(model.state_dict())
    return bundle, tokenizer, model.eval(), exact.eval()


@pytest.fixture(scope="module")
def fast(trained):
    """What the evaluator says, by task."""
    bundle, tokenizer, model, _ = trained
    done = evaluate_tasks(model, tokenizer, [bundle.load(n) for n in CORE], max_items=ITEMS, new_cache=DecodeCache)
    assert -1 < core_score([result for result, _ in done], CORE) < 1
    return dict(zip(CORE, done))


@pytest.mark.parametrize("name", CORE)
def test_same_predictions_and_losses_as_the_naive_evaluator(trained, fast, name):
    bundle, tokenizer, _, exact = trained
    data, task, (_, predictions) = bundle.load(name), bundle.tasks[name], fast[name]
    scorable = [p for p in predictions if p.prediction is not None]
    assert len(scorable) == ITEMS
    expected = naive_evaluate(exact, tokenizer, task.type, data.items, task.shots, task.delimiter, ITEMS, SEQUENCE_LEN)
    assert [p.prediction for p in predictions] == [prediction for prediction, _ in expected]
    for prediction, (_, losses) in zip(predictions, expected):
        assert prediction.losses == pytest.approx(losses, rel=1e-6, abs=1e-6)
