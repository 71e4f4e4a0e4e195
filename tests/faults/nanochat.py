"""Faults that the comparison with a checkout of nanochat must catch; not judged without `NANOCHAT_DIR`."""

from mutate import of

MUTANTS = [
    *of(
        "nanogka/model/gpt.py",
        "tests/nanochat/test_training.py",
        ("else x - self.backout_lambda.to(x.dtype) * middle", "else x", "test_logits_loss_and_gradients"),
    ),
    *of(
        "nanogka/model/config.py",
        "tests/nanochat/test_training.py",
        ("short = -(-T // 512) * 128 if", "short = T // 512 * 64 if", "test_costs"),
    ),
    *of(
        "nanogka/train/optimizer.py",
        "tests/nanochat/test_training.py",
        ("rate = lr * max(1.0, rows / columns) ** 0.5", "rate = lr", "test_twenty_steps_of_the_optimizer"),
        ("min(step / rise, 1)", "min(step / rise, 2)", "test_schedules"),
    ),
    *of(
        "nanogka/train/budget.py",
        "tests/nanochat/test_training.py",
        ("BATCH_EXPONENT = 0.383", "BATCH_EXPONENT = 0.5", "test_the_batch_of_a_depth"),
    ),
    *of(
        "nanogka/train/rl.py",
        "tests/nanochat/test_training.py",
        (
            "mean = sum(rewards) / len(rewards)",
            "mean = max(rewards) / 2",
            "test_advantages_and_the_gradient_of_rewards",
        ),
    ),
    *of(
        "nanogka/data/conversation.py",
        "tests/nanochat/test_using.py",
        ("[kind != OUTPUT] * len(own)", "[True] * len(own)", "test_rendering_and_the_loss_mask_of_conversations"),
    ),
    *of(
        "nanogka/generate/sampling.py",
        "tests/nanochat/test_using.py",
        ("keepdim=True)) / params.temperature", "keepdim=True))", "test_probabilities_of_the_next_token"),
    ),
    *of(
        "nanogka/evaluate/task.py",
        "tests/nanochat/test_using.py",
        ("SHUFFLE_SEED = 1337", "SHUFFLE_SEED = 1338", "test_items_of_core"),
    ),
    *of(
        "nanogka/evaluate/bpb.py",
        "tests/nanochat/test_using.py",
        ("(math.log(2) * self.bytes)", "(2 * self.bytes)", "test_bits_per_byte"),
    ),
]
