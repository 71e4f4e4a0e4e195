"""The sampler of mutants: what it changes, and that every mutant is a program."""

import ast

from draw import draw, mutants_of, nearest_tests
from mutate import ROOT

SOURCE = '''"""Ten 10s."""
def area(a: int | None = 2) -> int | None:
    if not a or a < 3:
        raise ValueError(f"{a + 1} é" + str(4))
    assert a > 5
    return -a * 1.5  # é
'''


def test_operators_comparisons_conditions_and_numbers_change_and_no_text_or_type(tmp_path):
    (tmp_path / "area.py").write_text(SOURCE, encoding="utf-8")
    mutants = mutants_of(tmp_path, "area.py")
    assert [(mutant.line, mutant.old, mutant.new) for mutant in mutants] == [
        (2, "2", "(3)"),
        (3, "not a", "(a)"),
        (3, "not a or a < 3", "(not a and a < 3)"),
        (3, "a < 3", "(a <= 3)"),
        (3, "3", "(4)"),
        (6, "-a", "(a)"),
        (6, "-a * 1.5", "(-a / 1.5)"),
        (6, "1.5", "(1.6500000000000001)"),
    ]
    for mutant in mutants:
        before = mutant.apply(tmp_path)
        text = (tmp_path / "area.py").read_text(encoding="utf-8")
        assert text == SOURCE.replace(mutant.old, mutant.new) or mutant.old in ("2", "3")
        ast.parse(text)
        (tmp_path / "area.py").write_text(before, encoding="utf-8")


def test_a_draw_repeats_and_has_its_nearest_tests():
    mutants = draw(ROOT, 40, seed=3, match="nanogka/evaluate|tasks/")
    assert mutants == draw(ROOT, 40, seed=3, match="nanogka/evaluate|tasks/") != draw(ROOT, 40, seed=4)
    assert {mutant.package for mutant in mutants} == {"evaluate", "tasks"}
    known = "tests/model/test_gpt.py"
    assert nearest_tests(ROOT, "nanogka/study/lead.py", [known]) == ["tests/study/test_lead.py", known]
    assert "tests/tasks/test_skills.py" in nearest_tests(ROOT, "tasks/dates.py", [])
