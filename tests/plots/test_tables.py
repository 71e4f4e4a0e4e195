"""Tables and numbers in text."""

import pytest

from nanogka.plots.tables import byte_size, duration, markdown_table, number, plain_table, scientific, size


def test_plain_tables_align_names_left_and_numbers_right():
    assert plain_table([["a", "1"], ["long", "1,000"]]) == "a         1\nlong  1,000"


def test_markdown_cells_cannot_break_their_row():
    table = markdown_table(["name", "value"], [["a|b", "two\nlines"]])
    assert table.splitlines() == ["| name | value |", "| --- | ---: |", "| a\\|b | two lines |"]


@pytest.mark.parametrize(
    "text, expected",
    [
        (number(378_798_320), "378,798,320"),
        (number(0.81908), "0.8191"),
        (number(None), "—"),
        (scientific(2_414_346_240), "2.4143e9"),
        (scientific(13_725_076_962_756_526_080), "1.3725e19"),
        (scientific(None), "—"),
        (size(219.4e9, "FLOP/s"), "219.4 GFLOP/s"),
        (size(2.5e9), "2.5 B"),
        (size(12), "12"),
        (byte_size(65_574_400), "62.5 MiB"),
        (byte_size(512), "512 B"),
        (duration(41.4), "41 s"),
        (duration(59.7), "1 min 00 s"),
        (duration(432), "7 min 12 s"),
        (duration(11_100), "3 h 05 min"),
        (duration(None), "—"),
    ],
)
def test_numbers_as_people_write_them(text, expected):
    assert text == expected
