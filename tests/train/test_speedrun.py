"""speedrun.sh: the commands it would run, and what it refuses."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def speedrun(tmp_path, **variables):
    environment = {"PATH": os.environ["PATH"], "NANOGKA_BASE_DIR": str(tmp_path), "DRY_RUN": "1", "GPUS": "0"}
    command = ["bash", str(ROOT / "speedrun.sh")]
    return subprocess.run(command, env=environment | variables, capture_output=True, text=True)


def scripts_of(output):
    lines = [line.split() for line in output.splitlines() if line.startswith("   python ")]
    return [next(word for word in words if word.startswith(("scripts.", "nanogka."))) for words in lines]


TRAINED = ["scripts.base_train", "scripts.base_eval"]
TALKS = ["scripts.chat_sft", "scripts.chat_eval", "scripts.visualize", "scripts.report", "scripts.chat_cli"]


def test_on_a_laptop_two_mixers_learn_the_same_and_the_last_one_talks(tmp_path):
    text = speedrun(tmp_path).stdout
    assert scripts_of(text) == ["scripts.tok_train", *TRAINED, *TRAINED, *TALKS]
    for mixer in ("gaussian", "successor"):
        assert (
            f"python -m scripts.base_train --data embedded --tokenizer embedded-4096 --depth 3 --attention {mixer} "
            f"--sequence-len 512 --seed 1 --run d3-{mixer} --num-iterations 100 --total-batch-size 4096 --lr-scale 1.2 "
            "--eval-every 100 --eval-tokens 65536 --save-every 100 --resume auto"
        ) in text
    assert "chat_sft --base d3-successor --run d3-successor-chat --data embedded --sequence-len 48 " in text
    assert list(tmp_path.iterdir()) == []


def test_a_recipe_or_mixers_can_be_chosen(tmp_path):
    for recipe, mixer in (("paper", "gaussian"), ("best", "successor")):
        chosen = speedrun(tmp_path, RECIPE=recipe, DEPTH="4").stdout
        assert scripts_of(chosen) == ["scripts.tok_train", *TRAINED, *TALKS]
        assert f"--attention {mixer} --sequence-len 512 --seed 1 --run d4-{mixer} --num-iterations 300 " in chosen
    several = speedrun(tmp_path, RECIPE="best", ATTENTION="gaussian GD", RUN="mine").stdout
    assert "base_eval --run mine-gaussian\n" in several
    assert "chat_sft --base mine-GD --run mine-GD-chat" in several


def test_on_a_gpu_node_it_is_depth_20_on_all_gpus(tmp_path):
    text = speedrun(tmp_path, GPUS="8").stdout
    assert scripts_of(text)[:4] == ["scripts.fetch", "scripts.tok_train", *TRAINED]
    launch = "python -m torch.distributed.run --standalone --nproc_per_node=8 -m"
    assert f"{launch} scripts.base_train -- --data fineweb-edu --tokenizer fineweb-edu-32768 --depth 20 " in text
    assert f"{launch} scripts.chat_sft -- --base d20-gaussian --run d20-gaussian-chat" in text


GIVEN = {
    # variable: its value, and where it stands in the commands
    "DATA": ("/tmp/my text", "--data /tmp/my\\ text "),
    "ATTENTION": ("GGGD", "--attention GGGD"),
    "TRACKER": ("wandb", "--tracker wandb "),
    "TRAIN_FLAGS": ("--matrix-lr 0.01 *", "--matrix-lr 0.01 \\* --resume auto"),
    "RUN": ("mine", "--run mine "),
    "EVAL_BUNDLE": ("/tmp/b.zip", "base_eval --run mine --eval-bundle /tmp/b.zip"),
    "CHAT": ("talk.jsonl", "chat_sft --base mine --run mine-chat --data talk.jsonl --lr-scale 0.3"),
    "SEED": ("5", "--seed 5"),
    "DEVICE_BATCH_SIZE": ("2", "--device-batch-size 2"),
}


def test_variables_reach_the_commands_and_the_chat_can_be_left_out(tmp_path):
    text = speedrun(tmp_path, **{name: value for name, (value, _) in GIVEN.items()}).stdout
    assert [words for _, words in GIVEN.values() if words not in text] == []
    silent = scripts_of(speedrun(tmp_path, CHAT="none").stdout)
    assert [name for name in silent if "chat" in name] == ["scripts.chat_cli"]


def test_what_is_done_already_is_skipped(tmp_path):
    run = tmp_path / "runs" / "d3-gaussian"
    (tmp_path / "tokenizers" / "embedded-4096").mkdir(parents=True)
    (tmp_path / "tokenizers" / "embedded-4096" / "meta.json").touch()
    for step in (90, 600):
        (run / "checkpoints" / f"step_{step:06d}").mkdir(parents=True)
    (run / "visualization").mkdir()
    (run / "visualization" / "index.html").touch()
    (run / "evaluation.json").write_text('{\n "step": 600,\n "settings": {"eval_bundle": "/a"}\n}')
    (run / "report.html").touch()
    rest = ["scripts.base_train", *(name for name in TALKS if name != "scripts.visualize")]
    for bundle, expected in (("", rest), ("/a", rest), ("/b", [rest[0], "scripts.base_eval", *rest[1:]])):
        assert scripts_of(speedrun(tmp_path, RECIPE="paper", EVAL_BUNDLE=bundle).stdout) == expected
    (run / "evaluation.json").write_text('{\n "step": 60\n}')
    assert "scripts.base_eval" in scripts_of(speedrun(tmp_path, RECIPE="paper").stdout)
    (run / "report.html").touch()  # newer than what it reports
    assert "scripts.report" not in scripts_of(speedrun(tmp_path, RECIPE="paper", CHAT="none").stdout)


@pytest.mark.parametrize("language", ["C", "C.UTF-8"])
def test_odd_variables_are_named_all_at_once_before_anything_is_done(tmp_path, language):
    odd = {"DEPTH": "²", "NUM_ITERATIONS": "0", "SEED": "9" * 23, "RECIPE": "worst", "GPUS": "many"}
    odd |= {"RUN": "../x", "TRAIN_FLAGS": "'"}
    result = speedrun(tmp_path, LC_ALL=language, **odd)
    assert (result.returncode, result.stdout) == (2, "")
    assert [line.split(": got ")[0] for line in result.stderr.splitlines()] == [f"speedrun: {name}" for name in odd]


def test_shell_scripts_are_well_formed():
    for script in (ROOT / "speedrun.sh", *ROOT.glob("scripts/*.sh")):
        subprocess.run(["bash", "-n", str(script)], check=True)
