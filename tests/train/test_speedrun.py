"""speedrun.sh: the commands it runs, what it does when one of them fails, and the settings it refuses."""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from nanogka.common import gpus

ROOT = Path(__file__).parents[2]

# Stands in for `python`. It records its arguments and fails as the variable FAILURES says: "script=exit code", if its
# arguments contain ONLY. A training saves a checkpoint at each call, and does what TRAINING says.
PYTHON = r"""#!/usr/bin/env bash
[ "$*" != "-m nanogka.common.runtime" ] || { echo "${CHOSEN:-cpu bfloat16}"; exit; }
echo "$*" >> "$NANOGKA_BASE_DIR/calls"
script= run= word=
for next in "$@"; do
    case "$next" in scripts.*) script=${next#scripts.} ;; esac
    [ "$word" != --run ] || run=$NANOGKA_BASE_DIR/runs/$next
    word=$next
done
calls=$(grep -c "scripts.$script" "$NANOGKA_BASE_DIR/calls")
case "$script $*" in
    *--dry-run*) exit 0 ;;
    base_train* | chat_sft*) [ -n "${STUCK:-}" ] || mkdir -p "$run/checkpoints/step_0000$calls" ;;
esac
for failure in ${FAILURES:-}; do
    [ "${failure%%=*}" != "$script" ] || [ "$calls" -gt "${FAIL_UNTIL:-99}" ] || [[ "$*" != *"${ONLY:-}"* ]] ||
        exit "${failure##*=}"
done
[ "$script" != base_train ] || eval "${TRAINING:-}"
"""


def speedrun(tmp_path, **variables):
    """speedrun.sh as a dry run."""
    environment = {"PATH": os.environ["PATH"], "NANOGKA_BASE_DIR": str(tmp_path), "DRY_RUN": "1", "GPUS": "0"}
    command = ["bash", str(ROOT / "speedrun.sh")]
    return subprocess.run(command, env=environment | variables, capture_output=True, text=True)


def play(tmp_path, **variables):
    """speedrun.sh with the stand-in for python: its result and the calls it made."""
    command, environment = stage(tmp_path, variables)
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    calls = (tmp_path / "base" / "calls").read_text().splitlines()
    return done, [name for line in calls for name in scripts_of("   python " + line)]


def stage(tmp_path, variables):
    """The command and the environment of speedrun.sh with the stand-in for python."""
    commands, base = tmp_path / "commands", tmp_path / "base"
    for folder in (commands, base):
        folder.mkdir(exist_ok=True)
    shutil.copy(ROOT / "speedrun.sh", tmp_path)
    (tmp_path / "scripts").mkdir(exist_ok=True)
    shutil.copy(ROOT / "scripts" / "steps.sh", tmp_path / "scripts")
    (commands / "python").write_text(PYTHON)
    (commands / "python").chmod(0o755)
    (base / "calls").write_text("")
    path = f"{commands}:{os.environ['PATH']}"
    environment = {"PATH": path, "NANOGKA_BASE_DIR": str(base), "GPUS": "0", "RECIPE": "paper"}
    return ["bash", str(tmp_path / "speedrun.sh")], environment | variables


def scripts_of(output):
    lines = [line.split() for line in output.splitlines() if line.startswith("   python ")]
    names = [[word for word in words if word.startswith("scripts.") and word != "scripts.launch"] for words in lines]
    return [found[0] for found in names]


def command_of(output, script):
    return next(line for line in output.splitlines() if f" scripts.{script} " in line)


PREPARED = ["scripts.fetch", "scripts.fetch", "scripts.tok_train", "scripts.fetch"]  # for a GPU node
TRAINED = ["scripts.base_train", "scripts.base_eval"]
DRAWN = ["scripts.visualize", "scripts.report"]
TALKS = ["scripts.chat_sft", "scripts.chat_eval", "scripts.chat_cli", *DRAWN]
PAGE = "scripts.page"  # of small models only


# ---- the commands ----


