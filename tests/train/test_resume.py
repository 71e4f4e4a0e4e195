"""A resumed run: what it accepts, what it refuses with the difference named, and that nothing is lost."""

import errno
import shutil
from dataclasses import fields
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filelock import FileLock
from training import losses, train

from nanogka.checkpoint import list_checkpoints
from nanogka.data import open_corpus
from nanogka.data.loader import PackingLoader
from nanogka.data.tokenizing import train_on_corpus
from nanogka.distributed import Ranks
from nanogka.train import writer
from nanogka.train.chat import ChatSettings
from nanogka.train.folder import locked
from nanogka.train.settings import FREE_ON_RESUME, TrainSettings
from scripts import base_train


def names(folder):
    return [path.name for path in list_checkpoints(folder / "checkpoints")]


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_finished_run_is_neither_overwritten_nor_mixed_with_another(mine, short, capsys):
    before = contents(mine)
    assert train(*short) == 2
    assert "--resume auto continues it, --overwrite deletes it" in capsys.readouterr().err
    assert train(*short, "--resume", "auto", "--seed", "9", "--depth", "3") == 2
    errors = capsys.readouterr().err
    assert "--seed: got 9, takes 1, as" in errors
    assert "--depth: got 3, takes 2, as" in errors
    assert train(*short, "--resume", "auto") == 0  # finished already: nothing to do
    assert contents(mine) == before
    made_of_it = [mine / name for name in ("report.html", "visualization/attention.png")]
    (mine / "visualization").mkdir()
    for path in made_of_it:
        path.write_text("of the old run")
    assert train(*short, "--overwrite", "--num-iterations", "3") == 0
    assert len(losses(mine)) == 3
    assert not any(path.exists() for path in made_of_it)


def test_another_corpus_and_another_tokenizer_are_refused_with_the_difference_named(base, world, mine, short, capsys):
    before = contents(mine)
    shutil.copytree(world / "text", base / "more")
    (base / "more" / "another.txt").write_text("a text that was not there")
    train_on_corpus(open_corpus(world / "text"), 299, max_chars=10**6, doc_cap=10**4).save(base / "vocabulary")
    other = ["--data", base / "more", "--tokenizer", base / "vocabulary", "--num-iterations", "6"]
    assert train(*short, "--resume", "auto", *other) == 2
    lines = capsys.readouterr().err.splitlines()
    assert any(f"--data: got '{base / 'more'}' (" in line and f"'{world / 'text'}'" in line for line in lines)
    assert any(f"--tokenizer: got '{base / 'vocabulary'}' (" in line and "takes what" in line for line in lines)
    assert any(f"model vocab_size: got 299, takes 300, as {mine} has" in line for line in lines)
    assert any("--num-iterations: got 6, takes 5" in line for line in lines)
    assert contents(mine) == before


def test_other_text_of_the_same_size_in_somebodys_shards_is_noticed(base, world, short, capsys):
    texts = [path.read_text() for path in sorted((world / "text").iterdir())]
    (base / "shards").mkdir()

    def write(name, part):
        options = {"compression": "none", "use_dictionary": False}
        pq.write_table(pa.table({"text": part}), base / "shards" / f"{name}.parquet", **options)
        return (base / "shards" / f"{name}.parquet").stat().st_size

    size, _ = write("a", texts[:50]), write("b", texts[50:])
    common = [*short, "--data", base / "shards", "--run", "mine"]
    assert train(*common) == 0
    assert write("a", [text[:-1] + "!" for text in texts[:50]]) == size
    capsys.readouterr()
    assert train(*common, "--resume", "auto") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"base_train: --data: got '{base / 'shards'}' (")
    assert line.endswith("it is the same files with other contents")


def test_a_damaged_newest_is_said_and_the_one_before_gives_the_same_losses(base, world, mine, short, capsys):
    whole = losses(mine)
    shutil.copytree(world / "text", base / "moved")  # the same text from another folder is the same corpus
    assert names(mine) == ["step_000004", "step_000005"]
    (mine / "checkpoints" / "step_000005" / "optimizer.pt").write_bytes(b"")
    assert train(*short, "--resume", "auto", "--data", base / "moved") == 0
    out = capsys.readouterr().out
    assert "checkpoint step_000005 is unusable: optimizer.pt is not what the manifest says" in out
    assert "resuming from step_000004" in out
    assert losses(mine) == whole
    assert names(mine) == ["step_000004", "step_000005"]


def refuse_to_read(path, names=None):
    raise OSError(errno.EACCES, "Permission denied", str(path / "state.json"))


SPOILED = {
    "no checkpoint to resume from, but holds step_000004, step_000005; --overwrite deletes it": lambda mine: [
        path.write_text("{}") for path in mine.glob("checkpoints/*/manifest.json")
    ],
    "has no config.yaml, but holds step_000004, step_000005; --overwrite deletes it": lambda mine: (
        mine / "config.yaml"
    ).unlink(),
    "config.yaml: cannot be read as YAML (while": lambda mine: (mine / "config.yaml").write_bytes(b"settings: ["),
    "no checkpoint to resume from, but holds evaluation.json": lambda mine: (
        shutil.rmtree(mine / "checkpoints"),
        (mine / "evaluation.json").write_text("{}"),
    ),
    "cannot be read ([Errno 13] Permission denied: ": lambda mine: None,
}


