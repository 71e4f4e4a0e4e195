"""`python -m scripts.report` on run folders: the report, the summary on the screen, what it refuses."""

import base64
import json
import lzma
import math
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from run_fakes import chat_evaluation, evaluation, write_chat, write_corpus, write_run

from nanogka.data import open_corpus
from nanogka.model import GPTConfig, model_costs
from nanogka.plots import style as style_module
from scripts import report


@pytest.fixture(autouse=True)
def pictures(request, monkeypatch):
    """Pictures of no size: rendering them takes seconds, and tests/plots looks at them."""

    def touch(figure, path, style):
        path.parent.mkdir(exist_ok=True)
        path.touch()

    if request.function is test_the_report_of_one_run_holds_its_numbers:
        monkeypatch.setattr(style_module, "DPI", 30)
    else:
        monkeypatch.setattr("nanogka.plots.figures.save", touch)


@pytest.fixture
def runs(base) -> Path:
    """An empty folder of runs, where the scripts look for it."""
    (base / "runs").mkdir(parents=True)
    return base / "runs"


def write_report(capsys, *flags: str) -> tuple[str, list[str]]:
    """The text of report.md and the lines printed; the last is the path of report.html."""
    assert report.main([*flags, "--overwrite"]) == 0
    lines = capsys.readouterr().out.splitlines()
    return Path(lines[-1].removeprefix("report: ")).with_suffix(".md").read_text(encoding="utf-8"), lines


def section(text: str, name: str) -> str:
    """The part of a report below a heading."""
    return text.split(f"\n## {name}\n")[1].split("\n## ")[0]


def numbers(line: str) -> list[float]:
    """The numbers in a line, without separators of thousands."""
    return [float(found.replace(",", "")) for found in re.findall(r"[-+]?\d[\d,]*\.?\d*", line)]


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
    assert numbers(row(text, "parameters")[0])[0] == accounting.total_parameters
    assert row(text, "validation bits / byte, final")[0] == "1.2345"
    assert row(text, "its 95 % interval")[0] == "1.2000 to 1.2700"
    assert row(text, "validation tokens, final")[0] == "999"
    assert row(text, "validation bits / byte, last in training")[0] == "1.2500"
    assert row(text, "validation tokens, last in training")[0] == "256"
    assert row(text, "text that the run has read, bits / byte")[0] == "1.2001"
    assert row(text, "tokens / s (median)")[0] == "3,100"
    assert row(text, "time in training steps")[0] == "2m30s"
    assert numbers(row(text, "training")[0]) == [5, 1024, 1]  # steps, tokens of each, seed
    assert row(text, "hardware") == ["Example CPU"]

    data = "".join(open_corpus(corpus).documents("val")).encode()
    packed = 8 * len(lzma.compress(data)) / len(data)
    marks = numbers(section(text, "Learning curves").splitlines()[-1])
    assert marks[0] == len(data)
    assert marks[-1] == pytest.approx(packed, abs=1e-4)

    # 104 of 200 right: Wilson's interval by hand.
    assert row(text, "true_continuation") == ["25.0 %", "52.0 % (45.1 to 58.8)", "0.3600"]
    assert "````text\nA list ▸ is `a` ```fence```\nand | more\n````" in text
    assert numbers(section(text, "Bandwidths").splitlines()[1])[:4] == [2, 3.364, 3.364, 3.532]
    parts = ("Learning curves", "Chat", "Bandwidths", "Attention", "Numbers", "Scores", "Setup", "Samples")
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == [*parts]
    assert "paper:" not in text  # whose models have depth 20
    assert len(lines) == 6
    assert numbers(lines[2])[:2] == [1.2345, 999]
    assert lines[-1] == f"report: {folder / 'report.html'}"
    assert write_report(capsys, "--run", "d2-gaussian") == (text, lines), "written again it is the same"

    page = (folder / "report.html").read_text(encoding="utf-8")
    pictures = [base64.b64decode(data) for data in re.findall(r'<img src="data:image/png;base64,([^"]+)"', page)]
    assert pictures == [(folder / "plots" / f"{name}.png").read_bytes() for name in ("curves", "bandwidth")]
    dark = re.findall(r'\(prefers-color-scheme: dark\)" srcset="data:image/png;base64,([^"]+)"', page)
    names = ("curves-dark", "bandwidth-dark")
    assert [base64.b64decode(data) for data in dark] == [(folder / f"plots/{name}.png").read_bytes() for name in names]
    assert '<a href="visualization/index.html">' in page
    assert "A list ▸ is `a` ```fence```\nand | more" in page


