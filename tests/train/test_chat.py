"""Fine-tuning on conversations: it learns, resumes exactly, leaves out what is bad, and refuses what does not fit."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from training import fine_tune, newest, trace, write_talk

from nanogka.data.conversation import ChatFormat, Conversation
from nanogka.generate.engine import Engine
from nanogka.runs import Run, SavedRun, find_run, load_run, write_config
from nanogka.train.base import open_base
from nanogka.train.chat import ChatSettings, with_defaults
from nanogka.train.rl import RLSettings
from scripts import chat_sft
from tasks import chat_data


def test_fine_tuning_lowers_the_loss_and_leaves_a_chat_model_that_replies(chat_base, talk):
    assert fine_tune("--data", talk, "--num-iterations", 120, "--eval-every", 60) == 0
    folder = chat_base / "runs" / "tiny-chat"
    losses = [line["val_loss"] for line in trace(folder, "eval") if "val_loss" in line]
    assert losses[0] > 5  # ln 300
    assert losses[-1] < 1
    config = yaml.safe_load((folder / "config.yaml").read_text())
    assert config["run"]["kind"] == "chat"
    assert config["run"]["base"] == {"run": "tiny", "step": 7, "data": "text"}
    run = load_run()
    assert (run.folder, run.kind, run.step) == (folder, "chat", 120)
    assert find_run(kind="base").name == "tiny"
    form, engine = ChatFormat(run.tokenizer), Engine(run.model, run.tokenizer)
    prompt = form.render_prompt(Conversation.of("the cat 3"))
    steps = list(engine.stream([prompt], max_tokens=12, stop_tokens=[form.stop_id]))
    assert "".join(event.text for (event,) in steps) in ("a dog", "a house")
    # What is shown to people are questions of this run's own validation text.
    learned = [json.loads(line)["messages"][0]["content"] for line in talk.read_text().splitlines()]
    assert 1 <= len(run.examples) <= 4
    assert set(run.examples) <= set(learned)
    assert run.promise == ""
    assert steps[-1][0].finish_reason == "stop"


def test_short_conversations_have_short_rows_and_the_base_runs_rates():
    def chosen(longest, world_size=1, **given):
        train, val = (SimpleNamespace(lengths=np.array(lengths)) for lengths in ([9, longest], [9]))
        source = SimpleNamespace(train=train, val=val)
        config = {"settings": {"lr_scale": 1.2}, "run": {"total_batch_size": 4096}}
        base = SavedRun(None, config, None, 0, None)
        found = with_defaults(ChatSettings(**given), base, 512, SimpleNamespace(sources=[source]), world_size)
        return found.sequence_len, found.total_batch_size, found.lr_scale

    assert chosen(44) == (48, 24 * 48, 1.2)
    assert chosen(49, world_size=5) == (48, 25 * 48, 1.2)
    assert chosen(50) == (64, 18 * 64, 1.2)
    assert chosen(90) == (96, 12 * 96, 1.2)
    assert chosen(129) == (None, 4096, 1.2)  # rows of the base model's context
    assert chosen(44, sequence_len=100, lr_scale=0.5) == (100, 4096, 0.5)
    assert chosen(44, total_batch_size=960) == (48, 960, 1.2)
    assert chosen(116, total_batch_size=2016) == (144, 2016, 1.2)  # 128 does not divide the batch
    assert chosen(44, total_batch_size=960, world_size=3) == (64, 960, 1.2)
    assert chosen(44, total_batch_size=50) == (48, 50, 1.2)  # no length does: it is refused later


def test_epochs_decide_the_number_of_steps(chat_base, talk, monkeypatch):
    planned = []
    monkeypatch.setattr(chat_sft, "train_run", lambda plan, recipe: planned.append((plan, recipe.mixture)) or 0)
    for epochs in ("1", "2.5"):
        words = f"--data {talk} --total-batch-size 64 --lr-scale 1 --device cpu --epochs {epochs}"
        assert chat_sft.main(words.split()) == 0
    for (plan, mixture), epochs in zip(planned, (1, 2.5), strict=True):
        assert plan.num_iterations == round(epochs * mixture.tokens / 64) > 5


def test_a_conversation_has_one_token_more_than_its_row(chat_base, talk, monkeypatch):
    """The last token is only a target."""
    planned = []
    monkeypatch.setattr(chat_sft, "train_run", lambda plan, recipe: planned.append(recipe.mixture.sources[0]) or 0)
    words = f"--data {talk} --lr-scale 1 --device cpu --num-iterations 1".split()
    assert chat_sft.main([*words, "--total-batch-size", "64"]) == 0
    (source,) = planned
    longest = int(max(source.train.lengths.max(), source.val.lengths.max()))
    for row in (longest - 1, longest - 2):
        assert chat_sft.main([*words, "--sequence-len", str(row), "--total-batch-size", str(row)]) == 0
    assert [bool(source.rejected) for source in planned] == [False, False, True]


def test_it_begins_with_the_weights_of_its_base_and_records_the_text_that_the_first_one_learned(chat_base, talk):
    short = ["--data", talk, "--num-iterations", 1, "--lr-scale", 0]
    assert fine_tune(*short) == 0
    before, after = (newest(chat_base / "runs" / name).weights for name in ("tiny", "tiny-chat"))
    assert all(torch.equal(tensor, before[name]) for name, tensor in after.items())
    assert fine_tune(*short, "--base", "tiny-chat", "--run", "again") == 0
    config = yaml.safe_load((chat_base / "runs" / "again" / "config.yaml").read_text())
    assert config["run"]["base"] == {"run": "tiny-chat", "step": 1, "data": "text"}


def test_a_run_that_resumes_starts_from_the_base_that_it_had(chat_base):
    """Without --base the latest chat run is the one that resumes."""
    run = Run.open(chat_base / "runs" / "tiny")
    folder = shutil.copytree(run.folder, chat_base / "runs" / "mine")
    facts = {"settings": {"base": "tiny", "base_step": 7}, "run": run.part("run") | {"kind": "chat"}}
    write_config(folder, run.config | facts)
    assert open_base(RLSettings(run="mine", resume="auto"), kind="chat").folder.name == "tiny"
    assert open_base(RLSettings(run="other", resume="auto"), kind="chat").folder.name == "mine"


def test_the_loss_of_a_mixture_is_the_mean_by_its_shares(chat_base, talk, monkeypatch):
    monkeypatch.setattr(chat_data, "EMBEDDED_TRAIN", 200)
    monkeypatch.setattr(chat_data, "EMBEDDED_VAL", 40)
    assert fine_tune("--data", f"{talk}:2,embedded:1", "--num-iterations", 1, "--eval-every", 0) == 0
    run = chat_base / "runs" / "tiny-chat"
    sources = yaml.safe_load((run / "config.yaml").read_text())["run"]["sources"]
    assert [source["share"] for source in sources] == [0.666667, 0.333333]
    last = trace(run, "eval")[-1]
    assert 4 < last["val_loss"] < 6.5, "near ln 300 after eight steps in all"
    assert last["val_loss"] == pytest.approx(last[f"val_loss {talk}"] * 2 / 3 + last["val_loss embedded"] / 3)


def test_the_validation_of_a_mixture_has_the_loss_and_the_tokens_of_each_source(chat_base, talk):
    other = write_talk(talk.with_name("other.jsonl"), count=400)
    words = ["--num-iterations", 1, "--eval-every", 1, "--lr-scale", 0, "--sequence-len", 32]
    last = {}
    for name, data in (("one", talk), ("two", other), ("both", f"{talk},{other}")):
        assert fine_tune("--data", data, "--run", name, *words) == 0
        last[name] = trace(chat_base / "runs" / name, "eval")[-1]
    assert last["one"]["val_tokens"] != last["two"]["val_tokens"]
    assert last["both"]["val_tokens"] == last["one"]["val_tokens"] + last["two"]["val_tokens"]
    for name, source in (("one", talk), ("two", other)):
        assert last["both"][f"val_loss {source}"] == pytest.approx(last[name]["val_loss"], rel=1e-6)


def test_bad_conversations_are_reported_and_left_in_a_file_or_stop_the_run(chat_base, capsys):
    bad = ['{"messages": [', '{"messages": [{"role": "user", "content": "the old house"}]}']
    bad.append(json.dumps(Conversation.of("the cat " * 40, "a dog").to_json()))
    talk = write_talk(chat_base / "bad.jsonl", bad=bad)
    assert fine_tune("--data", talk, "--num-iterations", 1) == 0
    assert capsys.readouterr().out.count("left out   1 × ") == 3
    folder = chat_base / "runs" / "tiny-chat"
    assert (folder / "bad_conversations.jsonl").stat().st_mode & 0o077 == 0
    written = [json.loads(line) for line in (folder / "bad_conversations.jsonl").read_text().splitlines()]
    assert [one["place"] for one in written] == [f"{talk}, line {line}" for line in (11, 12, 13)]
    assert yaml.safe_load((folder / "config.yaml").read_text())["run"]["sources"][0]["left_out"] == 3
    assert fine_tune("--data", talk, "--bad-conversations", "stop", "--run", "other") == 2
    assert capsys.readouterr().err.count("chat_sft: --data: 1 × ") == 3
    assert not (chat_base / "runs" / "other").exists()


@pytest.mark.parametrize(
    "words,message",
    [
        ("--data nowhere.jsonl", "--data: got 'nowhere.jsonl'"),
        ("--base nothing", "--base: got 'nothing'"),
        ("--base-step 8", "--base-step: got 8"),
        ("--sequence-len 65 --data TALK", "--sequence-len: got 65"),
        ("--total-batch-size 100 --data TALK", "--total-batch-size: got 100 tokens"),
        ("--run tiny --overwrite --data TALK", "--run: got 'tiny'"),
    ],
)
def test_what_does_not_fit_is_named_before_anything_is_created(chat_base, talk, words, message, capsys):
    assert fine_tune(*words.replace("TALK", str(talk)).split()) == 2
    assert f"chat_sft: {message}" in capsys.readouterr().err
    assert sorted(path.name for path in (chat_base / "runs").iterdir()) == ["tiny"]
    assert newest(chat_base / "runs" / "tiny").step == 7


def test_a_run_goes_on_only_with_the_same_conversations(chat_base, talk, capsys):
    words = ["--data", talk, "--num-iterations", 2, "--resume", "auto"]
    assert fine_tune(*words) == 0
    write_talk(talk, count=70)
    assert fine_tune(*words) == 2
    assert f"--data: got '{talk}'" in capsys.readouterr().err
    write_talk(talk)
    capsys.readouterr()
    assert fine_tune(*words) == 0
    done = f"done already: {chat_base / 'runs' / 'tiny-chat'} has all 2 steps; --overwrite starts over\n"
    assert capsys.readouterr().out == done
