"""A resumed run: what it accepts, what it refuses with the difference named, and that nothing is lost."""

import errno
import os
import shutil
from functools import partial
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filelock import FileLock
from rank_worlds import run_training
from training import losses, saved, train

from nanogka import checkpoint
from nanogka.data import open_corpus
from nanogka.data.vocabulary import train_on_corpus
from nanogka.train.resume import LoopState, read_state
from scripts import base_train


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_finished_run_is_neither_overwritten_nor_mixed_with_another(base, world, mine, short, capsys):
    before = contents(mine)
    assert train(*short) == 2
    assert "--run: " in capsys.readouterr().err
    assert train(*short, "--resume", "auto", "--seed", "9", "--depth", "3") == 2
    errors = capsys.readouterr().err
    assert "--seed: got 9, expected 1, as" in errors
    assert "--depth: got 3, expected 2, as" in errors
    shutil.copytree(world / "text", base / "moved")  # the same text from another folder is the same corpus
    capsys.readouterr()
    assert train(*short, "--resume", "auto", "--data", base / "moved") == 0  # finished already: nothing to do
    assert capsys.readouterr().out == f"done already: {mine} has all 5 steps; --overwrite starts over\n"
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
    err = capsys.readouterr().err
    for setting in ("--data", "--tokenizer", "model vocab_size", "--num-iterations"):
        assert f"base_train: {setting}: got" in err
    assert contents(mine) == before


def test_other_text_of_the_same_size_in_somebodys_shards_is_noticed(base, world, short, capsys):
    texts = [path.read_text() for path in sorted((world / "text").iterdir())]
    (base / "shards").mkdir()

    def write(name, part):
        table = pa.table({"text": part})
        pq.write_table(table, base / "shards" / f"{name}.parquet", compression="none", use_dictionary=False)

    write("a", texts[:50])
    write("b", texts[50:])
    assert train(*short, "--data", base / "shards") == 0
    write("a", [text[:-1] + "!" for text in texts[:50]])
    capsys.readouterr()
    assert train(*short, "--data", base / "shards", "--resume", "auto") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"base_train: --data: got '{base / 'shards'}' (")
    assert line.endswith("it is the same files with other contents")


UNUSABLE = [
    # files, what lies in their place (None: they are evaluation.json now), what is said
    (
        "checkpoints/*/manifest.json",
        "{}",
        "has no checkpoint to resume from",
    ),
    (
        "config.yaml",
        None,
        "has no config.yaml",
    ),
    ("checkpoints", OSError(errno.EACCES, "Permission denied"), "cannot be read"),
]


@pytest.mark.parametrize("files,instead,said", UNUSABLE)
def test_a_run_that_cannot_be_used_is_not_changed(mine, short, monkeypatch, capsys, files, instead, said):
    verify = checkpoint.verify_checkpoint
    for path in mine.glob(files):
        if instead is None:
            path.rename(mine / "evaluation.json")
        elif isinstance(instead, str):
            path.write_text(instead)
        else:
            monkeypatch.setattr("nanogka.checkpoint.verify_checkpoint", Mock(side_effect=instead))
    before = contents(mine)
    assert train(*short, "--resume", "auto") == 2
    assert said in capsys.readouterr().err
    assert train(*short) == 2
    assert contents(mine) == before
    monkeypatch.setattr(checkpoint, "verify_checkpoint", verify)
    assert train(*short, "--overwrite") == 0


def test_a_new_run_keeps_files_of_the_users_until_it_overwrites(base, short):
    notes = base / "runs" / "mine" / "notes.txt"
    notes.parent.mkdir(parents=True)
    notes.write_text("why this run")
    assert train(*short) == 0
    assert notes.exists()
    assert train(*short, "--overwrite") == 0
    assert not notes.exists()


def test_a_damaged_newer_checkpoint_does_not_displace_valid_ones(mine, finished, short):
    (mine / "checkpoints" / "step_000005").rename(mine / "checkpoints" / "step_000007")  # not what its manifest says
    assert train(*short, "--resume", "auto") == 0
    assert saved(mine) == ["step_000004", "step_000005"]
    assert losses(mine) == losses(finished)


def test_steps_that_a_log_has_lost_are_named_on_resume(mine, finished, short, capsys):
    log = mine / "metrics.jsonl"
    kept = [line for line in log.read_text().splitlines() if '"step": 3,' not in line]
    for text, lost in (
        ("\n".join(kept) + "\n", "1 of the 4 steps before, from step 3"),
        ("", "4 of the 4 steps before"),
    ):
        shutil.rmtree(mine / "checkpoints" / "step_000005")
        log.write_text(text)
        assert train(*short, "--resume", "auto") == 0
        assert f"metrics.jsonl lacks {lost}" in capsys.readouterr().err
    assert losses(mine) == losses(finished)[4:]


def test_two_starts_of_one_command_do_not_meet_in_one_folder(base, short, monkeypatch, capsys):
    (base / "runs").mkdir()
    with FileLock(base / "runs" / ".mine.lock"):
        assert train(*short) == 2
    assert "is being trained by another process" in capsys.readouterr().err
    assert not (base / "runs" / "mine").exists()


def other_seed():
    """Rank 1 is started with another seed."""
    main = base_train.main
    base_train.main = lambda words: main([*words, "--seed", str(7 + int(os.environ["RANK"]))])


def other_folder(folder):
    """Rank 1 has a base folder that rank 0 does not see."""
    if os.environ["RANK"] == "1":
        os.environ["NANOGKA_BASE_DIR"] = str(folder)


def test_ranks_with_other_settings_or_another_folder_are_refused(base, short, tmp_path):
    alone = tmp_path / "alone"
    (alone / "runs").mkdir(parents=True)
    (alone / "tokenizers").symlink_to(base / "tokenizers")
    for patch, setting in (
        (other_seed, "--seed is 8 on rank 1, 7"),
        (partial(other_folder, alone), "NANOGKA_BASE_DIR"),
    ):
        for code, said in run_training(2, short, base, patch):
            assert code == 2
            assert setting in said
    assert not list((base / "runs").glob("[!.]*"))


@pytest.mark.parametrize(
    "name, value", [("step", "3"), ("step", True), ("loader", [1]), ("loader", None), ("seconds", {}), ("skipped", 0.5)]
)
def test_a_state_of_another_kind_is_refused_with_its_place_named(name, value):
    sound = {"step": 3, "tokens": 96, "loader": {}, "smooth_loss": 2.5, "seconds": 7, "skipped": 0, "saved": 1.0}
    assert read_state(sound, "here") == LoopState(3, 96, {}, 2.5, 7, 0)
    with pytest.raises(ValueError, match=f"^here: {name}: got .*, expected "):
        read_state(sound | {name: value}, "here")