def test_a_report_is_written_again_only_if_something_that_it_shows_has_changed(runs, capsys, monkeypatch):
    folder = write_run(runs / "a", evaluation=evaluation())
    write_run(runs / "b", "dot_product")

    def written(*flags: str) -> bool:
        before = page.stat().st_mtime_ns if page.exists() else 0
        assert report.main(["--run", "a", *flags]) == 0
        changed = page.stat().st_mtime_ns != before
        assert len(capsys.readouterr().out.splitlines()) == (6 if changed else 1)
        return changed

    page = folder / "report.html"
    assert written()
    assert not written()
    assert written("--compare", "b")
    assert not written("--compare", "b")
    assert written()
    (folder / "evaluation.json").write_text(json.dumps(evaluation(0.7)))
    assert written()
    write_chat(runs / "talk", "a")
    assert written()
    assert not written()
    assert written("--overwrite")
    monkeypatch.setattr("nanogka.common.digest.digest_of_code", lambda name: "another version")
    assert written()  # the code that draws it has changed


def test_two_runs_are_compared_document_by_document(runs, capsys):
    rng = np.random.default_rng(0)
    sizes = rng.integers(100, 2000, 40)
    hardness, gaps = rng.normal(1.0, 0.3, 40), rng.normal(0.02, 0.01, 40)
    for tag, nats in (("a", sizes * (hardness + gaps)), ("b", sizes * hardness)):
        rows = {"number": list(range(40)), "nats": nats.tolist(), "bytes": sizes.tolist()}
        if tag == "b":  # this document was cut elsewhere
            rows["bytes"][39] += 1
        write_run(runs / tag, evaluation=evaluation() | {"val_documents": {"corpus": "c" * 64, **rows}})
    text, lines = write_report(capsys, "--run", "a", "--compare", "b")
    count, value, level, low, high = numbers(next(line for line in text.splitlines() if "paired by document" in line))[
        :5
    ]
    assert (count, level) == (39, 95)
    kept = slice(39)
    expected = (sizes * gaps)[kept].sum() / sizes[kept].sum() / math.log(2)
    assert value == pytest.approx(expected, abs=6e-5)
    assert low < value < high
    # The gap of a document has the standard deviation 0.01 / ln 2, whatever its hardness.
    assert high - low < 4 * 2.2 * 0.01 / math.log(2) / math.sqrt(39) * 1.5
    assert lines[4].endswith(f"({value:+.4f}, 95 % from {low:+.4f} to {high:+.4f})")
    (runs / "b/evaluation.json").write_text(json.dumps(evaluation()))  # of an earlier version, without documents
    assert "paired by document" not in write_report(capsys, "--run", "a", "--compare", "b")[0]


def test_two_mixers_with_the_same_settings_stand_side_by_side(runs, capsys):
    task = {"name": "hellaswag_zeroshot", "accuracy": 0.4, "centered": 0.2, "chance": 0.25}
    write_run(runs / "a", "gaussian", depth=20, val_bpb=1.5, evaluation=evaluation(0.6, val=1.2))
    scored = evaluation(0.7, val=1.1) | {"tasks": [task]}
    write_run(runs / "b", "dot_product", depth=20, val_bpb=1.4, evaluation=scored)
    configs = [GPTConfig.from_depth(20, name, sequence_len=64, vocab_size=300) for name in ("gaussian", "dot_product")]
    gaussian, baseline = (model_costs(config).total_parameters for config in configs)
    text, lines = write_report(capsys, "--run", "a", "--compare", "b")
    assert numbers(lines[4]) == [1.55, 1.09]
    assert "| `a` | `b` | `a` / `b` |" in text
    assert row(text, "tokens / s (median)")[:3] == ["3,100", "2,000", "1.55"]
    assert row(text, "validation bits / byte, final") == ["1.2000", "1.1000", "1.09", "0.8191", "0.7884", "1.04"]
    ours = [f"{gaussian:,}", f"{baseline:,}", f"{gaussian / baseline:.2f}"]
    assert row(text, "parameters") == [*ours, "378,798,320", "896,535,720", "0.42"]
    paper = {"FLOPs / token": "0.80", "tokens": "0.61", "training FLOPs": "0.49"}
    assert {name: row(text, name)[-1] for name in paper} == paper
    assert row(text, "true_continuation")[1:5] == ["60.0 % (53.1 to 66.5)", "—", "0.4667", "—"]
    assert row(text, "hellaswag_zeroshot")[2:] == ["40.0 %", "—", "0.2000", "0.2267", "0.2650"]
    assert "Differs from `b` in: mixer." in text
    text, lines = write_report(capsys, "--run", "b", "--compare", "a")  # the same direction in summary and table
    assert numbers(lines[4]) == [0.65, 0.92]
    assert "| `b` | `a` | `b` / `a` |" in text
    assert row(text, "tokens / s (median)")[:3] == ["2,000", "3,100", "0.65"]


