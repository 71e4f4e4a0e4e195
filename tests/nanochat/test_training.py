"""Network, optimizer, schedules and reinforcement learning are nanochat's (July 2026)."""

import ast
import math
from types import SimpleNamespace

import pytest
import torch

from nanogka.model import GPTConfig, model_costs
from nanogka.train.budget import plan_budget
from nanogka.train.optimizer import Schedule, build_optimizers
from nanogka.train.rl import Rollout, advantages, make_batch, policy_loss
from nanogka.train.settings import TrainSettings


def defines(*names):
    """True for the definitions of functions with these names."""
    return lambda node: isinstance(node, ast.FunctionDef) and node.name in names


def relative(ours, theirs) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def random_ids(rows=2, length=512):
    ids = torch.randint(0, 320, (rows, length + 1), generator=torch.Generator().manual_seed(1))
    return ids[:, :-1], ids[:, 1:]


def test_logits_loss_and_gradients(networks):
    ours, theirs, same = networks
    inputs, targets = random_ids()
    targets = targets.masked_fill(torch.arange(512) % 7 == 0, -1)
    difference = (ours(inputs) - theirs(inputs)).abs().max().item()
    losses = ours(inputs, targets), theirs(inputs, targets)
    for loss in losses:
        loss.backward()
    gradients = {name: relative(mine.grad, its.grad) for name, (mine, its) in same.items()}
    print(f"logits {difference:.1e}, gradients {max(gradients.values()):.1e}")
    assert difference < 1e-4
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-6)
    assert max(gradients.values()) < 5e-5, gradients


def test_costs(networks):
    ours, theirs, _ = networks
    costs, counts = model_costs(ours.config), theirs.num_scaling_params()
    assert costs.flops_per_token == theirs.estimate_flops()
    assert costs.total_parameters == counts["total"]
    assert costs.scaling_parameters == counts["lm_head"] + counts["transformer_matrices"]
    assert [window or 512 for window in ours.config.windows()] == [window for window, _ in theirs.window_sizes]


@pytest.mark.parametrize("N", [60, 1000])
def test_schedules(nanochat, N):
    settings = TrainSettings(network="july")
    schedule = Schedule.of(settings, N, "july")
    args = SimpleNamespace(warmup_steps=40, warmdown_ratio=0.65, final_lr_frac=0.05)
    wanted = defines("get_lr_multiplier", "get_muon_momentum", "get_weight_decay")
    theirs = nanochat.run("base_train.py", wanted, args=args, num_iterations=N, weight_decay_scaled=1.0, math=math)
    for step in range(N):
        assert schedule.lr_scale(step) == pytest.approx(theirs["get_lr_multiplier"](step), abs=1e-12)
        assert schedule.momentum(step) == pytest.approx(theirs["get_muon_momentum"](step), abs=1e-12)
        assert schedule.weight_decay_scale(step) == pytest.approx(theirs["get_weight_decay"](step), abs=1e-12)


def test_twenty_steps_of_the_optimizer(nanochat, networks):
    ours, theirs, same = networks
    steps, batch = 20, 2**14
    settings = TrainSettings(network="july")
    budget = plan_budget(ours.config, total_batch_size=batch)
    schedule = Schedule.of(settings, steps, "july")
    optimizers = build_optimizers(ours, settings, budget, torch.float32)
    # nanochat scales its rates by √(batch / 2^19), and the decay by this and the tokens of depth 12 over the run's.
    scale = math.sqrt(batch / 2**19)
    with torch.device("meta"):
        depth_12 = nanochat.gpt.GPT(nanochat.gpt.GPTConfig(512, 320, 12, 6, 6, 768)).num_scaling_params()
    counts = theirs.num_scaling_params()
    share = (depth_12["transformer_matrices"] + depth_12["lm_head"]) / (
        counts["transformer_matrices"] + counts["lm_head"]
    )
    decay = 0.28 * scale * share
    rates = {"unembedding_lr": 0.008, "embedding_lr": 0.3, "scalar_lr": 0.5, "matrix_lr": 0.02}
    optimizer = theirs.setup_optimizer(weight_decay=decay, **{name: rate * scale for name, rate in rates.items()})
    generator = torch.Generator().manual_seed(7)
    for step in range(steps):
        for mine, its in same.values():
            mine.grad = torch.randn(mine.shape, generator=generator) * 0.01
            its.grad = mine.grad.clone()
        schedule.apply(optimizers, step)
        for one in optimizers:
            one.step()
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * schedule.lr_scale(step)
            if group["kind"] == "muon":
                group["momentum"] = schedule.momentum(step)
                group["weight_decay"] = decay * schedule.weight_decay_scale(step)
        optimizer.step()
    differences = {name: relative(mine.detach(), its.detach()) for name, (mine, its) in same.items()}
    print(f"weights {max(differences.values()):.1e}")
    assert max(differences.values()) < 3e-4, differences


