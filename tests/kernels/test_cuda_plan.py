"""A training step as Inductor plans it for an H100: one graph, few bytes kept for the backward pass, few launches."""

import pytest

from nanogka.model import GPTConfig, activation_bytes

pytest.importorskip("triton")

# Per mixer: GB that forward keeps at depth 20 with 32 rows of 2048, and launches per layer, forward and backward.
# The plan of today has 38.0, 48.6 and 53.4 (from depths 1 and 3), and 33, 45 and 50.
MOST = {"gaussian": (38.5, 36), "successor": (49.5, 49), "dot_product": (54.5, 54)}


def test_a_step_is_one_graph_that_keeps_and_launches_little(json_lines):
    plans = json_lines("cuda_plan.py", ",".join(MOST), "1,3")
    for (mixer, (kept, launches)), one, three in zip(MOST.items(), plans[::2], plans[1::2], strict=True):
        per_layer = {name: (three[name] - one[name]) / 2 for name in three if name != "mixer"}
        assert three["graphs"] == 2, mixer  # forward and backward, compiled once
        at_20 = one["kept"] + 19 * per_layer["kept"]
        assert at_20 <= kept * 1e9, (mixer, per_layer)
        assert activation_bytes(GPTConfig.from_depth(20, mixer), 32 * 2048, 2) == pytest.approx(at_20, rel=0.1)
        assert per_layer["launches"] <= launches, (mixer, per_layer)
        assert per_layer["gaussian_attention"] == per_layer["gaussian_attention_backward"] == 1