def test_small_run_trains_two_mixers_alike_and_the_last_one_talks(tmp_path):
    text = speedrun(tmp_path).stdout
    assert scripts_of(text) == ["scripts.tok_train", *TRAINED, *TRAINED, *TALKS, PAGE]
    for mixer in ("gaussian", "successor"):
        assert (
            f"python -m scripts.base_train --attention {mixer} --run d3-{mixer} --data embedded "
            "--tokenizer embedded-1024 --depth 3 "
            "--sequence-len 512 --seed 1 --num-iterations 280 --total-batch-size 2048 --lr-scale 1.2 "
            "--eval-every 140 --eval-tokens 16384 --save-every 100 --resume auto"
        ) in text
    assert "chat_sft --base d3-successor --run d3-successor-chat --data embedded" in text
    assert "report --run d3-successor --compare d3-gaussian\n" in text
    assert list(tmp_path.iterdir()) == []


def test_it_runs_from_any_folder_shell_and_home(tmp_path):
    for folder in ("elsewhere/checkout", "texts"):
        (tmp_path / folder).mkdir(parents=True)
    expected = speedrun(tmp_path, DATA=str(tmp_path / "texts"), NANOGKA_BASE_DIR=str(tmp_path / "base")).stdout
    assert f"--data {tmp_path}/texts " in expected
    # With CDPATH a relative `cd` may find a folder of that name elsewhere, and prints it.
    (tmp_path / "checkout").symlink_to(ROOT)
    environment = {"PATH": os.environ["PATH"], "DRY_RUN": "1", "GPUS": "0", "DATA": "texts"}
    environment |= {"NANOGKA_BASE_DIR": "base", "CDPATH": str(tmp_path / "elsewhere")}
    for words in (["bash", "checkout/speedrun.sh"], ["sh", "checkout/speedrun.sh"]):
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert (done.stderr, done.stdout.partition("\nDone in")[0]) == ("", expected.partition("\nDone in")[0])
    show = ["bash", "-euc", 'here=$PWD/checkout; . checkout/scripts/steps.sh; echo "$base"']
    for given, base in (
        ("~/mine", "/h/mine"),
        ("mine", f"{tmp_path}/mine"),
        ("/mine", "/mine"),
        ("", "/h/.cache/nanogka"),
    ):
        variables = {"NANOGKA_BASE_DIR": given, "HOME": "/h"}
        done = subprocess.run(show, cwd=tmp_path, env=environment | variables, capture_output=True, text=True)
        assert (done.stderr, done.stdout) == ("", f"{base}\n")
    del environment["NANOGKA_BASE_DIR"]
    done = subprocess.run(show, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.stderr, done.stdout) == ("", f"{pwd.getpwuid(os.getuid()).pw_dir}/.cache/nanogka\n")


def test_set_up_gives_pip_to_an_environment_without_it_and_ignores_installing_for_the_user(tmp_path):
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/setup.sh", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    record = 'echo "$* PIP_USER=$PIP_USER" >> "$(dirname "$0")/calls"; [ "$*" != "-c import pip" ]'
    fake(tmp_path / ".venv" / "bin", "python", record)
    environment = {"PATH": os.environ["PATH"], "PIP_USER": "1", "GPUS": "0", "PYTHON": sys.executable}
    subprocess.run(["sh", "scripts/setup.sh"], cwd=tmp_path, env=environment, capture_output=True)
    calls = (tmp_path / ".venv/bin/calls").read_text().splitlines()
    assert calls[:2] == ["-c import pip PIP_USER=1", "-m ensurepip PIP_USER=1"]
    assert calls[2].startswith("-m pip ")
    assert calls[2].endswith(" PIP_USER=0")


@pytest.mark.parametrize(
    "chosen,variables,said",
    [
        ("cpu float32", {}, True),
        ("cpu float32", {"DEPTH": "4"}, True),
        ("cpu float32", {"DEPTH": "2"}, False),
        ("cpu bfloat16", {}, False),
        ("mps float32", {}, False),
    ],
)
def test_a_slow_cpu_is_told_of_smaller_models_before_it_trains(tmp_path, chosen, variables, said):
    first, _ = play(tmp_path, CHOSEN=chosen, **variables)
    before = first.stdout.partition(" scripts.base_train ")[0]
    assert (first.returncode, "DEPTH=2 bash speedrun.sh" in before) == (0, said)
    again, _ = play(tmp_path, CHOSEN=chosen, **variables)
    assert "DEPTH=2 bash speedrun.sh" not in again.stdout, "the models exist"


