"""Small stand-ins for the model and the tokenizer: causal, fast, and with known answers."""

import itertools
import json
import random
import re
from types import SimpleNamespace

import torch
from generate_models import small_model

from nanogka.evaluate.loglikelihood import padded

VOCAB_SIZE = 96
BOS = VOCAB_SIZE - 1
WORDS = ["stone", "river", "cloud", "ember", "willow", "north", "cedar", "flint", "harbor", "meadow", "copper", "ash"]


class FakeTokenizer:
    """Words with their leading space, single spaces, line ends and signs; a new piece gets the next free id."""

    bos_id = BOS
    # Shared by all instances, so that two of them agree.
    ids: dict[str, int] = {piece: i for i, piece in enumerate(WORDS + [f" {word}" for word in WORDS])}

    def encode(self, text: str) -> list[int]:
        pieces = re.findall(r" ?\w+|\s|[^\w\s]", text)
        return [self.ids.setdefault(piece, len(self.ids) % self.bos_id) for piece in pieces]

    def encode_batch(self, texts):
        return [self.encode(text) for text in texts]


class FakeModel(torch.nn.Module):
    """A causal recurrent net, which is a `Scorer`; counts the positions that it unembeds."""

    vocab_size, shares_prefixes = VOCAB_SIZE, False

    def __init__(self, sequence_len=512):
        super().__init__()
        torch.manual_seed(0)
        self.context_limit = sequence_len
        self.config = SimpleNamespace(sequence_len=sequence_len, vocab_size=VOCAB_SIZE)
        self.embedding = torch.nn.Embedding(VOCAB_SIZE, 16)
        self.mixer = torch.nn.GRU(16, 16, batch_first=True)
        self.head = torch.nn.Linear(16, VOCAB_SIZE)
        torch.nn.init.normal_(self.head.weight, std=1.5)  # losses that differ clearly from choice to choice
        self.positions_unembedded = 0

    @property
    def device(self):
        return self.head.weight.device

    def hidden(self, idx):
        assert idx.shape[1] <= self.config.sequence_len
        return self.mixer(self.embedding(idx))[0]

    def unembed(self, hidden):
        self.positions_unembedded += hidden.shape[:-1].numel()
        return self.head(hidden)

    def states(self, rows):
        return self.hidden(padded(rows, 0, self.device))

    def logits(self, states):
        return self.unembed(states)

    def forward(self, idx, targets=None, reduction="none"):
        logits = self.unembed(self.hidden(idx))
        if targets is None:
            return logits
        return torch.nn.functional.cross_entropy(logits.mT, targets, ignore_index=-1, reduction=reduction)


class OracleModel(FakeModel):
    """Knows the token after each token of the given sequences."""

    def __init__(self, sequences):
        super().__init__()
        self.following = torch.zeros(VOCAB_SIZE, VOCAB_SIZE)
        for tokens in sequences:
            self.following[tokens[:-1], tokens[1:]] = 30.0

    def hidden(self, idx):
        return idx

    def unembed(self, hidden):
        return self.following[hidden]


def make_network(sequence_len, dtype=torch.float32):
    """The real network, small, with both mixers and windows; the same weights for every dtype."""
    return small_model("GDG", "SL", sequence_len, vocab_size=VOCAB_SIZE, dtype=dtype)


def beyond(sequence_len):
    """`make_network` in float64 for longer sequences, with the windows that nanochat gives it beyond its context."""
    network, long = make_network(sequence_len, torch.float64), make_network(512, torch.float64)
    for mixer, block in zip((block.mixer for block in network.blocks), long.blocks):
        block.mixer.window = sequence_len if mixer.window is None else mixer.window
    return long


def make_items(type_: str, count: int) -> list[dict]:
    """Well-formed items with answers of different lengths, some beginning alike, gold drawn at random."""
    rng = random.Random(0)

    def words(low, high):
        return " ".join(rng.choices(WORDS, k=rng.randint(low, high)))

    items = []
    while len(items) < count:
        if type_ == "multiple_choice":
            options = [words(1, 4) for _ in range(rng.randint(2, 5))]
            item = {"query": words(6, 12) + rng.choice(["", "?", "\n"]), "choices": options}
        elif type_ == "schema":
            options = [words(6, 9) for _ in range(2)]
            item = {"context_options": options, "continuation": words(2, 6)}
        else:
            items.append({"context": words(6, 12) + rng.choice(["", " ", "\n"]), "continuation": words(1, 2)})
            continue
        # A choice that begins another one would leave nothing to score.
        if not any((b + " ").startswith(a + " ") for a, b in itertools.permutations(options, 2)):
            items.append(item | {"gold": rng.randrange(len(options))})
    return items


def write_bundle(root, names, items, num_fewshot=0):
    """A bundle in the folder `root`: multiple-choice tasks of these names, all with the same items."""
    (root / "eval_data").mkdir(parents=True)
    (root / "eval_data/items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    common = {"dataset_uri": "items.jsonl", "icl_task_type": "multiple_choice", "num_fewshot": num_fewshot}
    entries = [{"label": name} | common for name in names]
    (root / "core.yaml").write_text(json.dumps({"icl_tasks": entries}))  # JSON is YAML
    return root
