"""Reinforcement learning of a chat model on questions whose replies can be judged. docs/rl.md explains why it works.

A simplified GRPO (Shao et al., 2024, section 4.1), as in nanochat. For each question the model writes several replies,
and each gets a reward. The advantage of a reply is its reward minus the mean reward of the question's replies, and the
loss is

    − Σ advantage · log p(token | what precedes it) / number of tokens,

over all tokens that the model has written. There is no reference model, and no ratio to clip, because each batch is
written by the weights that learn from it.

Shapes: B replies, T positions.
"""

import math
import random
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from nanogka.common.cli import flag
from nanogka.common.distributed import Ranks
from nanogka.common.formatting import say, shorten
from nanogka.data.conversation import TEXT, ChatFormat, Conversation
from nanogka.data.loader import Batch
from nanogka.evaluate.chat import ChatItem, ChatTask
from nanogka.generate.continuous import Request
from nanogka.generate.engine import Engine
from nanogka.generate.prompt import prompt_of, request_of
from nanogka.generate.settings import SamplingParams
from nanogka.model import GPT
from nanogka.runs import EXAMPLES, SavedRun
from nanogka.tokenizer import Tokenizer
from nanogka.train.base import BaseSettings, base_facts, examples_text, name_run, promise_facts
from nanogka.train.budget import plan_budget
from nanogka.train.plan import About, TrainPlan, make_plan
from nanogka.train.run import Recipe
from nanogka.train.trainer import Evaluation


@dataclass(frozen=True)
class RLSettings(BaseSettings):
    """Questions and replies."""

    tasks: str = flag("addition", "tasks to learn, separated by commas: embedded skills, gsm8k", affects="losses")
    run: str = flag("", "name of the run's folder (default: <base>-rl)", affects="output")
    questions: int = flag(32, "questions per step, over all devices", ge=1, affects="losses")
    samples: int = flag(8, "replies to each question", ge=2, affects="losses")
    max_tokens: int = flag(64, "maximum tokens per reply, without results of the calculator", ge=1, affects="losses")
    calculator: bool = flag(True, "answer the model's tool calls", affects="losses")
    num_iterations: int = flag(100, "number of steps", ge=1, affects="losses")
    device_batch_size: int | None = flag(
        None, "replies per device and micro-batch (default: up to 32)", ge=1, affects="speed"
    )
    lr_scale: float = flag(
        0.3,
        "factor of all learning rates: smaller than in fine-tuning, because rewards are noisy",
        ge=0,
        affects="losses",
    )
    weight_decay: float = flag(0.0, "weight decay of the matrices", ge=0, affects="losses")
    warmdown_ratio: float = flag(
        1.0, "fraction of the steps, at the end, with falling learning rates", ge=0, le=1, affects="losses"
    )
    final_lr_frac: float = flag(
        0.0, "final learning rates, as a fraction of their maximum", ge=0, le=1, affects="losses"
    )
    eval_every: int = flag(20, "steps between measurements of pass@k; 0: only at the end", ge=0, affects="output")
    eval_items: int = flag(64, "held-out questions of each task to measure", ge=1, affects="output")
    eval_samples: int = flag(8, "replies to each of them", ge=1, affects="output")


DRAWS = 1000  # in a row that may be longer than the context, before a task counts as one without usable questions


@dataclass(frozen=True)
class RewardTask:
    """Questions to learn from, drawn at random, and held-out questions."""

    name: str
    draw: Callable[[random.Random], ChatItem]
    held_out: ChatTask

    def draw_fitting(self, rng: random.Random, fits: Callable[[ChatItem], bool]) -> ChatItem:
        """Draw questions until one fits. Raises ValueError if none of many does."""
        for _ in range(DRAWS):
            if fits(item := self.draw(rng)):
                return item
        raise ValueError(f"tasks: got {self.name!r}, none of whose questions fits the model's context")

    def fitting(self, fits: Callable[[ChatItem], bool]) -> "RewardTask":
        """The task with only those held-out questions that fit. Raises ValueError if none of the questions does."""
        self.draw_fitting(random.Random(0), fits)
        items = [item for item in self.held_out.items if fits(item)]
        if not items:
            raise ValueError(f"tasks: got {self.name!r}, none of whose held-out questions fits the model's context")
        return replace(self, held_out=replace(self.held_out, items=items))