def test_smaller_models_get_more_steps_of_conversations(tmp_path):
    steps = {depth: command_of(speedrun(tmp_path, DEPTH=depth).stdout, "chat_sft") for depth in ("2", "3", "4")}
    assert [int(line.partition("--num-iterations ")[2].split()[0]) for line in steps.values()] == [1800, 1200, 1200]


def test_a_recipe_or_mixers_can_be_chosen(tmp_path):
    for recipe, mixer, rate in (("paper", "gaussian", "0.6"), ("best", "successor", "0.3")):
        chosen = speedrun(tmp_path, RECIPE=recipe, DEPTH="4").stdout
        assert scripts_of(chosen) == ["scripts.tok_train", *TRAINED, *TALKS, PAGE]
        assert f"--attention {mixer} --run d4-{mixer} " in chosen
        chat = f" --num-iterations 1200 --total-batch-size 2016 --bandwidth-lr 0.05 --lr-scale {rate} "
        assert chat in chosen
    several = speedrun(tmp_path, RECIPE="best", ATTENTION="gaussian GD", RUN="mine").stdout
    assert "base_eval --run mine-gaussian --split-tokens 65536 --max-per-task 100\n" in several
    assert "chat_sft --base mine-GD --run mine-GD-chat" in several


def test_gpu_node_fetches_first_and_uses_all_gpus(tmp_path):
    text = speedrun(tmp_path, GPUS="8", ATTENTION="gaussian dot_product").stdout
    planned = ["scripts.base_train"] * 2
    before = [*planned, "scripts.bench"]
    assert scripts_of(text) == [*before, *PREPARED, *TRAINED, *TRAINED, *TALKS], "it plans before it downloads"
    compiled = command_of(text, "bench")
    assert " --nproc_per_node=8 -m scripts.bench -- train --device cuda --mixers gaussian --depth 20 " in compiled
    assert compiled.endswith(" --sequence-len 2048 --vocab-size 32768 --batch 32 --repeats 1")
    assert "scripts.bench" not in speedrun(tmp_path, GPUS="8", TRAIN_FLAGS="--network july").stdout, "another model"
    assert "fetch --data fineweb-edu -n 101 --bundle --chat-tasks --conversations smoltalk:9" in text
    assert "--conversations smoltalk:9\\,embedded:1 --tokenizer fineweb-edu-32768 --sequence-len 2048" in text
    assert text.count("--shards 101 ") == 4, "every mixer reads the same text"
    launch = "python -m scripts.launch --nproc_per_node=8 -m scripts."
    for script in ("base_train", "base_eval", "chat_sft", "chat_eval"):
        assert f"{launch}{script} -- --device cuda " in text
    assert "--eval bpb\\,core\\,sample --eval-bundle download" in command_of(text, "base_eval")


def test_stages_are_the_parts_of_the_whole_and_only_one_uses_the_gpus(tmp_path):
    parts = {stage: speedrun(tmp_path, GPUS="8", STAGE=stage).stdout for stage in ("prepare", "train", "after")}
    commands = [line for text in parts.values() for line in text.splitlines() if line.startswith("   python ")]
    whole = speedrun(tmp_path, GPUS="8").stdout
    planned = [line for line in commands if line.endswith(" --dry-run")]
    others = [line for line in commands if line not in planned]
    everything = [line for line in whole.splitlines() if line.startswith("   python ")]
    assert [*planned, *others] == [line for line in everything if "scripts.bench" not in line]
    assert scripts_of(parts["prepare"]) == PREPARED
    assert [stage for stage, text in parts.items() if "cuda" in text or "scripts.launch" in text] == ["train"]
    assert ["Talk to it" in text for text in parts.values()] == [False, False, True]


