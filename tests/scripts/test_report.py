"""`python -m scripts.report` on run folders: the report, the summary on the screen, what it refuses."""

import base64
import json
import lzma
import math
import re
from pathlib import Path

import pytest
import yaml
from run_fakes import chat_evaluation, evaluation, write_chat, write_corpus, write_run

from nanogka.data import open_corpus
from nanogka.model import GPTConfig, model_costs
from scripts import report


@pytest.fixture
def runs(base) -> Path:
    """An empty folder of runs, where the scripts look for it."""
    (base / "runs").mkdir(parents=True)
    return base / "runs"


def write_report(capsys, *flags: str) -> tuple[str, list[str]]:
    """The text of report.md and the lines printed; the last is the path of report.html."""
    assert report.main(list(flags)) == 0
    lines = capsys.readouterr().out.splitlines()
    return Path(lines[-1].removeprefix("report: ")).with_suffix(".md").read_text(encoding="utf-8"), lines


def row(text: str, name: str) -> list[str]:
    """The cells of the table row that begins with `name`."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in line.strip("|").split(" | ")][1:]


def test_the_report_of_one_run_holds_its_numbers(runs, tmp_path, capsys):
    corpus = write_corpus(tmp_path / "corpus")
    folder = write_run(runs / "d2-gaussian", settings={"data": str(corpus)}, evaluation=evaluation())
    (folder / "visualization").mkdir()
    (folder / "visualization/index.html").write_text("")
    text, lines = write_report(capsys, "--run", "d2-gaussian")

    accounting = model_costs(GPTConfig.from_depth(2, sequence_len=64, vocab_size=300))
    assert row(text, "parameters")[0] == f"{accounting.total_parameters:,}"
    assert f"embedding {300 * 128:,}, lm_head {300 * 128:,}, " in text
    assert row(text, "validation bits / byte")[0] == "1.2345"
    assert row(text, "training-text bits / byte")[0] == "1.2001"
    assert row(text, "tokens / s (median)")[0] == "3,100"
    assert row(text, "time in training steps")[0] == "2m30s"
    assert row(text, "training") == ["5 steps of 1,024 tokens, seed 1"]
    assert row(text, "hardware") == ["Example CPU"]

    data = "".join(open_corpus(corpus).documents("val")).encode()
    packed = 8 * len(lzma.compress(data)) / len(data)
    assert re.search(rf"{len(data):,} bytes of .* gzip -9 has \d\.\d+ and xz has {packed:.4f} bits per byte", text)

    assert row(text, "true_continuation") == ["0.25", "52.0 ± 3.5 %", "0.3600"]
    assert "````text\nA list ▸ is `a` ```fence```\nand | more\n````" in text
    assert "σ of 2 heads: 3.364 at the start, 3.364 to 3.532 at the end." in text
    parts = ("Samples", "Chat", "Learning curves", "Numbers", "Scores", "Bandwidths", "Attention", "Setup")
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == [*parts]
    assert "paper:" not in text  # whose models have depth 20
    assert text.rstrip().endswith("python -m scripts.chat_cli --run d2-gaussian\n```")
    assert len(lines) == 6
    assert lines[2].startswith("validation: 1.2345 bits per byte; on the same text gzip -9: ")
    assert lines[4] == "compared: with no run (--compare RUN)"
    assert lines[-1] == f"report: {folder / 'report.html'}"
    assert write_report(capsys, "--run", "d2-gaussian") == (text, lines), "written again it is the same"

    page = (folder / "report.html").read_text(encoding="utf-8")
    pictures = [base64.b64decode(data) for data in re.findall(r'<img src="data:image/png;base64,([^"]+)"', page)]
    assert pictures == [(folder / "plots" / f"{name}.png").read_bytes() for name in ("curves", "bandwidth")]
    assert '<a href="visualization/index.html">' in page
    assert "A list ▸ is `a` ```fence```\nand | more" in page


def test_two_mixers_with_the_same_settings_stand_side_by_side(runs, capsys):
    task = {"name": "hellaswag_zeroshot", "accuracy": 0.4, "centered": 0.2, "chance": 0.25}
    write_run(runs / "a", "gaussian", depth=20, val_bpb=1.5, evaluation=evaluation(0.6, val=1.2))
    scored = evaluation(0.7, val=1.1) | {"tasks": [task]}
    write_run(runs / "b", "dot_product", depth=20, val_bpb=1.4, evaluation=scored)
    configs = [GPTConfig.from_depth(20, name, sequence_len=64, vocab_size=300) for name in ("gaussian", "dot_product")]
    gaussian, baseline = (model_costs(config).total_parameters for config in configs)
    text, lines = write_report(capsys, "--run", "a", "--compare", "b")
    assert lines[4] == "compared: a / b: 1.55 of the tokens/s, 1.09 of the validation bits per byte"
    assert "| `a` | `b` | `a` / `b` |" in text
    assert row(text, "tokens / s (median)")[:3] == ["3,100", "2,000", "1.55"]
    assert row(text, "validation bits / byte") == ["1.2000", "1.1000", "1.09", "0.8191", "0.7884", "1.04"]
    ours = [f"{gaussian:,}", f"{baseline:,}", f"{gaussian / baseline:.2f}"]
    assert row(text, "parameters") == [*ours, "378,798,320", "896,535,720", "0.42"]
    paper = {"FLOPs / token": "0.80", "tokens": "0.61", "training FLOPs": "0.49"}
    assert {name: row(text, name)[-1] for name in paper} == paper
    assert row(text, "true_continuation")[1:5] == ["60.0 ± 3.5 %", "—", "0.4667", "—"]
    assert row(text, "hellaswag_zeroshot")[2:] == ["40.0 %", "—", "0.2000", "0.2267", "0.2650"]
    assert "Differs from `b` in: mixer." in text
    text, lines = write_report(capsys, "--run", "b", "--compare", "a")  # the same direction in summary and table
    assert lines[4] == "compared: b / a: 0.65 of the tokens/s, 0.92 of the validation bits per byte"
    assert "| `b` | `a` | `b` / `a` |" in text
    assert row(text, "tokens / s (median)")[:3] == ["2,000", "3,100", "0.65"]


def test_three_runs_have_a_column_each_and_speeds_of_other_machines_do_not_count(runs, capsys):
    for tag, attention, scale in (("a", "gaussian", 0.3), ("b", "dot_product", 0.6)):
        write_run(runs / tag, attention, settings={"lr_scale": scale}, val_bpb=1.5 if tag == "a" else 1.2)
    elsewhere = runs.parent / "elsewhere" / "c"
    write_run(elsewhere, "value_less", settings={"lr_scale": 0.3}, facts={"hardware": "Another CPU"}, val_bpb=1.2)
    text, lines = write_report(capsys, "--run", "b", "--compare", f"a,{elsewhere}")
    assert row(text, "validation during training, last")[:3] == ["1.2000", "1.5000", "1.2000"]
    assert "| `b` | `a` | `c` |\n" in text
    assert "Differs from `a` in: mixer, lr_scale (`0.6` / `0.3`).\n" in text
    assert "Differs from `c` in: mixer, lr_scale (`0.6` / `0.3`). The machines differ" in text
    assert row(text, "tokens / s (median)")[:3] == ["2,000", "3,100", "—"]
    assert "b / c: — of the tokens/s" in lines[4]


def test_the_report_names_dead_components_of_a_mixture(runs, capsys):
    folder = write_run(runs / "m", "mixture", settings={"mixture_components": 8})
    line = {"kind": "train", "step": 6, "component_entropy_layers": [1], "component_entropy": [[math.log(4), 0.0]]}
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line | {"dead_components": [[0, 7]]}))
    text, _ = write_report(capsys, "--run", "m")
    assert "| 1 | 4.0, 1.0 | 0, 7 |" in text


def test_what_is_missing_leaves_a_sentence(runs, capsys):
    folder = write_run(runs / "d 2", steps=3)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump(config | {"run": {"num_iterations": 5}, "settings": {}}))
    text, lines = write_report(capsys, "--run", "d 2")
    assert "3 steps of 5" in text
    assert "stopped after 3 of 5 steps" in lines[1]
    assert "`python -m scripts.base_eval --run 'd 2'`" in text
    assert "`python -m scripts.chat_sft --base 'd 2'`" in text
    (folder / "evaluation.json").write_text('{"step": 2}')
    assert "scores of step 2, not of the last step" in write_report(capsys, "--run", "d 2")[0]


def test_the_chat_models_scores_and_replies_stand_in_the_report(runs, capsys):
    write_run(runs / "d2", "dot_product")
    write_chat(runs / "mine", "d2")
    text, _ = write_report(capsys, "--run", "mine")  # a chat run's report is that of the run it was made from
    assert "σ" not in text
    assert "`mine`: 5 steps on conversations (`talk`) in 2m30s; validation loss 9.000 → 0.500 nats per token" in text
    assert "python -m scripts.chat_eval --run mine" in text
    (runs / "mine").rename(runs / "old")
    write_chat(runs / "mine", "d2", chat_evaluation())
    text, _ = write_report(capsys, "--run", "d2")
    assert "| spelling | letters | 87.5 ± 2.0 % | 0.125 | 300 |" in text
    assert "user       Spell bari.\nassistant  b a r i    [right]" in text
    assert "assistant  y | ␛[2J    [wrong: x]" in text
    assert "Which?" not in text  # a letter is no exchange
    assert text.count("````") == 2  # a prompt that has a fence in it does not end the block
    assert text.rstrip().endswith("python -m scripts.chat_cli --run mine\n```")


def test_names_in_a_run_steer_neither_terminal_nor_page(runs, tmp_path, capsys):
    mark = f"![x]({tmp_path}/secret.png) <b> [y](z) `c` *e*"
    folder = write_run(
        runs / "a\x1b[2J`|$x\n# <b>",
        settings={"data": mark, "tokenizer": mark, "seed": mark},
        facts={"hardware": mark, "torch": mark, "created": mark},
        evaluation={"step": 5, "tasks": [{"name": mark, "accuracy": 0.5}], "samples": [{"prompt": mark, "text": mark}]},
    )
    assert report.main(["--run", folder.name]) == 0
    printed = capsys.readouterr().out
    text, page = (path.read_text(encoding="utf-8") for path in (folder / "report.md", folder / "report.html"))
    assert "\x1b" not in printed + text
    assert len(printed.splitlines()) == 6
    assert text.startswith("# ``a␛[2J`|$x␊# <b>``: Gaussian Kernel Attention, depth 2")
    assert page.count("<img") == 2
    assert not any(tag in page for tag in ("<b>", "<em>", "<a href"))
    assert page.count("&lt;b&gt; [y](z) ") >= 8  # shown as they are


def test_a_run_is_not_compared_with_itself(runs, capsys):
    folder = write_run(runs / "d2")
    assert report.main(["--run", "d2", "--compare", str(folder)]) == 2
    assert "--compare: got 'd2'" in capsys.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml", "metrics.jsonl"]
