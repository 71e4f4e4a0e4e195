"""The report's part on conversations says what the chat run's folder says, and how to get what is missing."""

import json
import runpy
from pathlib import Path

import pytest
import yaml

from nanogka.plots.chat import base_of, chat_section, find_chat_run
from nanogka.plots.runs import load_run

write_run = runpy.run_path(str(Path(__file__).with_name("run_fakes.py")))["write_run"]


@pytest.fixture
def base(tmp_path):
    return load_run(write_run(tmp_path / "d2-gaussian"))


def write_chat(folder, of="d2-gaussian", evaluation=None):
    write_run(folder, facts={"kind": "chat", "base": {"run": of, "step": 5, "data": "text"}}, settings={"data": "talk"})
    losses = [{"kind": "eval", "step": step, "val_loss": loss} for step, loss in ((0, 9), (5, 0.5))]
    lines = [line for line in load_run(folder).lines if line["kind"] != "eval"] + losses
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if evaluation is not None:
        (folder / "chat_evaluation.json").write_text(json.dumps(evaluation))
    return folder


def evaluation(step=5):
    replies = [
        {"prompt": "Spell bari.", "reply": "b a r i", "answer": "b a r i", "right": True},
        {"prompt": "Spell ```x```.", "reply": "y | z", "answer": "x", "right": False},
    ]
    letters = [{"prompt": "Which?", "reply": "A", "answer": "B", "right": False}]
    about, words = {"stderr": 0.02, "items": 300, "chance": 0.125}, {"type": "generation", "measures": "letters"}
    return {
        "step": step,
        "tasks": [
            {"name": "spelling", "accuracy": 0.875, "replies": replies} | words | about,
            {"name": "mmlu", "type": "letter", "measures": "subjects", "accuracy": 0.25, "replies": letters} | about,
        ],
    }


def test_scores_and_replies_stand_in_the_report_as_they_were(base, tmp_path):
    write_chat(tmp_path / "mine-chat", evaluation=evaluation())
    text = chat_section(base, "d2-gaussian")
    assert "| spelling | letters | 87.5 ± 2.0 % | 12.5 % | 300 |" in text
    assert "user       Spell bari.\nassistant  b a r i    [right]" in text
    assert "assistant  y | z    [wrong: x]" in text
    assert "Which?" not in text  # a letter is no exchange
    assert "validation loss 9.000 → 0.500 nats a token" in text
    assert "`mine-chat` was made from this run's weights with 5 steps on conversations (talk)" in text
    assert "chat_cli --run mine-chat" in text
    assert text.count("````") == 2  # a reply that has a fence in it does not end the block


def test_what_is_missing_is_said_with_the_command_for_it(base, tmp_path):
    assert "python -m scripts.chat_sft --base d2-gaussian" in chat_section(base, "d2-gaussian")
    write_chat(tmp_path / "d2-gaussian-chat")
    assert "python -m scripts.chat_eval --run d2-gaussian-chat" in chat_section(base, "d2-gaussian")
    (tmp_path / "d2-gaussian-chat" / "chat_evaluation.json").write_text(json.dumps(evaluation(step=3)))
    assert "What follows speaks of step 3, not of the last step." in chat_section(base, "d2-gaussian")


def test_only_chat_runs_of_this_run_count_and_the_newest_of_them(base, tmp_path):
    write_chat(tmp_path / "other-chat", of="other")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.yaml").write_text("run: {kind: chat}")
    assert find_chat_run(base) is None
    folder = write_chat(tmp_path / "mine-chat")
    assert find_chat_run(base).folder == folder
    assert base_of(load_run(folder)) == base.folder
    assert base_of(base) is None
    assert yaml.safe_load((folder / "config.yaml").read_text())["run"]["kind"] == "chat"