def question_fits(tokenizer: Tokenizer, context: int) -> Callable[[ChatItem], bool]:
    """Return a function that says whether the prompt of a question leaves room for at least one token of a reply."""
    template = ChatFormat(tokenizer)
    return lambda item: len(template.render_prompt(Conversation.of(item.prompt))) < context


@dataclass
class Rollout:
    """A reply that the policy sampled, and its reward. `learned` is False for tokens that a tool wrote."""

    prompt: list[int]
    reward: float = 0.0
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    learned: list[bool] = field(default_factory=list)


# ---- replies and what they are worth ----


def write_replies(
    engine: Engine, items: Sequence[ChatItem], samples: int, settings: RLSettings, seeds: Sequence[int]
) -> list[list[Rollout]]:
    """Write `samples` replies to each question and judge them. Raises ValueError if a reward is not finite.

    The replies to a question depend on the weights and its seed, not on the other questions.
    """
    options = {"max_tokens": settings.max_tokens, "n": samples, "calculator": settings.calculator}
    replies: dict[Request, list[Rollout]] = {}
    for item, seed in zip(items, seeds, strict=True):
        prompt = prompt_of(engine.tokenizer, Conversation.of(item.prompt))
        # Temperature 1 and no top-k: the policy gradient holds for replies from the model's own distribution.
        request = request_of([prompt], SamplingParams(temperature=1, seed=seed), **options)
        replies[request] = [Rollout(list(prompt.ids)) for _ in range(samples)]
    for step in engine.steps(list(replies)):
        for request, output in step:
            reply = replies[request][output.sample]
            reply.tokens.append(output.token)
            reply.learned.append(not output.forced)
            reply.text += output.text if output.part == TEXT else ""
    for item, group in zip(items, replies.values()):
        for reply in group:
            reply.reward = float(item.judge(reply.text, item.answer))
            if not math.isfinite(reply.reward):
                reply_text = shorten(repr(reply.text))
                raise ValueError(f"reward: got {reply.reward} for {reply_text}, expected a finite number")
    return list(replies.values())


def advantages(rewards: Sequence[float]) -> list[float]:
    """Return each reward minus the mean of all replies to the question.

    The mean is the baseline of the policy gradient. It changes no expectation, but the noise that all replies to an
    easy or hard question have in common cancels. As in nanochat the result is not divided by the standard deviation,
    which would give questions with almost equal rewards the same weight as the others.
    """
    mean = sum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Estimate without bias the probability that one of k replies is right, from n replies (Chen et al., 2021)."""
    return 1 - math.comb(n - correct, k) / math.comb(n, k)


def policy_loss(model: Callable[..., Tensor], inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """Return the loss of replies: Σ weight · −log p(token).

    `inputs` and `targets` (B, T) are ids; a target is −1 where nothing is learned. `weights` (B, T) are float32.
    """
    return (model(inputs, targets, reduction="none").view_as(weights) * weights).sum()


def make_batch(replies: Sequence[tuple[Rollout, float]], pad: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return inputs, targets and weights for `policy_loss`, from replies and the weight of each one's tokens."""
    longest = max(len(reply.prompt) + len(reply.tokens) for reply, _ in replies) - 1
    shape = len(replies), longest
    inputs, targets, weights = torch.full(shape, pad), torch.full(shape, -1), torch.zeros(shape)
    for row, (reply, weight) in enumerate(replies):
        ids = torch.tensor(reply.prompt + reply.tokens)
        learned = torch.tensor([False] * (len(reply.prompt) - 1) + reply.learned)
        inputs[row, : len(ids) - 1] = ids[:-1]
        targets[row, : len(ids) - 1] = torch.where(learned, ids[1:], -1)
        weights[row] = weight
    return inputs, targets, weights


