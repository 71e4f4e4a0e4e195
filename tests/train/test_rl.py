"""Reinforcement learning: gradient and pass@k against closed forms, and a run that learns, resumes and is shared."""

import itertools
import math
from collections import Counter
from dataclasses import replace
from statistics import mean

import pytest
import torch
from generate_models import byte_tokenizer, save_run, scripted_model
from rank_worlds import run_training
from torch import nn
from training import bits, losses, trace

from nanogka.evaluate.chat import ChatItem, ChatTask
from nanogka.generate.engine import Engine
from nanogka.model import GPT, GPTConfig
from nanogka.runs import Run
from nanogka.tokenizer import Tokenizer
from nanogka.train import rl
from nanogka.train.rl import RewardTask, RLSettings, Rollout, advantages, make_batch, pass_at_k, policy_loss
from scripts import chat_rl


class TwoTokens(nn.Module):
    """A model of two tokens, whose logits are the same everywhere."""

    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([0.3, -0.5]))

    def forward(self, inputs, targets, reduction):
        logits = self.logits.expand(*inputs.shape, 2)
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), reduction=reduction, ignore_index=-1
        )


def test_the_gradient_is_the_policy_gradient_in_closed_form():
    # Three replies of one to three tokens with their rewards; a tool wrote the token that is not learned.
    replies = [
        Rollout([0, 1], 1.0, tokens=[1], learned=[True]),
        Rollout([0, 1], 0.0, tokens=[0, 1], learned=[True, True]),
        Rollout([0, 1], 0.5, tokens=[1, 0, 0], learned=[True, False, True]),
    ]
    weights = [advantage / 5 for advantage in advantages([reply.reward for reply in replies])]
    model = TwoTokens()
    inputs, targets, token_weights = make_batch(list(zip(replies, weights)), pad=0)
    assert (targets >= 0).sum() == 5  # nothing of the prompts or the tool
    policy_loss(model, inputs, targets, token_weights).backward()
    # d log p(a) / d logits = onehot(a) − p, so the gradient is − Σ (r − mean r) (onehot(a) − p) / 5.
    p = torch.softmax(model.logits.detach(), 0)
    taken = [(0.5, 1), (-0.5, 0), (-0.5, 1), (0.0, 1), (0.0, 0)]
    expected = -sum(advantage * (torch.eye(2)[token] - p) for advantage, token in taken) / 5
    torch.testing.assert_close(model.logits.grad, expected)


@pytest.mark.parametrize("n, correct", [(1, 0), (4, 0), (4, 1), (5, 2), (6, 6)])
def test_pass_at_k_is_the_mean_over_all_choices_of_k_replies(n, correct):
    right = [i < correct for i in range(n)]
    for k in range(1, n + 1):
        assert pass_at_k(n, correct, k) == pytest.approx(mean(map(any, itertools.combinations(right, k))))


def test_tokens_of_the_calculator_are_not_learned_and_a_reward_must_be_finite():
    tokenizer = byte_tokenizer()
    special = tokenizer.special_tokens
    start, end, output_end = (special[f"<|{name}|>"] for name in ("python_start", "python_end", "output_end"))
    script = [start, *b"2+3", end, output_end, *b"ok"]
    engine = Engine(scripted_model({special["<|assistant_start|>"]: script}), tokenizer)
    engine.model.unembed = lambda hidden, sharp=engine.model.unembed: 9 * sharp(hidden)  # certain at temperature 1
    item = ChatItem("Hi", "ok", lambda text, answer: float(text == answer))
    ((reply, _),) = rl.write_replies(engine, [item], 2, RLSettings(max_tokens=20), [1])
    assert (reply.text, reply.reward) == ("ok", 1.0)
    written = [token for token, learned in zip(reply.tokens, reply.learned) if learned]
    assert written == [*script[:5], *b"ok", special["<|assistant_end|>"]]
    with pytest.raises(ValueError, match="reward: got nan"):
        rl.write_replies(engine, [ChatItem("Hi", "", lambda *_: math.nan)], 2, RLSettings(max_tokens=20), [1])


def test_a_batch_learns_what_the_model_wrote_alone():
    """Not the prompt, the tokens of a tool, or padding."""
    long = rl.Rollout([1, 2, 3], tokens=[4, 5, 6], learned=[True, False, True])
    short = rl.Rollout([7], tokens=[8], learned=[True])
    inputs, targets, weights = rl.make_batch([(long, 0.5), (short, -2.0)], pad=9)
    assert inputs.tolist() == [[1, 2, 3, 4, 5], [7, 9, 9, 9, 9]]
    assert targets.tolist() == [[-1, -1, 4, -1, 6], [8, -1, -1, -1, -1]]
    assert weights.tolist() == [[0.5] * 5, [-2.0] * 5]


def share_of_letters(text, answer):
    return mean([character.isascii() and character.isalpha() for character in text] or [0])


def letters_task(name, items):
    """A task that rewards letters: even random weights get some reward."""
    draw = lambda rng: ChatItem(rng.choice(["the cat", "a dog"]), "", share_of_letters)  # noqa: E731
    return RewardTask(name, draw, ChatTask(name, [ChatItem("the river", "", share_of_letters)] * items, 0.0))


