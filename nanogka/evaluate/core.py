"""Evaluate tasks in context, by the protocols of DCLM's CORE: multiple choice, schema, language modeling.

Multiple choice and schema predict the candidate with the lowest mean loss per token; on a tie, the first one. Language
modeling is right if every token of the continuation is the model's argmax. An item that cannot be scored counts as
wrong and is reported.

A small base model cannot be asked for a letter or a sentence. The likelihood of given answers measures what it knows
long before it can say it, and needs no sampling.

Ranks share the items of a task in chunks. The batches of a chunk depend on the chunk alone, so its numbers are the same
to the last bit whichever rank runs it.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from tqdm import tqdm

from nanogka.common.distributed import Ranks
from nanogka.evaluate.bpb import eval_mode
from nanogka.evaluate.loglikelihood import GPTScorer, Score, Scorer, score_candidates
from nanogka.evaluate.results import Prediction, TaskResult, mean_centered
from nanogka.evaluate.task import (
    LANGUAGE_MODELING,
    LoadedTask,
    Question,
    draw_examples,
    item_order,
    make_question,
    render,
)
from nanogka.model import GPT

# Enough items to sort well by length. Few enough that ranks share evenly, and that ten-shot prompts of all choices
# (64 · 4 · 1000 tokens) are small in memory.
ITEMS_PER_CHUNK = 64
# On a CPU at depth 4, larger batches leave its caches and hold more padding. An accelerator needs large batches.
BATCH_TOKENS_CPU, BATCH_TOKENS_ACCELERATOR = 2048, 32768


def default_batch_tokens(device: torch.device) -> int:
    """Tokens per batch that suit a device."""
    return BATCH_TOKENS_CPU if device.type == "cpu" else BATCH_TOKENS_ACCELERATOR


def evaluate_task(
    scorer: Scorer,
    tokenizer,
    data: LoadedTask,
    *,
    max_items: int | None = None,
    batch_tokens: int | None = None,
    ranks: Ranks | None = None,
) -> tuple[TaskResult, list[Prediction]]:
    """Score the items of a task; return its result, and one prediction per item in shuffled order.

    The first `max_items` of the shuffled items are evaluated. Examples are drawn from them too, as in nanochat.
    `batch_tokens` counts padding. All ranks must call this, and all get everything.
    """
    ranks, batch_tokens = ranks or Ranks(), batch_tokens or default_batch_tokens(scorer.device)
    order = item_order(len(data.check_enough_items(max_items).items), max_items)
    firsts = range(0, len(order), ITEMS_PER_CHUNK)
    mine, began = firsts[ranks.rank :: ranks.world_size], time.perf_counter()
    done: dict[int, list[Prediction]] = {}
    disable = None if ranks.is_main else True  # None: show progress only on a terminal
    for first in tqdm(mine, desc=data.task.name, unit="chunk", leave=False, disable=disable):
        places = range(first, min(first + ITEMS_PER_CHUNK, len(order)))
        done[first] = evaluate_chunk(scorer, tokenizer, data, order, places, batch_tokens)
    everything = {first: chunk for part in ranks.all_gather(done) for first, chunk in part.items()}
    predictions = [prediction for first in firsts for prediction in everything[first]]
    result = TaskResult(
        data.task.name,
        data.task.type,
        data.task.num_fewshot,
        data.chance,
        correct=sum(prediction.correct for prediction in predictions),
        items=len(predictions),
        seconds=time.perf_counter() - began,
        truncated=sum(prediction.truncated for prediction in predictions),
        unscorable=sum(prediction.prediction is None for prediction in predictions),
    )
    return result, predictions


def evaluate_chunk(
    scorer: Scorer, tokenizer, data: LoadedTask, order: Sequence[int], places: range, batch_tokens: int
) -> list[Prediction]:
    """Score the items at `places` of `order`, the indices of the items after shuffling."""
    questions = list(make_questions(tokenizer, data, order, places, scorer.context_limit))
    scores = score_candidates(scorer, [question.candidates for question in questions], batch_tokens)
    predictions = []
    for place, question, losses in zip(places, questions, scores):
        index = order[place]
        gold = None if data.task.type == LANGUAGE_MODELING else data.items[index]["gold"]
        prediction, correct = judge(data.task.type, losses, gold)
        note = question.unscorable or ("no loss is finite" if prediction is None else "")
        means = [score.mean_loss for score in losses]
        entry = (data.task.name, place, index + 1, gold, prediction, correct, means, note, question.truncated)
        predictions.append(Prediction(*entry))
    return predictions


def make_questions(
    tokenizer, data: LoadedTask, order: Sequence[int], places: Iterable[int], limit: int | None
) -> Iterator[Question]:
    """Render and tokenize the items at `places` of `order`, all texts in one parallel call."""
    task, texts, counts = data.task, [], []
    for place in places:
        examples = [data.items[order[other]] for other in draw_examples(place, len(order), task.num_fewshot)]
        rendered = render(task, data.items[order[place]], examples)
        texts += rendered
        counts.append(len(rendered))
    sequences = iter(tokenizer.encode_batch(texts))
    for count in counts:
        yield make_question(task.type, [[tokenizer.bos_id, *next(sequences)] for _ in range(count)], limit)


def judge(type_: str, scores: Sequence[Score], gold: int | None) -> tuple[int | bool | None, bool]:
    """The prediction that follows from an item's scores, and whether it is right; (None, False) without scores."""
    losses = [score.mean_loss if math.isfinite(score.mean_loss) else math.inf for score in scores]
    if min(losses, default=math.inf) == math.inf:
        return None, False
    if type_ == LANGUAGE_MODELING:
        return scores[0].all_argmax, scores[0].all_argmax
    best = losses.index(min(losses))
    return best, best == gold


def core_evaluation(
    tasks: Sequence[LoadedTask], core: Sequence[str], tokenizer, ranks: Ranks, max_per_task: int | None = None
) -> Callable[[GPT], dict[str, float]]:
    """Return a function that measures CORE of a model in training; all ranks call it and share the items.

    It returns `{"core": value}`. If tasks of CORE are missing, it returns `{"core_partial": value}` instead, the mean
    over those there are.
    """

    def measure(model: GPT) -> dict[str, float]:
        options = {"max_items": max_per_task, "ranks": ranks}
        with eval_mode(model):
            results = [evaluate_task(GPTScorer(model), tokenizer, data, **options)[0] for data in tasks]
        whole = mean_centered(results, core)
        if whole is not None:
            return {"core": whole}
        partial = mean_centered(results, [result.name for result in results])
        assert partial is not None, "all of its tasks were measured"
        return {"core_partial": partial}

    return measure
