"""The computed time of a step against runs that nanochat published, on 8 H100s in bfloat16 with FlashAttention-3."""

import pytest

from nanogka.common.runtime import PEAKS, Hardware
from nanogka.model import GPTConfig
from nanogka.train.roofline import LOSS_PASSES, attention_flops, step_time

H100 = Hardware("H100", *PEAKS["H100"])
TOKENS = 65536  # of one GPU and step
# Bytes of nanochat's element-wise kernels at depth 20 and width 1280, and of its loss, counted in Inductor's plan.
NANOCHAT, NANOCHAT_LOSS = 265e9, 21e9


@pytest.mark.parametrize("depth, seconds, tolerance", [
    (24, 2**19 / 800e3, 0.01),  # the first entry of its leaderboard, to which the rates were fitted
    (26, 2**19 / 630e3, 0.05),  # a run of its log
])  # fmt: skip
def test_published_steps_come_out(depth, seconds, tolerance):
    config = GPTConfig.from_depth(depth, "dot_product", sequence_len=2048, vocab_size=32768)
    moved = NANOCHAT * (depth * config.n_embd) / (20 * 1280) + NANOCHAT_LOSS - LOSS_PASSES * 2 * TOKENS * 32768
    assert step_time(config, H100, TOKENS, moved=moved).total == pytest.approx(seconds, rel=tolerance)


def test_attention_counts_the_visible_pairs():
    config = GPTConfig.from_depth(2, "gaussian", sequence_len=8, vocab_size=300, window_pattern="SL")
    pairs = (1 + 2 + 3 + 4 + 5 * 4) + 8 * 9 / 2  # a window of 4 earlier positions, and none
    assert attention_flops(config, 16) == 2 * 4 * config.n_embd * pairs


def test_unknown_hardware_and_mixers_have_no_time():
    config = GPTConfig.from_depth(2, "gaussian", sequence_len=64, vocab_size=300)
    assert step_time(config, Hardware("a CPU"), 1024) is None
    assert step_time(GPTConfig.from_depth(2, "mixture", sequence_len=64, vocab_size=300), H100, 1024) is None
    assert step_time(config, H100, 1024, devices=8).total < step_time(config, H100, 8 * 1024).total
