"""Reviewed one-line faults, each with the test that must catch it. `tests/mutate.py` runs them.

Add one with every new promise: break the code by hand, see the test fail, and write the fault down here. A fault must
change what a user gets, not only how it is computed.
"""

from mutate import Mutant as M

MUTANTS = [
    # ---- study ----
    M("nanogka/study/lead.py", "share = math.log(tokens /", "share = (tokens /", "tests/study/test_lead.py"),
    M(
        "nanogka/study/lead.py",
        "subject[loss] - control[loss]",
        "control[loss] - subject[loss]",
        "tests/study/test_lead.py",
    ),
    M("nanogka/study/lead.py", "times[0] / times[1]", "times[1] / times[0]", "tests/study/test_lead.py"),
    M(
        "nanogka/study/summary.py",
        "table.sem() * table.count()",
        "table.std() * table.count()",
        "tests/study/test_report.py::test_the_report_has_the_tables_and_the_plots",
    ),
    # ---- scripts/gka.py ----
    M("scripts/gka.py", "(distance < 0) |", "(distance < -1) |", "tests/scripts/test_gka.py"),
    M("scripts/gka.py", "* (12 / depth) ** 2", "* (12 / depth)", "tests/scripts/test_gka.py"),
    M("scripts/gka.py", "min(step / 300, 1)", "1", "tests/scripts/test_gka.py"),
    # ---- model ----
    M(
        "nanogka/model/mixers/dot_product.py",
        '"successor key", initial=k[:, :1]',
        '"successor key"',
        "tests/model/test_gpt.py",
    ),
    M(
        "nanogka/model/mixers/dot_product.py",
        "fill_(self.scale**-0.5)",
        "fill_(self.scale**-1)",
        "tests/model/test_gpt.py",
    ),
]
