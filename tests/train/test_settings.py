"""Settings out of range are named by their flags, all at once."""

from dataclasses import fields

import pytest

from nanogka.cli import parse
from nanogka.problems import Problems
from nanogka.train.chat import ChatSettings
from nanogka.train.settings import FREE_ON_RESUME, TrainSettings

WRONG = {
    "skip_bad_batches": ("-1", "an integer of at least 0"),
    "rank_timeout": ("0.0", "a number of at least 1"),
    "keep": ("0", "an integer of at least 1"),
    "warmup_ratio": ("1.5", "a number from 0 to 1"),
}


def lines(**changes):
    problems = Problems()
    words = [f"--{name.replace('_', '-')}={value}" for name, value in changes.items()]
    parse(TrainSettings, words, "base_train", "", problems).check(problems)
    return problems.lines


@pytest.mark.parametrize("name", WRONG)
def test_a_value_out_of_range_is_named_with_what_the_flag_takes(name):
    value, takes = WRONG[name]
    assert lines(**{name: value}) == [f"--{name.replace('_', '-')}: got {value!r}, takes {takes}"]


def test_all_of_them_are_reported_together_and_the_defaults_are_sound():
    assert len(lines(**{name: value for name, (value, _) in WRONG.items()})) == len(WRONG)
    assert lines() == []


def test_what_a_resumed_run_may_change_are_settings():
    assert {f.name for kind in (TrainSettings, ChatSettings) for f in fields(kind)} >= FREE_ON_RESUME
