"""`python -m scripts.model_info`: the paper's costs in every digit, as a table and as JSON."""

import json

from scripts import model_info

PRINTED = {
    "gaussian": ["378,798,320", "2.4143e9", "2.7787e9", "6.7088e18", "41.94 M", "294.91 M", "2,650"],
    "dot_product": ["896,535,720", "3.0042e9", "4.5686e9", "1.3725e19", "41.94 M", "419.43 M", "393.22 M", "4,357"],
}


def run(capsys, *flags: str) -> tuple[str, dict]:
    """The table and the document that the script prints."""
    assert model_info.main(list(flags)) == 0
    table, _, last = capsys.readouterr().out.rstrip("\n").rpartition("\n")
    return table, json.loads(last)


def test_depth_20_costs_what_the_paper_says(capsys):
    """Every digit; `tests/model/test_accounting.py` has those that the network alone decides."""
    costs = []
    for attention, printed in PRINTED.items():
        table, info = run(capsys, "--depth", "20", "--attention", attention)
        assert all(text in table for text in printed)
        total, *groups = (info["parameters"].pop("total"), *info["parameters"].values())
        assert total == sum(groups)
        assert info["total_training_flops"] == info["flops_per_token"] * info["tokens"]
        assert info["cache_bytes"]["8192"] <= 8192 * info["cache_bytes_per_token"]
        costs.append([total, info["flops_per_token"], info["tokens"], info["total_training_flops"]])
    assert [cost[2] for cost in costs] == [2_778_726_400, 4_568_645_632]
    assert [round(ours / baseline, 2) for ours, baseline in zip(*costs)] == [0.42, 0.80, 0.61, 0.49]


def test_what_a_mixer_declares_stands_beside_what_was_counted(capsys):
    table, info = run(capsys, "--depth", "2", "--attention", "gaussian", "--measure")
    C, T = 128, 256  # one head; the small layers' positions
    assert [one["declared_flops"] for one in info["measured"]] == 2 * [6 * C * C + 12 * C * T]
    assert [one["flops"] for one in info["measured"]] == 2 * [6 * C * C + 12 * C * T]
    number = f"{6 * C * C + 12 * C * T:,}"
    rows = [line.split() for line in table.splitlines() if line.startswith("gaussian ")]
    assert [row[:5] for row in rows] == 2 * [["gaussian", number, number, "+0.0%", "12.2"]]
