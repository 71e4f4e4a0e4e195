"""The walks of `scripts.trace`: what they pass through, and the numbers of files and lines that a reader meets."""

import pytest

from scripts import trace

# (files, lines) at most. A change that adds to a walk must say here why it is worth a longer way for every reader:
# * the backward pass of norm and rotation that saves memory traffic on a CPU: 24 lines in `step` and `resume`;
# * a trial write of a checkpoint before training starts: 25 lines in `resume`;
# * file systems without locks or fsync: 18 lines there; nanochat's flags: 15; the estimate of time and memory: 11.
BUDGETS = {
    "step": (18, 300),
    "forward": (7, 175),
    "reply": (20, 530),
    "request": (27, 760),
    "core": (12, 240),
    "resume": (46, 1460),
}
# Functions that a walk must pass, so that an empty or cut walk is no success.
LANDMARKS = {
    "step": ("forward_backward", "orthogonalize", "log_step"),
    "forward": ("GPT.forward", "SuccessorMixer.attention_inputs", "capped_cross_entropy"),
    "reply": ("Model.chat", "ToolCalls.push"),
    "request": ("read_request", "Scheduler._step", "ToolCalls.push", "Answer.chunks"),
    "core": ("evaluate_task", "score_candidates"),
    "resume": ("main.<locals>.parse_and_run", "train_run"),
}


@pytest.mark.slow  # it measures style
@pytest.mark.parametrize("name", BUDGETS)
def test_a_walk_stays_within_its_budget(name, capsys, monkeypatch, tmp_path):
    if name == "request":
        pytest.importorskip("uvicorn")
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(tmp_path))
    walk = trace.WALKS[name]()
    functions = {line.function for line in walk.lines.values()}
    for landmark in LANDMARKS[name]:
        assert any(one.endswith(landmark.rpartition(".")[2]) for one in functions), landmark
    files, lines = BUDGETS[name]
    assert len(walk.files) <= files
    assert len(walk.lines) <= lines


def test_the_page_shows_the_lines_in_order_with_shapes(tmp_path, capsys):
    path = tmp_path / "forward.html"
    assert trace.main(["forward", "--out", str(path)]) == 0
    page = path.read_text(encoding="utf-8")
    assert "q (2, 32, 1, 128) float32" in page
    assert (
        page.index("GPT.forward") < page.index("SuccessorMixer.attention_inputs") < page.index("capped_cross_entropy")
    )