def test_the_batch_of_a_depth(nanochat):
    for depth in (6, 12, 20, 26):
        config = GPTConfig.from_depth(depth, "dot_product", network="july")
        scaling = []
        for other in (config, GPTConfig.from_depth(12, "dot_product", network="july")):
            with torch.device("meta"):
                shape = (2048, 32768, other.n_layer, other.n_head, other.n_head, other.n_embd)
                counts = nanochat.gpt.GPT(nanochat.gpt.GPTConfig(*shape)).num_scaling_params()
            scaling.append(counts["transformer_matrices"] + counts["lm_head"])
        wanted = 2 ** round(math.log2(2**19 * (scaling[0] / scaling[1]) ** 0.383))
        assert plan_budget(config).total_batch_size == wanted


def test_advantages_and_the_gradient_of_rewards(nanochat, networks):
    """As shipped we divide by the tokens of the step, nanochat by those of each question and their number."""
    ours, theirs, same = networks
    generator = torch.Generator().manual_seed(2)
    draw = lambda count: torch.randint(0, 256, (count,), generator=generator).tolist()  # noqa: E731
    rewards = [[1.0, 0.0, 0.0, 0.5], [0.0, 1.0, 1.0, 1.0]]
    prompts = [draw(9), draw(14)]
    written = [[draw(length) for length in lengths] for lengths in ((3, 8, 5, 1), (6, 2, 9, 4))]
    given = iter(zip(prompts, written, rewards))

    # nanochat: its batch of each question, then its loop over the passes of a batch
    class Rollouts:
        def generate_batch(self, tokens, num_samples, **options):
            replies = self.replies
            return [tokens + r for r in replies], [[0] * len(tokens) + [1] * len(r) for r in replies]

    rollouts, scores = Rollouts(), []
    tokenizer = SimpleNamespace(encode_special=lambda name: 0, render_for_completion=lambda c: c, decode=lambda ids: "")

    class Questions(list):
        def reward(self, conversation, text):
            return scores.pop(0)

    import itertools

    args = SimpleNamespace(num_samples=4, device_batch_size=4, max_new_tokens=9, temperature=1.0, top_k=50)
    state = {
        "model": theirs,
        "tokenizer": tokenizer,
        "engine": rollouts,
        "args": args,
        "torch": torch,
        "itertools": itertools,
        "step": 0,
    }
    state |= {
        "ddp_rank": 0,
        "ddp_world_size": 1,
        "device": "cpu",
        "train_task": Questions(prompts),
        "print0": lambda *_: None,
    }
    batches = nanochat.run("chat_rl.py", defines("get_batch"), **state)["get_batch"]()
    in_passes = lambda node: isinstance(node, ast.For) and getattr(node.target, "id", "") == "pass_idx"  # noqa: E731
    replies, their_advantages, valid = [], [], []
    for prompt, texts, values in given:
        rollouts.replies = texts
        scores[:] = values
        _, inputs, targets, its_rewards, its_advantages = next(batches)
        batch = {
            "inputs_all": inputs,
            "targets_all": targets,
            "rewards_all": its_rewards,
            "advantages_all": its_advantages,
        }
        more = {"num_passes": 1, "examples_per_rank": 2, "num_steps": 1, "example_step": 0}
        nanochat.run("chat_rl.py", in_passes, **(state | batch | more))
        their_advantages += its_advantages.tolist()
        replies += [Rollout(prompt, v, tokens=t, learned=[True] * len(t)) for t, v in zip(texts, values)]
        valid += [int((targets >= 0).sum())] * 4

    own = [a for values in rewards for a in advantages(values)]
    assert own == pytest.approx(their_advantages, abs=1e-7)
    tokens = sum(len(reply.tokens) for reply in replies)
    gradients = []
    for weights in ([a / (2 * n) for a, n in zip(own, valid)], [a / tokens for a in own]):
        ours.zero_grad()
        policy_loss(ours, *make_batch(list(zip(replies, weights)), pad=0)).backward()
        gradients.append(torch.cat([mine.grad.flatten() for mine, _ in same.values()]))
    its = torch.cat([other.grad.flatten() for _, other in same.values()])
    cosine = torch.cosine_similarity(gradients[1], its, dim=0).item()
    print(f"gradient with its weights {relative(gradients[0], its):.1e}, as shipped {relative(gradients[1], its):.1e}")
    assert relative(gradients[0], its) < 1e-5
    assert cosine > 0.95