@pytest.mark.parametrize("said", SPOILED)
def test_a_run_of_which_nothing_can_be_used_is_left_as_it_is(mine, short, monkeypatch, capsys, said):
    SPOILED[said](mine)
    if "Permission" in said:
        monkeypatch.setattr("nanogka.checkpoint.verify_checkpoint", refuse_to_read)
    before = contents(mine)
    assert train(*short, "--resume", "auto") == 2
    assert said in capsys.readouterr().err
    assert train(*short) == 2
    assert contents(mine) == before
    assert train(*short, "--overwrite") == 0


def test_two_starts_of_one_command_do_not_meet_in_one_folder(base, short, monkeypatch, capsys):
    (base / "runs").mkdir()
    with FileLock(base / "runs" / ".mine.lock"):
        assert train(*short) == 2
    assert "is being trained by another process" in capsys.readouterr().err
    assert not (base / "runs" / "mine").exists()
    original = base_train.train

    def slow(run, evaluations):
        (run.folder / "checkpoints" / "step_000099").mkdir(parents=True)
        return original(run, evaluations)

    monkeypatch.setattr(base_train, "train", slow)
    assert train(*short) == 2
    assert "has been changed by another process just now" in capsys.readouterr().err


def test_ranks_that_found_different_checkpoints_are_refused(base, short, monkeypatch):
    seen = []
    monkeypatch.setattr(base_train, "train", lambda run, evaluations: seen.append(run) or 0)
    assert train(*short) == 0
    monkeypatch.setattr(Ranks, "gather", lambda self, value: [value, (None, "step_000004")])
    with pytest.raises(ValueError, match="--resume: got different .*rank 0: none, rank 1: step_000004.*all nodes"):
        locked(seen[0]).__enter__()


def test_a_disk_without_room_stops_the_run_with_one_line_and_what_is_saved_serves(
    base, finished, short, capsys, monkeypatch
):
    usage, folder = shutil.disk_usage(base), base / "runs" / "mine"
    free = iter([usage.free, 0])
    with monkeypatch.context() as patched:
        patched.setattr(writer, "shutil", SimpleNamespace(disk_usage=lambda path: SimpleNamespace(free=next(free, 0))))
        assert train(*short) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("base_train:")]
    assert "checkpoint step_000004 could not be written" in line
    assert "the disk is full" in line
    assert names(folder) == ["step_000002"]
    assert train(*short, "--resume", "auto") == 0
    assert losses(folder) == losses(finished)


def test_the_best_checkpoint_outlives_the_rotation(base, flags, monkeypatch):
    values = iter([9.0, 4.0, 3.0, 5.0, 6.0, 7.0, 8.0])
    monkeypatch.setattr(base_train, "validation", lambda run: lambda model: {"val_bpb": next(values)})
    options = ["--num-iterations", "12", "--eval-every", "2", "--save-every", "2", "--keep", "2", "--run", "best"]
    assert train(*flags, *options) == 0
    assert names(base / "runs" / "best") == ["step_000004", "step_000010", "step_000012"]


@pytest.mark.parametrize("evaluated", [True, False])
def test_a_run_killed_between_its_last_checkpoint_and_the_rotation_keeps_no_more_than_it_should(mine, short, evaluated):
    shutil.copytree(mine / "checkpoints" / "step_000004", mine / "checkpoints" / "step_000002")
    if not evaluated:
        lines = (mine / "metrics.jsonl").read_text().splitlines(keepends=True)
        (mine / "metrics.jsonl").write_text("".join(lines[:-1]))
    assert train(*short, "--resume", "auto") == 0
    assert names(mine) == ["step_000004", "step_000005"]


def test_data_that_cannot_be_read_costs_no_finished_step(base, finished, short, monkeypatch, capsys):
    with monkeypatch.context() as patched:
        original, given = PackingLoader.__next__, {}

        def fails(self):
            given[self] = given.get(self, 0) + 1
            if given[self] == 7:  # two micro-batches a step; the validation takes four
                raise ValueError("shard_00003.parquet: row group 4 cannot be read")
            return original(self)

        patched.setattr(PackingLoader, "__next__", fails)
        assert train(*short, "--save-every", "0") == 2
    assert "base_train: shard_00003.parquet: row group 4" in (err := capsys.readouterr().err)
    assert "Traceback" not in err
    assert names(base / "runs" / "mine") == ["step_000003"]
    assert train(*short, "--resume", "auto") == 0
    assert losses(base / "runs" / "mine") == losses(finished)


def test_what_a_resumed_run_may_change_are_settings():
    assert {f.name for kind in (TrainSettings, ChatSettings) for f in fields(kind)} >= FREE_ON_RESUME
