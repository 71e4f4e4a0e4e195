"""`python -m scripts.report` on run folders: what it writes, what it prints, what it refuses."""

import gzip
import lzma
import runpy
from pathlib import Path

import pytest
import yaml

from nanogka.data import open_corpus
from nanogka.model import GPTConfig, count
from scripts import report

fakes = runpy.run_path(str(Path(__file__).parents[1] / "plots" / "run_fakes.py"))
write_run, write_corpus, evaluation = fakes["write_run"], fakes["write_corpus"], fakes["evaluation"]


@pytest.fixture
def runs(tmp_path, monkeypatch) -> Path:
    """An empty folder of runs, where the scripts look for it."""
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(tmp_path / "base"))
    (tmp_path / "base" / "runs").mkdir(parents=True)
    return tmp_path / "base" / "runs"


def write_report(capsys, *flags: str) -> tuple[str, list[str]]:
    """The text of report.md and the lines printed; the last is the report's path."""
    assert report.main(list(flags)) == 0
    lines = capsys.readouterr().out.splitlines()
    return Path(lines[-1].removeprefix("report: ")).read_text(), lines


def row(text: str, name: str) -> list[str]:
    """The cells of the table row that begins with `name`."""
    line = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
    return [cell.strip() for cell in line.strip("|").split(" | ")][1:]


def test_the_report_of_one_run_holds_its_numbers(runs, tmp_path, capsys):
    corpus = write_corpus(tmp_path / "corpus")
    folder = write_run(runs / "d2-gaussian", settings={"data": str(corpus)}, evaluation=evaluation())
    text, lines = write_report(capsys, "--run", "d2-gaussian")

    accounting = count(GPTConfig.from_depth(2, sequence_len=64, vocab_size=300))
    groups = f"(embedding {300 * 128:,}, lm head {300 * 128:,}, matrix "
    assert row(text, "parameters")[0].startswith(f"{accounting.total_parameters:,} {groups}")
    assert row(text, "training") == ["5 steps of 1,024 tokens: 5,120 tokens"]
    assert row(text, "speed")[0].startswith("3,100 tokens/s (median")
    assert row(text, "wall time")[0].startswith("2 min 30 s")
    assert row(text, "hardware") == ["Example CPU"]
    assert row(text, "validation, evaluated") == ["1.2345 bits / byte"]
    assert row(text, "training text, evaluated") == ["1.2001 bits / byte"]

    data = "".join(open_corpus(corpus).documents("val")).encode()
    packed = {"gzip -9": len(gzip.compress(data, 9)), "xz": len(lzma.compress(data))}
    for name, size in packed.items():
        assert row(text, name) == [f"{8 * size / len(data):.4f} bits / byte"]
    assert f"one stream of {len(data):,} bytes" in text
    assert "scored 4,321 bytes" in text

    assert row(text, "true_continuation")[:3] == ["0.25", "52.0 ± 3.5 %", "0.3600"]
    assert row(text, "hellaswag_zeroshot")[-2:] == ["0.2267", "0.2650"]
    assert row(text, "mean of the six")[-2:] == ["0.2286", "0.2418"]
    assert "````text\nA list ▸ is `a` ```fence```\nand | more\n````" in text
    assert "2 σ, all finite, now 3.364 to 3.532; 1 of them moved from their start, 3.364" in text
    assert text.rstrip().endswith("python -m scripts.chat_cli --run d2-gaussian\n```")
    for name in ("curves", "bandwidth_training", "bandwidth_depth"):
        assert f"](plots/{name}.png)" in text
        assert (folder / "plots" / f"{name}.png").stat().st_size > 10_000
    assert "no finished run of the other mixer" in text
    assert len(lines) == 7
    assert lines[-1] == f"report: {folder / 'report.md'}"


@pytest.mark.parametrize("factor, verdict", [(0.5, "beats both"), (1.5, "beats neither")])
def test_the_report_says_whether_the_model_beats_the_compressors(runs, tmp_path, capsys, factor, verdict):
    corpus = write_corpus(tmp_path / "corpus")
    data = "".join(open_corpus(corpus).documents("val")).encode()
    sizes = [8 * len(packed) / len(data) for packed in (gzip.compress(data, 9), lzma.compress(data))]
    val = (min if factor < 1 else max)(sizes) * factor
    write_run(runs / "d2", settings={"data": str(corpus)}, evaluation=evaluation(val=val))
    assert verdict in write_report(capsys, "--run", "d2")[0]


def test_the_model_that_beats_one_compressor_is_told_which(runs, tmp_path, capsys):
    corpus = write_corpus(tmp_path / "corpus")
    data = "".join(open_corpus(corpus).documents("val")).encode()
    sizes = {8 * len(gzip.compress(data, 9)) / len(data): "gzip", 8 * len(lzma.compress(data)) / len(data): "xz"}
    write_run(runs / "d2", settings={"data": str(corpus)}, evaluation=evaluation(val=sum(sizes) / 2))
    assert f"beats {sizes[max(sizes)]}**, but not" in write_report(capsys, "--run", "d2")[0]


