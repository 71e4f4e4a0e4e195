"""Damaged files of runs, tokenizers, corpora and studies, and other things in their place: one line, no hang."""

import os
import random
import shutil
from pathlib import Path

import pytest
import yaml
from attack_world import patience
from generate_models import save_run
from world import make_text, make_tokenizer

from nanogka import checkpoint, cli
from nanogka.checkpoint import load_checkpoint
from nanogka.data import open_corpus
from nanogka.data.corpus import write_manifest
from nanogka.data.sharding import write_shards
from nanogka.evaluate.bundle import open_bundle
from nanogka.generate.transcript import read_conversation
from nanogka.model import GPT, GPTConfig
from nanogka.problems import Problems
from nanogka.runs import Run, load_run, read_config
from nanogka.study.grid import read_grid
from nanogka.tokenizer import Tokenizer
from scripts import visualize

STEP = Path("runs/mine/checkpoints/step_000003")
READERS = {
    "runs/mine/config.yaml": lambda base: load_run(base / "runs/mine"),
    "runs/mine/evaluation.json": lambda base: Run.open(base / "runs/mine").evaluation,
    "runs/mine/tokenizer/tokenizer.json": lambda base: load_run(base / "runs/mine"),
    "runs/mine/tokenizer/meta.json": lambda base: load_run(base / "runs/mine"),
    f"{STEP}/manifest.json": lambda base: load_run(base / "runs/mine"),
    f"{STEP}/model.safetensors": lambda base: load_run(base / "runs/mine"),
    f"{STEP}/state.json": lambda base: load_run(base / "runs/mine"),
    f"{STEP}/optimizer.pt": lambda base: load_checkpoint(base / STEP),
    "made/corpus.json": lambda base: open_corpus(base / "made"),
    "settings.yaml": lambda base: cli.read_settings(str(base / "settings.yaml")),
    "grid.yaml": lambda base: read_grid(base / "grid.yaml"),
    "saved.json": lambda base: read_conversation(base / "saved.json"),
    "bundle/core.yaml": lambda base: open_bundle(base / "bundle"),
    "some.txt": lambda base: text_file(base / "some.txt"),
}
# What is a sound file of its kind, or none at all, which is sound too.
SOUND = {
    "runs/mine/evaluation.json": {"dangling"},
    "runs/mine/tokenizer/meta.json": {"dangling", "another shape"},
    "made/corpus.json": {"dangling"},
    "settings.yaml": {"empty"},
    "some.txt": {"truncated", "a list", "another shape", "nested", "aliases"},
}


def text_file(path: Path) -> str:
    problems = Problems()
    text = visualize.given_text(visualize.Settings(text_file=str(path)), problems)
    problems.raise_any()
    return text


def bomb(path: Path) -> None:
    lists = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9) if i else 'x'}]" for i in range(12))
    path.write_text(lists + "\n")


def replaced(content: bytes):
    return lambda path: path.write_bytes(content)