class ReplyLoader(AbstractContextManager):
    """An endless iterator over batches of replies that the current weights write.

    The seed and the number of a step decide its questions, so a checkpoint needs only this number.
    """

    def __init__(
        self, tasks: Sequence[RewardTask], plan: TrainPlan[RLSettings], model: GPT, state: dict | None
    ) -> None:
        self.tasks, self.plan, self.engine = tasks, plan, Engine(model, plan.own_tokenizer)
        self.fits = question_fits(plan.own_tokenizer, plan.config.sequence_len)
        self.step = state["step"] if state else 0
        self.learned = self.step > 0  # earlier steps may have
        self.data_wait = 0.0
        self.progress: dict[str, float] = {}
        self._batches: list[Batch] = []

    def __exit__(self, *exception: object) -> None:
        """Warn if no step had anything to learn from."""
        if self.step and not self.learned and self.plan.machine.ranks.is_main:
            say(
                "WARNING: all replies to each question earned the same reward, so the model has learned nothing. "
                "Choose other --tasks, raise --samples, or start from a model that answers some of the questions"
            )

    def __next__(self) -> Batch:
        start = time.perf_counter()
        if not self._batches:
            self._batches = self._next_step()
        self.data_wait += time.perf_counter() - start
        return self._batches.pop(0)

    @staticmethod
    def merge(states: Sequence[dict]) -> dict:
        """All ranks have the same state."""
        return states[0]

    def _next_step(self) -> list[Batch]:
        plan, settings, ranks, tasks = self.plan, self.plan.settings, self.plan.machine.ranks, self.tasks
        self.step += 1
        # All ranks draw the same questions, and each replies to its own share.
        rng = random.Random(f"{settings.seed} {self.step}")
        turns = [tasks[i % len(tasks)] for i in range(settings.questions)]
        drawn = [(task.draw_fitting(rng, self.fits), rng.getrandbits(59)) for task in turns]
        items, seeds = zip(*drawn[ranks.rank :: ranks.world_size])
        groups = write_replies(self.engine, items, settings.samples, settings, seeds)

        rewards = [reply.reward for group in groups for reply in group]
        advantage = [value for group in groups for value in advantages([reply.reward for reply in group])]
        replies = [reply for group in groups for reply in group]
        # A reply without advantage adds nothing to the gradient, so it need not pass through the model again.
        passing = sum(len(one.prompt) + len(one.tokens) - 1 for one, value in zip(replies, advantage) if value != 0)
        useful = sum(value != 0 for value in advantage)
        counts = [sum(rewards), len(rewards), sum(sum(reply.learned) for reply in replies), passing, useful]
        reward, count, tokens, passing, useful = ranks.sum([float(count) for count in counts], plan.machine.device)
        self.learned |= passing > 0
        # Gradients are averaged over ranks: with the mean number of tokens the update is that of all replies together.
        per_rank = tokens / ranks.world_size
        weighted = [(reply, value / per_rank) for reply, value in zip(replies, advantage)]
        rows = [row for row in weighted if row[1] != 0]
        self.progress = {"reward": reward / count, "reply_tokens": tokens / count, "useful_replies": useful / count}
        micro_batches = plan.batch.accumulation
        parts = [rows[i::micro_batches] or [(weighted[0][0], 0.0)] for i in range(micro_batches)]
        # The tokens of the step count with its first batch. The loop divides by the number of micro-batches, but the
        # weights are those of the whole step.
        shares = [int(passing), *[0] * (micro_batches - 1)]
        batches = []
        for part, share in zip(parts, shares):
            inputs, targets, weights = make_batch(part, self.engine.tokenizer.bos_id)
            state = {"step": self.step}
            batch = Batch(inputs, targets, state, float(micro_batches), token_weights=weights, tokens=share)
            batches.append(batch)
        return batches


