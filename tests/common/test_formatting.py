"""Tables and foreign text as people read them."""

import pytest

from nanogka.common.formatting import code_block, code_span, markdown_table, one_line, plain_table, printable


def test_tables_align_names_left_and_numbers_right_and_no_cell_breaks_its_row():
    assert plain_table([["a", "1"], ["long", "1,000"]]) == "a         1\nlong  1,000"
    table = markdown_table(["name", "value"], [["a|b", "two\nlines"]])
    assert table.splitlines() == ["| name | value |", "| --- | ---: |", "| a\\|b | two␊lines |"]


def test_foreign_text_controls_neither_terminal_nor_page():
    hostile = "\x1b[31mred\x07\x9b2J\r\u202ebackwards\ud83d"
    for shown in (printable(hostile), one_line(hostile), code_span(hostile), code_block(hostile)):
        assert not set("\x1b\x07\x9b\r\u202e\ud83d") & set(shown)
        assert shown.encode().decode() == shown
    assert printable("a\n\tb, naïve 日本 🎈") == "a\n\tb, naïve 日本 🎈"


@pytest.mark.parametrize("text", ["`", "a `` b", "```"])
def test_code_may_contain_back_ticks(text):
    fence = code_block(text).splitlines()[-1]
    assert set(fence) == {"`"}
    assert fence not in text
    span = code_span(text)
    fence = span[: len(span) - len(span.lstrip("`"))]
    assert span.removeprefix(fence).removesuffix(fence).strip() == text
    assert fence not in text
