"""Own .csv and .tsv files: every field is text, whatever divides the columns, and faults are named."""

import csv

import pytest

from nanogka.data import own_text


def test_the_fields_of_a_csv_file_are_text_whatever_they_say(tmp_path):
    words = ["NA", "null", "None", "nan", "N/A", "1.5", "two\nlines, with a comma", 'a "quote"']
    with (tmp_path / "a.csv").open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows([("id", "text"), *enumerate(words), (9, " ")])
    assert list(own_text.documents(own_text.find_files(tmp_path))) == [*words, None]
    assert list(own_text.documents([tmp_path / "a.csv"], "id"))[:2] == ["0", "1"]
    (tmp_path / "b.txt").write_text("a text file comes first")
    assert own_text.find_files(tmp_path) == [tmp_path / "b.txt"]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_columns_of_a_table_may_be_divided_by_other_characters(tmp_path, delimiter):
    rows = [["id", " text"], ["1", "one, two; three|four\tfive"], ["2", 'a "quote"\nand a line']]
    with (tmp_path / "a.tsv").open("w", newline="") as file:
        file.write("\n\n")
        csv.writer(file, delimiter=delimiter).writerows(rows)
    assert list(own_text.documents(own_text.find_files(tmp_path))) == [text for _, text in rows[1:]]


@pytest.mark.parametrize(
    "content,said",
    [
        (b"text,b\none,1\ntwo,1,2\n", "line 3: has 3 fields, expected 2"),
        (b'text\n"one\ntwo\n', "line 3: unexpected end of data"),
        (
            b"body\none\n",
            "has the columns body, expected 'text'; `scripts.make_shards --column NAME` reads another one",
        ),
        (b"text,n,text\na,b,c\n", "has 2 columns 'text', expected one"),
        (b"", "has the columns .none."),
        (b"text\ncaf\xe9\n", "not UTF-8 .byte 0xe9.; if it is CP1252"),
        ("text\none\n".encode("utf-16"), "; it is UTF-16, convert"),
        ("text\none\n".encode("utf-32"), "; it is UTF-32, convert"),
        (b'text\n"a \\"b\\""\n', "line 2: .*a quote within a quoted field is written twice"),
        (b"text\none\0\n", "holds NUL"),
    ],
)
def test_a_fault_of_a_csv_file_is_named(tmp_path, content, said):
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(ValueError, match=f"^{tmp_path / 'a.csv'}.*{said}"):
        list(own_text.documents([tmp_path / "a.csv"]))


def test_the_line_of_a_spreadsheet_that_names_the_separator_is_no_header(tmp_path):
    (tmp_path / "a.csv").write_text("sep=!\nid!text\n1!one, two; three\n")
    assert list(own_text.documents([tmp_path / "a.csv"])) == ["one, two; three"]
