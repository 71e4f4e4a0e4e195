"""docs/evaluation.md: its task of one's own is one."""

import re
from pathlib import Path

from evaluate_fakes import FakeModel, FakeTokenizer

from nanogka.evaluate import evaluate_task, open_bundle

PAGE = Path(__file__).parents[2] / "docs" / "evaluation.md"


def test_the_example_of_a_task_of_ones_own_runs(tmp_path):
    blocks = dict(re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
    assert blocks["yaml"].count("\n") == 5
    (tmp_path / "eval_data").mkdir()
    (tmp_path / "eval_data" / "capitals.jsonl").write_text(blocks["jsonl"])
    (tmp_path / "core.yaml").write_text(blocks["yaml"])
    data = open_bundle(tmp_path).load("capitals")
    result, predictions = evaluate_task(FakeModel(), FakeTokenizer(), data)
    assert (result.items, result.unscorable, result.chance) == (3, 0, 1 / 3)
    assert {len(prediction.losses) for prediction in predictions} == {3}