def fake(folder, name, script):
    """Put a command into a folder of commands; the PATH with it in front, then this Python for a copy without .venv."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)
    return f"{folder}:{Path(sys.executable).parent}:{os.environ['PATH']}"


BROKEN_DRIVERS = {
    "echo 'Failed to initialize NVML: Driver/library version mismatch'; echo more; exit 18": "version mismatch'",
    "echo 'could not communicate with the NVIDIA driver' >&2; exit 9": "could not communicate with the NVIDIA driver'",
    "exit 6": "exit code 6'",
}


@pytest.mark.parametrize("driver", BROKEN_DRIVERS)
def test_a_broken_driver_is_an_error_with_a_way_out(tmp_path, driver):
    path = fake(tmp_path / "commands", "nvidia-smi", driver)
    refused = speedrun(tmp_path, GPUS="", PATH=path)
    assert refused.returncode == 2
    assert f"{BROKEN_DRIVERS[driver]} from nvidia-smi, expected a list of GPUs" in refused.stderr
    assert "or use the CPU with GPUS=0" in refused.stderr
    assert "scripts.tok_train" not in refused.stdout
    small = speedrun(tmp_path, GPUS="0", PATH=path)
    assert small.returncode == 0
    assert "--depth 3" in small.stdout


@pytest.fixture(autouse=True)
def no_hidden_gpus(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize("visible", ["", "-1", "9"])
def test_gpus_that_the_user_hides_are_no_fault_of_the_driver(tmp_path, monkeypatch, visible):
    monkeypatch.setenv("PATH", fake(tmp_path / "commands", "nvidia-smi", "echo 'GPU 0: NVIDIA H100 (UUID: GPU-1)'"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if visible == "9":  # torch finds none of this number
        monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
        with pytest.raises(ValueError, match="with CUDA_VISIBLE_DEVICES='9', expected the 1 GPUs"):
            gpus.count_gpus()
    else:
        assert gpus.count_gpus() == 0


def test_a_driver_that_hangs_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", fake(tmp_path / "commands", "nvidia-smi", "exec sleep 60"))
    monkeypatch.setattr(gpus, "TIMEOUT", 0.2)
    with pytest.raises(ValueError, match=r"GPUS: got 'no answer in 0.2 s' from nvidia-smi.*GPUS=0"):
        gpus.count_gpus()


@pytest.mark.parametrize(
    "content, said",
    [(b"\x7fELF of another processor", "Exec format error"), (b"#!/bin/sh\nprintf '\\377'; exit 1", "\ufffd")],
)
def test_a_driver_that_cannot_run_or_writes_no_text_is_an_error(tmp_path, monkeypatch, content, said):
    monkeypatch.setenv("PATH", fake(tmp_path / "commands", "nvidia-smi", ""))
    (tmp_path / "commands" / "nvidia-smi").write_bytes(content)
    with pytest.raises(ValueError, match=f"GPUS: got '{said}' from nvidia-smi.*GPUS=0"):
        gpus.ask_driver("-L")


def test_set_up_stops_at_a_broken_driver_before_it_installs_anything(tmp_path):
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/setup.sh", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    driver = fake(tmp_path / "commands", "nvidia-smi", "echo 'Failed to initialize NVML: mismatch'; echo more; exit 18")
    command, environment = ["bash", str(tmp_path / "scripts" / "setup.sh")], {"PATH": driver, "PYTHON": "false"}
    refused = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert refused.returncode == 2
    assert refused.stderr.startswith("setup: GPUS: got 'Failed to initialize NVML: mismatch' from nvidia-smi, expected")
    for further, script in (({"GPUS": "0"}, "exit 18"), ({}, "echo 9.0")):
        fake(tmp_path / "commands", "nvidia-smi", script)
        next_check = subprocess.run(command, env=environment | further, capture_output=True, text=True)
        assert "PYTHON=false is older" in next_check.stderr, "the driver does not stop it"
    assert not (tmp_path / ".venv").exists()


def test_an_amd_gpu_is_named_before_the_cpu_trains(tmp_path):
    done = speedrun(tmp_path, GPUS="", PATH=fake(tmp_path / "commands", "rocm-smi", "exit 0"))
    assert done.returncode == 0
    assert "AMD GPU, which nanogka does not use" in done.stderr


def test_flags_about_the_machine_reach_fine_tuning(tmp_path):
    flags = "--matrix-lr 0.01 --allow-torch --compile off --dtype=float32 --keep 2"
    talk = command_of(speedrun(tmp_path, GPUS="2", TRAIN_FLAGS=flags).stdout, "chat_sft")
    assert " --allow-torch --compile off --dtype=float32 --resume auto" in talk
    assert "matrix-lr" not in talk
    assert "--keep" not in talk


def test_offline_node_fetches_nothing(tmp_path):
    variables = {"DATA": "/tmp/text", "EVAL_BUNDLE": "/tmp/bundle", "CHAT": "embedded"}
    assert "scripts.fetch" not in scripts_of(speedrun(tmp_path, GPUS="8", **variables).stdout)


GIVEN = {
    # variable: its value, and where it appears in the commands
    "DATA": ("/tmp/my text", "--data /tmp/my\\ text "),
    "ATTENTION": ("GGGD", "--attention GGGD"),
    "TRACKER": ("wandb", "--tracker wandb "),
    "TRAIN_FLAGS": ("--matrix-lr 0.01 *", "--matrix-lr 0.01 \\* --resume auto"),
    "RUN": ("mine", "--run mine "),
    "EVAL_BUNDLE": (
        "/tmp/b.zip",
        "base_eval --run mine --split-tokens 65536 --max-per-task 100 --eval-bundle /tmp/b.zip",
    ),
    "CHAT": ("talk.jsonl", "--data talk.jsonl"),
    "SEED": ("5", "--seed 5"),
    "DEVICE_BATCH_SIZE": ("2", "--device-batch-size 2"),
}


def test_variables_reach_the_commands_and_the_chat_can_be_left_out(tmp_path):
    text = speedrun(tmp_path, **{name: value for name, (value, _) in GIVEN.items()}).stdout
    assert [words for _, words in GIVEN.values() if words not in text] == []
    silent = scripts_of(speedrun(tmp_path, CHAT="none").stdout)
    assert [name for name in silent if "chat" in name] == ["scripts.chat_cli"]


def test_settings_that_differ_from_the_defaults_get_runs_and_tokenizers_of_their_own(tmp_path):
    def names(**variables):
        text = speedrun(tmp_path, RECIPE="paper", **variables).stdout
        words = command_of(text, "base_train").split(), command_of(text, "chat_sft").split()
        flags = ((words[0], "--tokenizer"), (words[0], "--run"), (words[1], "--run"))
        return tuple(given[given.index(flag) + 1] for given, flag in flags)

    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "texts").symlink_to(tmp_path)
    changed = {"SEED": "2", "NUM_ITERATIONS": "200", "VOCAB_SIZE": "4096", "TRAIN_FLAGS": "--smear"}
    changes = [{}, *({name: value} for name, value in changed.items()), {"TRAIN_FLAGS": "--no-smear"}]
    changes += [{"DATA": str(tmp_path / "texts")}, {"DATA": str(tmp_path / "b" / "texts")}]
    found = [names(**change) for change in changes]
    assert found[0] == ("embedded-1024", "d3-gaussian", "d3-gaussian-chat")
    assert found[1][1:] == ("d3-s2-gaussian", "d3-s2-gaussian-chat")
    assert len({run for _, run, _ in found}) == len(changes)
    assert len({tokenizer for tokenizer, *_ in found}) == 4, "one per corpus and vocabulary"
    tokenizer, run, talk = names(CHAT="my.jsonl")
    assert (tokenizer, run) == found[0][:2]
    assert talk.startswith("d3-gaussian-chat-my.jsonl-")


# ---- what is done, and what fails ----


def test_late_steps_that_fail_do_not_stop_the_rest(tmp_path):
    failing = {"base_eval": 1, "chat_eval": 2, "chat_cli": 1, "visualize": 1, "report": 1}
    done, calls = play(tmp_path, FAILURES=" ".join(f"{name}={code}" for name, code in failing.items()))
    assert calls == ["scripts.tok_train", *TRAINED, *TALKS, PAGE]
    assert (done.returncode, done.stderr.count("(exit code ")) == (1, 5)


@pytest.mark.parametrize("failures, stuck, trainings, code", [
    ("", "", 1, 0),
    ("base_train=1", "", 3, 0),  # each attempt saves a checkpoint, and the third one succeeds
    ("base_train=1", "1", 1, 1),  # no checkpoint: it would fail again
    ("base_train=2", "", 1, 2),
    ("base_train=3", "", 1, 3),
    ("base_train=130", "", 1, 130),
])  # fmt: skip
def test_training_is_resumed_while_it_makes_progress(tmp_path, failures, stuck, trainings, code):
    done, calls = play(tmp_path, FAILURES=failures, STUCK=stuck, FAIL_UNTIL="2")
    assert (calls.count("scripts.base_train"), done.returncode) == (trainings, code)
    assert ("erun this script" in done.stderr) == (code not in (0, 2))


def test_a_mixer_that_refuses_its_settings_does_not_stop_the_other(tmp_path):
    both = {"ATTENTION": "gaussian successor"}
    done, calls = play(tmp_path, FAILURES="base_train=2", ONLY="gaussian", **both)
    assert (calls.count("scripts.base_train"), calls.count("scripts.base_eval")) == (3, 1), "one is asked twice"
    assert (done.returncode, "d3-gaussian (it refused" in done.stderr) == (1, True)
    assert "--compare" not in command_of(done.stdout, "report")
    done, calls = play(tmp_path, FAILURES="base_train=2", **both)
    assert (done.returncode, calls.count("scripts.base_eval")) == (2, 0)


def test_two_mixers_are_trained_at_the_same_time_with_half_of_the_cores_each(tmp_path):
    meet = """
        echo "$4 with $OMP_NUM_THREADS threads"
        touch "$NANOGKA_BASE_DIR/trains-$4"
        both() { [ -e "$NANOGKA_BASE_DIR/trains-gaussian" ] && [ -e "$NANOGKA_BASE_DIR/trains-successor" ]; }
        for i in {1..200}; do both && break; sleep 0.05; done
        both
    """
    fake(tmp_path / "commands", "nproc", "echo 6")
    done, calls = play(tmp_path, ATTENTION="gaussian successor", TRAINING=meet)
    assert (done.returncode, done.stderr, calls.count("scripts.base_train")) == (0, "", 2)
    order = ["same time as the next steps: gaussian", "successor with 3 threads", "gaussian with 3 threads", "to chat"]
    places = [done.stdout.index(words) for words in order]
    assert places == sorted(places), "the output of the first mixer is shown when the second has ended"
    done, _ = play(tmp_path, ATTENTION="gaussian successor", TRAINING=meet, OMP_NUM_THREADS="5")
    assert "gaussian with 5 threads" in done.stdout


def test_ctrl_c_stops_both_trainings_and_waits_until_both_are_saved(tmp_path):
    training = """
        trap 'sleep 0.3; touch "$NANOGKA_BASE_DIR/saved-$4"; exit 143' INT TERM
        touch "$NANOGKA_BASE_DIR/trains-$4"
        for i in {1..600}; do sleep 0.05; done
    """
    command, environment = stage(tmp_path, {"ATTENTION": "gaussian successor", "TRAINING": training})
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    base = tmp_path / "base"
    while not {"trains-gaussian", "trains-successor"} <= {path.name for path in base.iterdir()}:
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    output, _ = process.communicate(timeout=20)
    assert {"saved-gaussian", "saved-successor"} <= {path.name for path in base.iterdir()}
    assert process.returncode == 143
    assert "Finished work is kept" in output


def test_downloads_are_repeated_in_the_foreground_if_they_fail(tmp_path):
    done, calls = play(tmp_path, FAILURES="fetch=1", EVAL_BUNDLE="download")
    assert calls[0:3] in (
        ["scripts.fetch", "scripts.tok_train", "scripts.fetch"],
        ["scripts.tok_train", "scripts.fetch", "scripts.fetch"],
    )
    assert (done.returncode, len(calls)) == (1, 3), "nothing is trained without its data"
    assert "scripts.base_train" in play(tmp_path, EVAL_BUNDLE="download")[1]


def test_a_node_whose_gpus_torch_cannot_use_does_not_train_toys(tmp_path):
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n[ $1 != -L ] || echo 'GPU 0: NVIDIA H100'; echo 535.104\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    path = f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = speedrun(tmp_path / "base", GPUS="", PATH=path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"torch {torch.__version__}, expected the 1 GPUs" in done.stderr
    assert all(words in done.stderr for words in ("driver 535.104", "TORCH_BACKEND=cu126", "GPUS=0"))
    assert speedrun(tmp_path / "base", GPUS="0", PATH=path).returncode == 0


def test_odd_variables_are_named_all_at_once_before_anything_is_done(tmp_path):
    odd = {"DEPTH": "²", "NUM_ITERATIONS": "0", "SEED": "9" * 23, "RECIPE": "worst", "STAGE": "all", "GPUS": "many"}
    odd |= {"RUN": "../x", "TRAIN_FLAGS": "'"}
    result = speedrun(tmp_path, LC_ALL="C.UTF-8", **odd)
    assert (result.returncode, result.stdout) == (2, "")
    assert [line.split(": got ")[0] for line in result.stderr.splitlines()] == [f"speedrun: {name}" for name in odd]
