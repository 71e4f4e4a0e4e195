"""Rendering, sampling, CORE and bits per byte are nanochat's (July 2026)."""

import json
import os
import random
from pathlib import Path

import pytest
import torch

from nanogka.data.conversation import ChatFormat, Conversation
from nanogka.evaluate.bpb import measure_bits_per_byte
from nanogka.evaluate.bundle import open_bundle
from nanogka.evaluate.core import evaluate_task
from nanogka.evaluate.loglikelihood import GPTScorer
from nanogka.generate.sampling import next_token_candidates
from nanogka.generate.settings import SamplingParams

DATA = os.environ.get("NANOGKA_TEST_DATA")  # the folder with `eval_bundle/`
WORDS = [
    "Hello",
    " world",
    "\n\n",
    "12345",
    " 3.14",
    "é",
    "中文",
    "🙂",
    "<|bos|>",
    "don't",
    "   ",
    "def f(x):\n\treturn x",
    ".",
]


def random_conversation(rng: random.Random) -> dict:
    """Messages of user and assistant, perhaps a system message and tool calls; no two text parts are adjacent."""
    text = lambda: "x" + "".join(rng.choices(WORDS, k=rng.randint(1, 6)))  # noqa: E731
    messages = [{"role": "system", "content": text()}] if rng.random() < 0.3 else []
    for _ in range(rng.randint(1, 3)):
        messages.append({"role": "user", "content": text()})
        content = text()
        if rng.random() < 0.5:
            content = [{"type": "text", "text": text()}] if rng.random() < 0.7 else []
            for _ in range(rng.randint(1, 2)):
                content += [{"type": "python", "text": "1+1"}, {"type": "python_output", "text": "2"}]
                content += [{"type": "text", "text": text()}]
        messages.append({"role": "assistant", "content": content})
    return {"messages": messages}


def test_rendering_and_the_loss_mask_of_conversations(tokenizers):
    ours, theirs = tokenizers
    template, rng = ChatFormat(ours), random.Random(0)
    for _ in range(500):
        conversation = random_conversation(rng)
        ids, mask = template.render(Conversation.from_json(conversation))
        assert (ids, list(map(int, mask))) == theirs.render_conversation(conversation, max_tokens=10**6), conversation
        asked = Conversation.from_json({"messages": conversation["messages"][:-1]}, complete=False)
        assert template.render_prompt(asked) == theirs.render_for_completion(conversation), conversation


@pytest.mark.parametrize("temperature", [0.01, 0.6, 1.0, 1.3])
@pytest.mark.parametrize("top_k", [None, 5, 50])
def test_probabilities_of_the_next_token(nanochat, monkeypatch, temperature, top_k):
    logits = 4 * torch.randn(3, 320, generator=torch.Generator().manual_seed(4))
    seen = []

    def multinomial(probabilities, num_samples, generator):
        seen.append(probabilities)
        return torch.zeros(len(probabilities), 1, dtype=torch.long)

    monkeypatch.setattr(torch, "multinomial", multinomial)
    nanochat.engine.sample_next_token(logits, None, temperature, top_k)
    places = torch.arange(320).expand(3, -1) if top_k is None else logits.topk(top_k).indices
    theirs = torch.zeros(3, 320).scatter(1, places, seen[0])
    found, ids = next_token_candidates(logits, SamplingParams(temperature=temperature, top_k=top_k or 0))
    ours = torch.zeros(3, 320, dtype=torch.float64).scatter(1, ids, found)
    torch.testing.assert_close(ours.float(), theirs, atol=5e-7, rtol=0)


@pytest.mark.skipif(not DATA, reason="no NANOGKA_TEST_DATA")
@pytest.mark.parametrize("name", ["copa", "winograd", "arc_easy", "bigbench_qa_wikidata"])
def test_items_of_core(nanochat, networks, tokenizers, name):
    (ours, theirs, _), (own_tokens, its_tokens) = networks, tokenizers
    data, count = open_bundle(Path(DATA) / "eval_bundle").load(name), 12
    _, predictions = evaluate_task(GPTScorer(ours), own_tokens, data, max_items=count)
    file = Path(DATA) / "eval_bundle" / "eval_data" / data.task.path
    items = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    random.Random(1337).shuffle(items)
    checked = range(4 if data.task.num_fewshot else count)  # prompts with ten examples are long
    about = {"task_type": data.task.type, "num_fewshot": data.task.num_fewshot}
    about["continuation_delimiter"] = data.task.delimiter
    evaluate = nanochat.core_eval.evaluate_example
    its = [evaluate(i, theirs, its_tokens, items[:count], "cpu", about) for i in checked]
    assert [predictions[i].correct for i in checked] == [bool(correct) for correct in its]


def test_bits_per_byte(nanochat, networks, tokenizers):
    ours, theirs, _ = networks
    tokenizer, _ = tokenizers
    lengths = torch.from_numpy(tokenizer.token_bytes()).long()
    assert lengths[: 320 - len(tokenizer.special_tokens)].min() == 1
    ids = torch.randint(0, tokenizer.vocab_size, (4, 2, 257), generator=torch.Generator().manual_seed(6))
    batches = [(part[:, :-1], part[:, 1:].masked_fill(part[:, 1:] % 11 == 0, -1)) for part in ids]
    theirs_value = nanochat.loss_eval.evaluate_bpb(theirs, batches, len(batches), lengths)
    assert measure_bits_per_byte(ours, batches, lengths).value == pytest.approx(theirs_value, rel=2e-6)
