"""What each setting of a training run changes: said at its flag, and the same for resume, reports and studies."""

import pytest

from nanogka.common.cli import flags_of
from nanogka.study.grid import decisive
from nanogka.train.chat import ChatSettings
from nanogka.train.rl import RLSettings
from nanogka.train.settings import TrainSettings, compared_on_resume
from scripts import base_train, chat_rl, chat_sft


@pytest.mark.parametrize("settings", [TrainSettings, ChatSettings, RLSettings])
def test_every_setting_says_what_it_changes(settings):
    assert [name for name, one in flags_of(settings).items() if one.affects is None] == []


def test_a_run_is_compared_in_what_decides_its_losses():
    compared = compared_on_resume(TrainSettings)
    assert {"matrix_lr", "seed", "dtype", "attention", "num_iterations", "short_conv"} <= compared
    # The fingerprints of the text and the number of steps are compared instead.
    assert not compared & {"data", "tokenizer", "shards", "target_flops"}
    assert not compared & {"device", "compile", "keep", "sample_every", "rank_timeout"}
    assert "eval_samples" not in compared_on_resume(RLSettings)


def test_a_study_knows_a_run_by_its_budget_and_not_by_where_its_text_is():
    first = decisive(TrainSettings(target_flops=1e13, data="here", sample_every=3).to_dict())
    assert first == decisive(TrainSettings(target_flops=1e13, data="there", keep=7).to_dict())
    assert first != decisive(TrainSettings(target_flops=2e13, data="here").to_dict())


@pytest.mark.parametrize(
    "main,words,says",
    [
        (base_train.main, "--matrix-lr", "does not resume with another value"),
        (base_train.main, "short_conv", "does not resume with another value"),
        (base_train.main, "data", "leads to the same `corpus`"),
        (base_train.main, "compile", "the speed or the memory"),
        (chat_sft.main, "epochs", "leads to the same `num_iterations`"),
        (chat_rl.main, "eval-samples", "not its losses. A run may resume"),
    ],
)
def test_a_flag_explains_itself(main, words, says, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--explain", words])
    assert ended.value.code == 0
    assert says in capsys.readouterr().out.replace("\n", " ")


def test_a_flag_that_is_not_there_is_not_explained(capsys):
    assert base_train.main(["--explain", "matrix-lt"]) == 2
    assert "--explain: got 'matrix-lt', expected one of this script's flags; did you mean --matrix-lr?" in (
        capsys.readouterr().err
    )