def test_two_mixers_with_the_same_settings_stand_side_by_side(runs, capsys):
    write_run(runs / "a", "gaussian", val_bpb=1.5, evaluation=evaluation(0.6, val=1.2))
    write_run(runs / "b", "dot_product", val_bpb=1.4, evaluation=evaluation(0.7, val=1.1))
    configs = [GPTConfig.from_depth(2, name, sequence_len=64, vocab_size=300) for name in ("gaussian", "dot_product")]
    gaussian, baseline = (count(config).total_parameters for config in configs)
    sentence = "GKA trains 1.55 × as many tokens per second as the baseline (medians: 3,100 against 2,000)."
    for tag in ("a", "b"):  # the same columns, whichever run the report is of
        text, lines = write_report(capsys, "--run", tag)
        assert sentence in text
        assert lines[5] == f"compared: {sentence}"
        assert row(text, "tokens / s (median)")[:3] == ["3,100", "2,000", "1.55"]
        assert row(text, "validation BPB") == ["1.2000", "1.1000", "1.09", "0.8191", "0.7884", "1.04"]
        table = text.split("## Beside")[1]
        ours = [f"{gaussian:,}", f"{baseline:,}", f"{gaussian / baseline:.2f}"]
        assert row(table, "parameters") == [*ours, "378,798,320", "896,535,720", "0.42"]
        paper = {"FLOPs / token": "0.80", "tokens": "0.61", "training FLOPs": "0.49"}
        assert {name: row(table, name)[-1] for name in paper} == paper
        assert row(table, "tokens")[:3] == ["5.1200e3", "5.1200e3", "1.00"]
        assert row(text, "true_continuation")[1:5] == ["60.0 ± 3.5 %", "70.0 ± 3.5 %", "0.4667", "0.6000"]
        assert "have the same settings but for the mixer" in text


def test_bits_per_byte_side_by_side_are_measured_in_the_same_way(runs, capsys):
    write_run(runs / "a", "gaussian", val_bpb=1.5, evaluation=evaluation(val=1.2))
    write_run(runs / "b", "dot_product", val_bpb=1.4)  # not evaluated
    text, _ = write_report(capsys, "--run", "a")
    assert row(text, "validation BPB")[:3] == ["1.5000", "1.4000", "1.07"]


def test_a_run_chosen_for_comparison_may_differ_and_the_report_says_in_what(runs, capsys):
    write_run(runs / "a", "gaussian")
    elsewhere = write_run(runs.parent / "elsewhere" / "b", "dot_product", settings={"seed": 7})
    text, _ = write_report(capsys, "--run", "a", "--compare", str(elsewhere))
    assert "do not have the same settings" in text
    assert "seed (1 / 7)" in text
    assert "a trains 1.55 × as many tokens per second as b" in text


def test_speeds_of_different_machines_are_not_set_against_each_other(runs, capsys):
    write_run(runs / "a", "gaussian")
    write_run(runs / "b", "dot_product", facts={"hardware": "Another CPU"})
    text, _ = write_report(capsys, "--run", "a")
    assert "as many tokens per second" not in text
    assert row(text, "tokens / s (median)")[:3] == ["3,100", "2,000", "—"]


def test_a_baseline_has_no_bandwidths_to_plot(runs, capsys):
    folder = write_run(runs / "b", "dot_product")
    text, _ = write_report(capsys, "--run", "b")
    assert "this mixer has no σ" in text
    assert sorted(path.name for path in (folder / "plots").iterdir()) == ["curves.png"]


def test_what_is_missing_leaves_a_sentence(runs, capsys):
    folder = write_run(runs / "d2", steps=3)
    (folder / "config.yaml").write_text(yaml.safe_dump({"run": {"num_iterations": 5}}))
    text, lines = write_report(capsys, "--run", "d2")
    assert "3 steps of 5 (stopped early)" in text
    assert "stopped before its 5 steps" in lines[1]
    assert "config.yaml does not say which data" in text
    assert "scripts.base_eval --run d2" in text
    assert "config.yaml does not hold a valid model configuration" in text
    assert len(lines) == 7


def test_scores_of_an_earlier_step_are_marked(runs, capsys):
    write_run(runs / "d2", evaluation=evaluation() | {"step": 3})
    assert "scores of step 3, not of the last step" in write_report(capsys, "--run", "d2")[0]


def test_a_run_outside_the_folder_of_runs_is_called_by_its_path(runs, tmp_path, capsys):
    folder = write_run(tmp_path / "mine")
    assert f"chat_cli --run {folder}" in write_report(capsys, "--run", str(folder))[0]


def test_a_report_is_the_same_when_written_again(runs, capsys):
    write_run(runs / "d2", evaluation=evaluation())
    assert write_report(capsys, "--run", "d2") == write_report(capsys, "--run", "d2")


def test_bad_arguments_are_named_together(runs, capsys):
    assert report.main(["--run", "none-such", "--compare", "nor-this"]) == 2
    error = capsys.readouterr().err
    assert "--run: got 'none-such'" in error
    assert "--compare: got 'nor-this'" in error


def test_a_run_is_not_compared_with_itself(runs, capsys):
    write_run(runs / "d2")
    assert report.main(["--run", "d2", "--compare", str(runs / "d2")]) == 2
    assert "--compare: got" in capsys.readouterr().err


def test_a_run_without_metrics_is_refused_before_anything_is_written(runs, capsys):
    folder = write_run(runs / "d2")
    (folder / "metrics.jsonl").unlink()
    assert report.main(["--run", "d2"]) == 2
    assert str(folder / "metrics.jsonl") in capsys.readouterr().err
    assert sorted(path.name for path in folder.iterdir()) == ["config.yaml"]