def measure_pass_at_k(plan: TrainPlan[RLSettings], tasks: Sequence[RewardTask]) -> Callable[[GPT], dict[str, float]]:
    """Return a function that measures pass@k on held-out questions, shared by the ranks, for powers of 2."""
    ranks, settings = plan.machine.ranks, plan.settings
    ks = [2**i for i in range(settings.eval_samples.bit_length())]

    def evaluate(model: GPT) -> dict[str, float]:
        engine, values = Engine(model, plan.own_tokenizer), {}
        for task in tasks:
            seeds = range(len(task.held_out.items))[ranks.rank :: ranks.world_size]
            items = [task.held_out.items[i] for i in seeds]
            groups = write_replies(engine, items, settings.eval_samples, settings, seeds) if items else []
            right = [sum(reply.reward > 0 for reply in group) for group in groups]
            sums = [float(sum(pass_at_k(settings.eval_samples, count, k) for count in right)) for k in ks]
            *sums, total = ranks.sum([*sums, float(len(groups))], plan.machine.device)
            values |= {f"pass@{k} {task.name}": value / total for k, value in zip(ks, sums)}
        firsts = [value for name, value in values.items() if name.startswith("pass@1 ")]
        return values | {"val_error": 1 - sum(firsts) / len(firsts)}

    return evaluate


# ---- the run ----


def plan_rl(
    settings: RLSettings, base: SavedRun, tasks: Sequence[RewardTask], ranks: Ranks
) -> tuple[TrainPlan, Recipe]:
    """Check the settings against model, machine and folder, before anything is created.

    Questions that are longer than the context are left out, here and when questions are drawn.
    """
    config, template = base.gpt_config, ChatFormat(base.tokenizer)
    fits, held_out = question_fits(base.tokenizer, config.sequence_len), [len(task.held_out.items) for task in tasks]
    tasks = [task.fitting(fits) for task in tasks]
    missing = [(task, count - len(task.held_out.items), count) for task, count in zip(tasks, held_out)]
    notes = tuple(
        f"left out   {left} of {count} held-out questions of {task.name}, longer than the context"
        for task, left, count in missing
        if left
    )
    prompts = [template.render_prompt(Conversation.of(item.prompt)) for task in tasks for item in task.held_out.items]
    row_len = min(config.sequence_len, max(map(len, prompts)) + settings.max_tokens)
    if settings.questions % ranks.world_size:
        expected = f"a multiple of {ranks.world_size}, the number of devices"
        raise ValueError(f"questions: got {settings.questions}, expected {expected}")
    rows = settings.questions * settings.samples
    budget = plan_budget(config, num_iterations=settings.num_iterations, total_batch_size=rows * row_len)
    settings, name = name_run(settings, base, "rl")
    horizon = (
        f"{settings.num_iterations:,} steps × {settings.questions} questions × {settings.samples} replies, "
        f"at most {settings.max_tokens} tokens each"
    )
    about = About(
        kind="chat",
        monitor="val_error",
        facts={"base": base_facts(base)} | promise_facts([base.promise]),
        data="questions of " + ", ".join(task.name for task in tasks),
        horizon=horizon,
        notes=notes,
        fixed_tokens=False,
    )
    # Replies have every length: the compiler would start over at each.
    plan = make_plan(settings, config, base.tokenizer, budget, row_len, name, ranks, about, compile=None)
    return plan, Reinforcement(base, tasks)


@dataclass(frozen=True)
class Reinforcement(Recipe):
    """Learn from rewards."""

    start: SavedRun
    tasks: Sequence[RewardTask]
    loss = staticmethod(policy_loss)

    @property
    def base(self) -> Path:
        return self.start.checkpoint_folder

    def loader(self, plan: TrainPlan[RLSettings], model: GPT, state: dict | None) -> ReplyLoader:
        return ReplyLoader(self.tasks, plan, model, state)

    def evaluations(self, plan: TrainPlan[RLSettings]) -> list[Evaluation]:
        return [Evaluation(plan.settings.eval_every, measure_pass_at_k(plan, self.tasks))]

    def files(self) -> dict[str, str]:
        return {EXAMPLES: examples_text([task.held_out.items[0].prompt for task in self.tasks])}

    def next_steps(self, run: str) -> list[str]:
        return [f"evaluate: python -m scripts.chat_eval --run {run}"]
