"""Centered scores, their means, the table."""

import json
import math

import pytest

from nanogka.evaluate.intervals import share_interval
from nanogka.evaluate.results import (
    PAPER_MEAN,
    PAPER_SCORES,
    PAPER_TASKS,
    TaskResult,
    format_table,
    mean_centered,
    write_json,
)


def result(name, correct=50, items=100, chance=0.25, **counts):
    return TaskResult(name, "multiple_choice", 0, chance, correct, items, 1.5, **counts)


def test_centered_score_and_standard_error():
    one = result("a", correct=62)
    assert one.accuracy == 0.62
    assert one.centered == pytest.approx((0.62 - 0.25) / 0.75)
    assert one.stderr == pytest.approx(math.sqrt(0.62 * 0.38 / 99))
    assert one.centered_stderr == pytest.approx(one.stderr / 0.75)
    assert result("a", correct=1, items=1).to_json()["stderr"] is None
    # 100 prompts about 25 items say as much as 25 items.
    clustered = result("a", correct=62, distinct=25)
    assert clustered.accuracy == 0.62
    assert clustered.stderr == pytest.approx(math.sqrt(0.62 * 0.38 / 24))
    assert clustered.to_json()["interval"] == [share_interval(0.62, 25).low, share_interval(0.62, 25).high]
    low, high = result("a", correct=300, items=300).to_json()["interval"]
    assert (round(low, 3), high) == (0.987, 1.0)  # not 1.0 ± 0.0
    assert result("a", correct=9, items=9, chance=1.0).to_json()["centered"] == 0  # all questions have one answer


def test_core_needs_every_task_and_ignores_others():
    results = [result("a", correct=40), result("b", correct=70), result("mine", correct=100)]
    assert mean_centered(results, ["a", "b"]) == pytest.approx((0.2 + 0.6) / 2)
    assert mean_centered(results, ["a", "b", "c"]) is None
    assert mean_centered(results, []) is None


def test_the_table_shows_scores_means_and_notes():
    results = [result(name) for name in PAPER_TASKS] + [result("mine", truncated=3, unscorable=1)]
    table = format_table(results, PAPER_TASKS)
    lines = [" ".join(line.split()) for line in table.splitlines()]
    assert "copa multiple_choice 0 0.5000 0.404 to 0.596 0.3333 0.250 100 1.5" in lines
    assert {"mean of the paper's six 0.3333", "CORE 0.3333"} <= set(lines)
    assert [line[:7] for line in lines[-2:]] == ["mine: 3", "mine: 1"]
    assert "CORE" not in format_table(results, (*PAPER_TASKS, "absent"))


def test_the_papers_means_are_those_of_its_scores():
    for column, of_paper in enumerate(PAPER_MEAN):
        scores = [pair[column] for pair in PAPER_SCORES.values()]
        assert len(scores) == 6
        assert round(sum(scores) / 6, 4) == of_paper


def test_a_results_file_has_lists_of_numbers_in_one_line_and_keeps_texts(tmp_path):
    document = {"nats": [1.5, -2e-7, 3], "names": ["[\n 1,\n 2\n]", "[1, 2]"], "none": [], "mixed": [1, None, "2"]}
    write_json(tmp_path / "file.json", document)
    text = (tmp_path / "file.json").read_text()
    assert json.loads(text) == document
    assert '"nats": [1.5,-2e-07,3],' in text
    with pytest.raises(ValueError, match="not JSON compliant"):  # readers of JSON know no NaN
        write_json(tmp_path / "file.json", {"bpb": math.nan})
    assert (tmp_path / "file.json").read_text() == text
