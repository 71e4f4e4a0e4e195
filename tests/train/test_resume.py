"""What a resumed run accepts, what it refuses with the difference named, and what it says."""

import shutil

import pytest

from nanogka.data import PackingLoader, open_corpus, train_on_corpus
from nanogka.train import writer
from nanogka.train.checkpoint import list_checkpoints
from nanogka.train.metrics import read_metrics
from nanogka.train.preparation import prepare
from scripts import base_train


def train(*words):
    return base_train.main([str(word) for word in words])


def losses(folder):
    return [line["loss"] for line in read_metrics(folder / "metrics.jsonl") if line["kind"] == "train"]


def names(folder):
    return [path.name for path in list_checkpoints(folder / "checkpoints")]


@pytest.fixture
def short(flags):
    """A run of five steps."""
    return [*flags, "--num-iterations", "5", "--eval-every", "0", "--save-every", "2", "--run", "mine"]


def test_another_corpus_and_another_tokenizer_are_refused_with_the_difference_named(base, world, short, capsys):
    assert train(*short) == 0
    before = (base / "runs" / "mine" / "metrics.jsonl").read_bytes()
    shutil.copytree(world / "text", base / "more")
    (base / "more" / "another.txt").write_text("a text that was not there")
    train_on_corpus(open_corpus(world / "text"), 299, max_chars=10**6, doc_cap=10**4).save(base / "vocabulary")
    other = ["--data", base / "more", "--tokenizer", base / "vocabulary", "--num-iterations", "6"]
    assert train(*short, "--resume", "auto", *other) == 2
    lines = capsys.readouterr().err.splitlines()
    mine = base / "runs" / "mine"
    assert any(f"--data: got '{base / 'more'}' (" in line and f"'{world / 'text'}'" in line for line in lines)
    assert any(f"--tokenizer: got '{base / 'vocabulary'}' (" in line and "takes what" in line for line in lines)
    assert any(f"model vocab_size: got 299, takes 300, as {mine} has" in line for line in lines)
    assert any("--num-iterations: got 6, takes 5" in line for line in lines)
    assert (mine / "metrics.jsonl").read_bytes() == before


def test_the_same_text_from_another_folder_is_the_same_corpus(base, world, short):
    assert train(*short) == 0
    shutil.rmtree(base / "runs" / "mine" / "checkpoints" / "step_000005")
    shutil.copytree(world / "text", base / "moved")
    assert train(*short, "--resume", "auto", "--data", base / "moved") == 0


def test_a_damaged_newest_is_said_and_the_one_before_gives_the_same_losses(base, short, capsys):
    assert train(*short) == 0
    folder = base / "runs" / "mine"
    whole = losses(folder)
    assert names(folder) == ["step_000004", "step_000005"]
    (folder / "checkpoints" / "step_000005" / "optimizer.pt").write_bytes(b"")
    assert train(*short, "--resume", "auto") == 0
    out = capsys.readouterr().out
    assert "checkpoint step_000005 is unusable: optimizer.pt is not what the manifest says" in out
    assert "resuming from step_000004" in out
    assert losses(folder) == whole
    assert names(folder) == ["step_000004", "step_000005"]


def test_with_nothing_sound_left_it_says_so_and_starts_over(base, short, capsys):
    assert train(*short) == 0
    folder = base / "runs" / "mine"
    whole = losses(folder)
    for path in list_checkpoints(folder / "checkpoints"):
        (path / "manifest.json").write_text("{}")
    assert train(*short, "--resume", "auto") == 0
    assert "no sound checkpoint to resume from: starting at step 0" in capsys.readouterr().out
    assert losses(folder) == whole


def test_a_disk_without_room_stops_the_run_with_one_line_and_what_is_saved_serves(base, short, capsys, monkeypatch):
    usage, folder = shutil.disk_usage(base), base / "runs" / "mine"
    room = iter([usage.free, 0])
    with monkeypatch.context() as patched:
        patched.setattr(writer.shutil, "disk_usage", lambda path: usage._replace(free=next(room, 0)))
        assert train(*short) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("base_train:")]
    assert "checkpoint step_000004 could not be written" in line
    assert "the disk is full" in line
    assert names(folder) == ["step_000002"]
    assert train(*short, "--resume", "auto") == 0
    assert train(*short, "--run", "whole") == 0
    assert losses(folder) == losses(base / "runs" / "whole")


def test_the_best_checkpoint_outlives_the_rotation(base, flags, monkeypatch):
    values = iter([9.0, 4.0, 3.0, 5.0, 6.0, 7.0, 8.0])
    real = base_train.validation

    def scored(preparation):
        evaluation = real(preparation)
        object.__setattr__(evaluation, "run", lambda model: {"val_bpb": next(values)})
        return evaluation

    monkeypatch.setattr(base_train, "validation", scored)
    options = ["--num-iterations", "12", "--eval-every", "2", "--save-every", "2", "--keep", "2", "--run", "best"]
    assert train(*flags, *options) == 0
    assert names(base / "runs" / "best") == ["step_000004", "step_000010", "step_000012"]


@pytest.mark.parametrize("content", [b"settings: [", b"", b"\xff\xfe\x00", b"settings: {}\n"])
def test_a_configuration_that_cannot_be_read_is_named_and_nothing_is_touched(base, short, capsys, content):
    folder = base / "runs" / "mine"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_bytes(content)
    assert train(*short, "--resume", "auto") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--run: {folder / 'config.yaml'} " in line
    assert "--overwrite" in line
    assert (folder / "config.yaml").read_bytes() == content


def test_ranks_that_found_different_checkpoints_are_refused(short, monkeypatch):
    from nanogka.cli import from_flags
    from nanogka.distributed import Ranks
    from nanogka.problems import Problems
    from nanogka.train.loop import Trainer
    from nanogka.train.settings import TrainSettings

    names = [word[2:].replace("-", "_") for word in short[::2]]
    settings = from_flags(TrainSettings, type("Given", (), dict(zip(names, short[1::2]))), Problems())
    preparation = prepare(settings, Ranks())
    monkeypatch.setattr(Ranks, "gather", lambda self, value: [value, type(preparation.folder)("step_000004")])
    with pytest.raises(ValueError, match=r"--resume: got different .*rank 0: none, rank 1: step_000004.*all nodes"):
        Trainer(preparation, [])


@pytest.mark.parametrize(
    "error, code, line",
    [
        (
            ValueError("shard_00003.parquet: row group 4 cannot be read"),
            2,
            "base_train: shard_00003.parquet: row group 4",
        ),
        (InterruptedError("interrupted while waiting for shard_00003.parquet"), 130, "stopped by SIGINT after step 3"),
    ],
)
def test_data_that_fails_or_does_not_come_costs_no_finished_step(base, short, monkeypatch, capsys, error, code, line):
    with monkeypatch.context() as patched:
        original = PackingLoader.__next__

        def fails(self):
            given[self] = given.get(self, 0) + 1
            if given[self] == 7:  # two micro-batches a step; the validation takes four
                raise error
            return original(self)

        given: dict[PackingLoader, int] = {}
        patched.setattr(PackingLoader, "__next__", fails)
        assert train(*short, "--save-every", "0") == code
    err = capsys.readouterr().err
    assert line in err
    assert "Traceback" not in err
    assert names(base / "runs" / "mine") == ["step_000003"]
    assert train(*short, "--resume", "auto") == 0
    assert train(*short, "--run", "whole") == 0
    assert losses(base / "runs" / "mine") == losses(base / "runs" / "whole")