NEVER = ChatItem("a dog", "", lambda text, answer: 0.0)


def letters_or_nothing(name, items):
    """Replies to `spelling` are all worth 0, so at most half of a step's replies have an advantage."""
    if name != "spelling":
        return letters_task(name, items)
    return RewardTask(name, lambda rng: NEVER, ChatTask(name, [NEVER] * items, 0.0))


def use_letters_or_nothing():
    chat_rl.open_task = letters_or_nothing


@pytest.fixture
def chat_base(base, monkeypatch):
    """The base folder, with a chat model `tiny` of random weights in it."""
    tokenizer = Tokenizer.load(base / "tokenizers" / "tiny")
    model = GPT(GPTConfig(64, tokenizer.vocab_size, n_layer=2, n_head=1, n_embd=64), seed=1)
    save_run(base / "runs" / "tiny", model, kind="chat", tokenizer=tokenizer, data="text")
    monkeypatch.setattr(chat_rl, "open_task", letters_task)
    return base


FLAGS = "--questions 4 --samples 4 --max-tokens 6 --eval-items 2 --eval-samples 4 --eval-every 0 --lr-scale 0.5"
FLAGS = [*FLAGS.split(), *"--base tiny --device cpu --dtype float32".split()]


def learn(*words):
    return chat_rl.main([*FLAGS, *map(str, words)])


def test_rewards_rise_and_the_run_is_a_chat_model(chat_base):
    assert learn("--num-iterations", 30, "--lr-scale", 3, "--samples", 8) == 0
    folder = chat_base / "runs" / "tiny-rl"
    rewards = [line["reward"] for line in trace(folder, "train")]
    assert mean(rewards[-5:]) > mean(rewards[:5]) + 0.2
    last = trace(folder, "eval")[-1]
    assert last["pass@1 addition"] <= last["pass@2 addition"] <= last["pass@4 addition"]
    assert last["val_error"] == 1 - last["pass@1 addition"]


def test_a_step_counts_the_tokens_of_the_replies_that_the_model_learned_from(chat_base, monkeypatch, capsys):
    """Not the padding, and not replies without advantage, which do not pass through the model again."""
    passed, forward = [], rl.policy_loss

    def spy(model, inputs, targets, weights):
        # A row is a prompt, a reply and padding with the document token, which the tiny model writes, too: count from
        # the replies themselves.
        passed.append(int((weights.abs().sum(1) > 0).sum()))
        return forward(model, inputs, targets, weights)

    written = []
    write = rl.write_replies

    def keep(*args):
        written.append(write(*args))
        return written[-1]

    monkeypatch.setattr(rl.Reinforcement, "loss", staticmethod(spy))
    monkeypatch.setattr(rl, "write_replies", keep)
    assert learn("--num-iterations", 2, "--eval-every", 0) == 0
    said = capsys.readouterr().out
    assert "2 steps × 4 questions × 4 replies, at most" in said
    steps, tokens, replies = written[:2], [], []
    for groups in steps:
        useful = [r for group in groups for r in group if r.reward != pytest.approx(mean(x.reward for x in group))]
        tokens.append(sum(len(r.prompt) + len(r.tokens) - 1 for r in useful))
        replies.append(len(useful))
    assert passed == replies
    lines = trace(chat_base / "runs" / "tiny-rl", "train")
    assert [line["tokens"] for line in lines] == [tokens[0], sum(tokens)]
    flops = Run.open(chat_base / "runs" / "tiny-rl").accounting.flops_per_token
    assert [line["flops"] for line in lines] == [tokens[0] * flops, sum(tokens) * flops]
    assert [line["useful_replies"] for line in lines] == [count / 16 for count in replies]


def test_a_stopped_run_resumes_bit_for_bit_and_a_finished_one_says_so(chat_base, interrupted, capsys):
    common = ["--num-iterations", 6, "--save-every", 2]
    assert learn(*common, "--run", "whole") == 0
    interrupted(3, *common, "--run", "parts", "--resume", "auto", main=learn)
    assert learn(*common, "--run", "parts", "--resume", "auto") == 0
    whole, parts = (chat_base / "runs" / name for name in ("whole", "parts"))
    assert bits(parts) == bits(whole)
    capsys.readouterr()
    assert learn(*common, "--run", "parts", "--resume", "auto") == 0
    assert capsys.readouterr().out == f"done already: {parts} has all 6 steps; --overwrite starts over\n"


def test_every_step_asks_other_questions(chat_base, monkeypatch):
    asked = []

    def numbered(name, items):
        def draw(rng):
            asked.append(rng.getrandbits(40))
            return ChatItem("a dog", "", share_of_letters)

        return RewardTask(name, draw, letters_task(name, items).held_out)

    monkeypatch.setattr(chat_rl, "open_task", numbered)
    assert learn("--num-iterations", 3, "--questions", 2) == 0
    assert len(set(asked)) == len(asked) == 1 + 6  # one for the plan, two in each of three steps