DAMAGES = {
    "fifo": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
    "dangling": lambda path: path.symlink_to("/nowhere"),
    "empty": replaced(b""),
    "truncated": None,  # to one half
    "a list": replaced(b"[1]"),
    "another shape": replaced(
        b'{"model": {"vocab": [], "n_layer": "x"}, "settings": [], "files": [3], "validation": 3, "step": "x",'
        b' "loader": 3, "icl_tasks": 3, "messages": 3, "sizes": 3, "added_tokens": 3, "tasks": [3]}'
    ),
    "binary": replaced(b"\xff" * 100_000),
    "nested": replaced(b"[" * 100_000),
    "aliases": bomb,
}


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A base folder with a file of every kind."""
    base = tmp_path_factory.mktemp("world") / "base"
    base.mkdir()
    make_text(base / "text", random.Random(0), 20)
    make_tokenizer(base)
    tokenizer = Tokenizer.load(base / "tokenizers/tiny")
    model = GPT(GPTConfig(32, tokenizer.vocab_size, n_layer=1, n_head=1, n_embd=32))
    run = save_run(base / "runs/mine", model, tokenizer=tokenizer, step=3, data=str(base / "text"))
    (run / "config.yaml").write_text(yaml.safe_dump(read_config(run)))  # sorted: half of it has no settings
    (run / "evaluation.json").write_text("{}")
    (base / "made").mkdir()
    files = write_shards(base / "made", [["a", "b"], ["c"]])
    write_manifest(base / "made", validation=list(files)[-1], source="here", files=files)
    for name in ("settings.yaml", "grid.yaml", "saved.json", "some.txt"):
        (base / name).write_text("{}")
    (base / "bundle/eval_data").mkdir(parents=True)
    (base / "bundle/core.yaml").write_text("{}")
    return base


def forge(folder: Path) -> None:
    """Give a checkpoint a manifest that agrees with its files, as whoever can write them can."""
    files = {name: checkpoint._fingerprint(folder / name) for name in checkpoint.FILES}
    (folder / checkpoint.MANIFEST).write_text(checkpoint._manifest(3, files))


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", READERS)
def test_what_lies_in_place_of_a_file_is_one_line_that_names_it(template, tmp_path, name, damage):
    base = tmp_path / "base"
    shutil.copytree(template, base)
    path = base / name
    content = path.read_bytes()
    path.unlink()
    (DAMAGES[damage] or replaced(content[: len(content) // 2]))(path)
    if path.parent.name == STEP.name and path.name != "manifest.json" and path.is_file():
        forge(path.parent)
    with patience(20):
        if damage in SOUND.get(name, ()):
            READERS[name](base)
            return
        with pytest.raises((ValueError, OSError)) as error:
            READERS[name](base)
    said = str(error.value)
    assert path.name in said or f"got '{path.parent}'" in said
    assert max(map(len, said.splitlines())) < 1200


FORGED = ({"n_layer": True}, {"mixer_pattern": "S", "successor_keys": ["full"]}, {"n_head": 1, "n_embd": 2**31 - 4})


OF_A_RUN = [name for name in READERS if name.startswith("runs") and Path(name).stem not in ("evaluation", "optimizer")]


@pytest.mark.parametrize("name", OF_A_RUN)
def test_another_run_that_cannot_be_loaded_is_passed_over_with_a_note(template, tmp_path, monkeypatch, capsys, name):
    base = tmp_path / "base"
    shutil.copytree(template, base)
    monkeypatch.setenv("NANOGKA_BASE_DIR", str(base))
    newer = base / "runs/newer"
    shutil.copytree(base / "runs/mine", newer)
    os.utime(newer / STEP.relative_to("runs/mine") / "manifest.json", (2e9, 2e9))
    assert load_run().folder == newer
    path = newer / Path(name).relative_to("runs/mine")
    content = path.read_bytes()
    for damage in ("fifo", "device", "folder", "binary", "a list"):
        path.unlink()
        DAMAGES[damage](path)
        if path.parent.name == STEP.name and path.name != "manifest.json" and path.is_file():
            forge(path.parent)
        if path.name == "manifest.json":
            os.utime(path, (2e9, 2e9), follow_symlinks=False)
        with patience(20):
            found = load_run().folder
        assert (damage, found.name) == (damage, "mine")
        assert path.name == "manifest.json" or "passed over: " in capsys.readouterr().err
        path.rmdir() if path.is_dir() else path.unlink()
        path.write_bytes(content)


@pytest.mark.parametrize("forged", FORGED, ids=str)
def test_a_forged_configuration_is_one_line(template, tmp_path, forged):
    run = tmp_path / "run"
    shutil.copytree(template / "runs/mine", run)
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump(config | {"model": config["model"] | forged}))
    with patience(20), pytest.raises(ValueError, match="^--run: .*$"):
        load_run(run)