def test_three_runs_have_a_column_each_and_speeds_of_other_machines_do_not_count(runs, capsys):
    for tag, attention, scale in (("a", "gaussian", 0.3), ("b", "dot_product", 0.6)):
        write_run(runs / tag, attention, settings={"lr_scale": scale}, val_bpb=1.5 if tag == "a" else 1.2)
    elsewhere = runs.parent / "elsewhere" / "c"
    write_run(elsewhere, "value_less", settings={"lr_scale": 0.3}, facts={"hardware": "Another CPU"}, val_bpb=1.2)
    text, lines = write_report(capsys, "--run", "b", "--compare", f"a,{elsewhere}")
    assert row(text, "validation bits / byte, last in training")[:3] == ["1.2000", "1.5000", "1.2000"]
    assert "| `b` | `a` | `c` |\n" in text
    differing = [line for line in text.splitlines() if line.startswith("Differs from")]
    assert [re.findall(r"`(.*?)`", line) for line in differing] == [[other, "0.6", "0.3"] for other in "ac"]
    assert ["mixer" in line for line in differing] == [True, True]
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
    assert numbers(row(text, "training")[0])[:2] == [3, 5]
    assert numbers(lines[1])[-2:] == [3, 5]
    assert "`python -m scripts.base_eval --run 'd 2'`" in text
    assert "`python -m scripts.chat_sft --base 'd 2'`" in text
    (folder / "evaluation.json").write_text('{"step": 2}')
    assert "step 2" in section(write_report(capsys, "--run", "d 2")[0], "Scores")


def test_the_chat_models_scores_and_replies_stand_in_the_report(runs, capsys):
    write_run(runs / "d2", "dot_product")
    write_chat(runs / "mine", "d2")
    text, _ = write_report(capsys, "--run", "mine")  # a chat run's report is that of the run it was made from
    assert "σ" not in text
    learned = section(text, "Chat").splitlines()[1]
    assert re.findall(r"`(.*?)`", learned) == ["mine", "talk"]
    assert "2m30s" in learned
    assert numbers(learned)[-2:] == [9.0, 0.5]
    assert "python -m scripts.chat_eval --run mine" in text
    (runs / "mine").rename(runs / "old")
    scores = chat_evaluation()
    scores["tasks"][1]["chance"] = 1.0
    write_chat(runs / "mine", "d2", scores)
    text, _ = write_report(capsys, "--run", "d2")
    assert "To refuse is right in all questions of spelling-reworded." in text
    # Wilson's intervals by hand: of the 200 different items, not of all 300.
    assert "![Right answers: spelling 87.5 % (82.2 to 91.4), spelling-reworded 25.0 % (20.4 to 30.2), mmlu" in text
    assert (runs / "d2/plots/skills.png").is_file()
    assert "user       Spell bari.\nassistant  b a r i    [right]" in text
    assert text.count("Spell bari.") == 1  # one question of each skill
    assert "assistant  y | ␛[2J    [wrong: x]" in text
    assert "Which?" not in text  # a letter is no exchange
    assert text.count("````") == 2  # a prompt that has a fence in it does not end the block
    assert "python -m scripts.chat_cli --run mine\n" in text


def test_the_share_of_the_peak_is_that_of_all_devices(runs, capsys):
    rate = 3100 * model_costs(GPTConfig.from_depth(2, sequence_len=64, vocab_size=300)).flops_per_token
    write_run(runs / "d2", facts={"world_size": 8, "peak_flops": rate / 2})
    text, _ = write_report(capsys, "--run", "d2")
    assert "25.0 % of the peak (MFU)" in row(text, "median speed")[0]
    assert row(text, "hardware") == ["8 × Example CPU"]


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