def test_two_tasks_are_asked_equally_often_and_the_error_is_the_mean_of_both(chat_base, monkeypatch):
    asked = []

    def open_task(name, items):
        task = letters_or_nothing(name, items)
        return replace(task, draw=lambda rng: asked.append(name) or task.draw(rng))

    monkeypatch.setattr(chat_rl, "open_task", open_task)
    assert learn("--tasks", "addition,spelling", "--num-iterations", 2) == 0
    assert Counter(asked) == {"addition": 1 + 2 * 2, "spelling": 1 + 2 * 2}  # one for the plan, two in each step
    folder = chat_base / "runs" / "tiny-rl"
    assert all(0 < line["useful_replies"] <= 0.5 for line in trace(folder, "train"))
    last = trace(folder, "eval")[-1]
    assert (last["pass@1 addition"] > 0, last["pass@1 spelling"]) == (True, 0)
    assert last["val_error"] == pytest.approx(1 - last["pass@1 addition"] / 2)


def test_micro_batches_learn_what_one_batch_learns(chat_base):
    for rows in (16, 4):
        assert learn("--num-iterations", 2, "--device-batch-size", rows, "--run", f"by{rows}") == 0
    whole, parts = (trace(chat_base / "runs" / f"by{rows}", "train") for rows in (16, 4))
    assert [line["tokens"] for line in parts] == [line["tokens"] for line in whole]
    for name in ("loss", "grad_norm", "reward"):
        assert [line[name] for line in parts] == pytest.approx([line[name] for line in whole], abs=1e-4), name


def test_replies_come_from_the_distribution_that_learns():
    tokenizer = byte_tokenizer()
    engine = Engine(scripted_model({tokenizer.special_tokens["<|assistant_start|>"]: b"a"}), tokenizer)
    shift = torch.full((tokenizer.vocab_size,), -30.0)
    shift[ord("a")], shift[ord("b")] = 0.0, -1.0
    engine.model.unembed = lambda hidden: shift.expand(*hidden.shape[:-1], -1)  # the same two tokens everywhere
    (group,) = rl.write_replies(engine, [ChatItem("Hi", "ok")], 400, RLSettings(max_tokens=8), [3])
    tokens = [token for reply in group for token in reply.tokens]
    share = tokens.count(ord("a")) / len(tokens)
    # At temperature 1 it is 1 / (1 + e^-1) = 0.731; at 0.8 it would be 0.777. The standard error is 0.008.
    assert share == pytest.approx(1 / (1 + math.exp(-1)), abs=0.025)


def test_two_ranks_share_the_questions_and_learn_the_same(chat_base, monkeypatch):
    monkeypatch.setattr(chat_rl, "open_task", letters_or_nothing)
    words = ["--tasks", "addition,spelling", "--num-iterations", 3]  # the second rank asks nothing but spelling
    assert learn(*words, "--run", "one") == 0
    words = [*FLAGS, *words, "--run", "two"]
    codes = run_training(2, words, chat_base, use_letters_or_nothing, script="chat_rl")
    assert [code for code, _ in codes] == [0, 0]
    one, two = (chat_base / "runs" / name for name in ("one", "two"))
    assert losses(two) == pytest.approx(losses(one), abs=1e-4)
    for name in ("reward", "useful_replies", "reply_tokens"):  # of the replies of both ranks
        found, expected = ([line[name] for line in trace(run, "train")] for run in (two, one))
        assert found == pytest.approx(expected), name


LONG = ChatItem("the cat " * 100, "", share_of_letters)


def long_or_short(name, items, long=0.5):
    """Questions of which this share does not fit the context."""
    short = letters_task(name, items)
    draw = lambda rng: LONG if rng.random() < long else short.draw(rng)  # noqa: E731
    held_out = [LONG if i < long * items else item for i, item in enumerate(short.held_out.items)]
    return RewardTask(name, draw, ChatTask(name, held_out, 0.0))


def test_questions_that_are_too_long_are_left_out(chat_base, monkeypatch, capsys):
    monkeypatch.setattr(chat_rl, "open_task", long_or_short)
    assert learn("--num-iterations", 3, "--run", "some") == 0
    assert "left out   1 of 2 held-out questions of addition, longer than the context" in capsys.readouterr().out
    monkeypatch.setattr(chat_rl, "open_task", lambda name, items: long_or_short(name, items, long=1.0))
    assert learn("--num-iterations", 3, "--run", "none") == 2
    assert "chat_rl: --tasks: got 'addition', none of whose questions fits" in capsys.readouterr().err
    assert not (chat_base / "runs" / "none").exists()


def test_a_run_says_that_no_reply_was_better_than_another(chat_base, monkeypatch, capsys):
    never = ChatItem("a dog", "", lambda text, answer: 0.0)
    task = RewardTask("addition", lambda rng: never, ChatTask("addition", [never], 0.0))
    for given, nothing in ((task, True), (letters_task("addition", 1), False)):
        monkeypatch.setattr(chat_rl, "open_task", lambda name, items, given=given: given)
        assert learn("--num-iterations", 1, "--overwrite") == 0
        assert ("the model has learned nothing" in capsys.readouterr().err) == nothing
