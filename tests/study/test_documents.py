"""README's and the study's main tables against the lines of results, by sums of our own."""

import json
import re
from pathlib import Path
from statistics import mean, stdev

import pytest

DOCS = Path(__file__).parents[2] / "docs"
T = {3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571}  # 97.5 % quantile of Student's t by seeds
MAIN = {"small": "flops", "depth2": "one"}  # size at which both families spent equal FLOPs
OTHERS = {"FLOPs": "", "tokens": "tokens", "tokens per parameter": "own", "own horizon": "own"}


@pytest.fixture(scope="module")
def runs():
    """(study, family, size): the rows by seed, at the rate that is best for seed 1."""
    found = {}
    for study in MAIN:
        by_rate = {}
        for line in (DOCS / "research" / f"{study}.jsonl").read_text("utf-8").splitlines():
            row = json.loads(line)
            rates = by_rate.setdefault((study, row["family"], row["size"]), {})
            rates.setdefault(row["settings"]["lr_scale"], {})[row["seed"]] = row
        for place, rates in by_rate.items():
            found[place] = min((rows for rows in rates.values() if 1 in rows), key=lambda rows: rows[1]["val_bpb"])
    return found


def compare(runs, study, axis):
    """The pairs of rows, successor first, of a comparison that a table names."""
    ours = runs[study, "successor", MAIN[study]]
    theirs = runs[study, "shift", OTHERS[axis] or MAIN[study]]
    return [(ours[seed], theirs[seed]) for seed in sorted({*ours} & {*theirs})]


def ratios(study, pairs):
    """Tokens per parameter of matrices and lm_head, of both. Two layers of width 128; attention has three more 128²."""
    vocabulary = {"small": 1024, "depth2": 4096}[study]
    return [row["tokens"] / (128 * (2 * squares * 128 + vocabulary)) for row, squares in zip(pairs[0], (9, 12))]


def difference(pairs, loss):
    """Mean and half interval of a loss."""
    values = [one[loss] - other[loss] for one, other in pairs]
    return mean(values), T[len(values)] * stdev(values) / len(values) ** 0.5


def numbers(text):
    return [float(part) for part in re.findall(r"[-+]?\d+\.?\d*", text.replace("−", "-").replace("*", ""))]


def assert_printed(text, values):
    """`text` has these numbers, each rounded to the decimals that it shows."""
    shown = [part.partition(".")[2] for part in re.findall(r"\d+\.?\d*", text)]
    assert numbers(text) == [round(value, len(decimals)) for value, decimals in zip(values, shown, strict=True)], text


def table(path, heading):
    lines = path.read_text("utf-8").split(heading, 1)[1].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[: lines.index("")]]
    return [row for row in rows if "H100 time" not in row[0]]


def axis_of(text):
    return text.partition("equal ")[2].partition(" (")[0] or "own horizon"


def test_readmes_table_follows_from_the_results(runs):
    rows = table(DOCS.parent / "README.md", "| bits per byte, lower is better |")
    assert len(rows) == 6
    for about, tokens, seeds, ours, theirs, gap in rows:
        study = {"0.7": "small", "1.9": "depth2"}[about[:3]]
        pairs = compare(runs, study, axis_of(about))
        assert int(seeds) == len(pairs), about
        assert_printed(tokens, ratios(study, pairs))
        assert_printed(ours, [mean(one["val_bpb"] for one, _ in pairs)])
        assert_printed(theirs, [mean(other["val_bpb"] for _, other in pairs)])
        assert_printed(gap, difference(pairs, "val_bpb"))
    text = " ".join((DOCS.parent / "README.md").read_text("utf-8").split())
    flops = re.search("attention spends (.*?) and (.*?) times the FLOPs", text).groups()
    for study, shown in zip(MAIN, flops):
        one, other = compare(runs, study, "own horizon")[0]
        assert_printed(shown, [other["flops"] / one["flops"]])
    leads = [difference(compare(runs, study, "FLOPs"), "val_bpb")[0] for study in MAIN]
    assert "With 1.9 M parameters the lead is a fifth." in text
    assert leads[1] / leads[0] == pytest.approx(1 / 5, abs=0.02)


def test_the_studys_main_table_follows_from_the_results(runs):
    rows = table(DOCS / "research" / "study.md", "| `successor` minus attention with the same additions |")
    assert len(rows) == 6
    for about, parameters, tokens, seeds, first, second in rows:
        study = {"0.7 M": "small", "1.9 M": "depth2"}[parameters]
        pairs = compare(runs, study, axis_of(about))
        assert int(seeds) == len(pairs), about
        assert_printed(tokens, ratios(study, pairs))
        assert_printed(first, difference(pairs, "val_bpb"))
        assert_printed(second, difference(pairs, "confirm_bpb"))
        if more := re.search(r"(?:gets |\()([\d.]+) times the FLOPs", about):
            assert_printed(more[1], [pairs[0][1]["flops"] / pairs[0][0]["flops"]])


def test_lines_repeated_on_another_processor_are_the_printed_ones_and_agree():
    def losses(name):
        rows = map(json.loads, (DOCS / "research" / f"{name}.jsonl").read_text("utf-8").splitlines())
        keys = ("corpus", "tokenizer", "steps", "flops_per_token", "dtype", "measure_tokens")
        return {
            (row["family"], row["size"], row["seed"], row["settings"]["lr_scale"]): (
                row["val_bpb"],
                [row[key] for key in keys],
                row["hardware"],
            )
            for row in rows
        }

    committed, repeated = losses("docstrings"), losses("docstrings-epyc")
    printed = table(DOCS / "research" / "study.md", "| `--lr-scale`, seed 1 | Intel Xeon | AMD EPYC |")
    assert len(printed) >= 3
    for rate, xeon, epyc in printed:
        key = ("successor", "flops", 1, float(rate))
        (first, same, intel), (second, others, amd) = committed[key], repeated[key]
        assert same == others
        assert ("Intel" in intel, "EPYC" in amd) == (True, True)
        assert (xeon, epyc) == (f"{first:.4f}", f"{second:.4f}")
        assert abs(first - second) < 0.002, "the promise of the text"
    text = " ".join((DOCS / "research" / "study.md").read_text("utf-8").split())
    best = {key[3]: loss for key, (loss, _, _) in committed.items() if key[:3] == ("successor", "flops", 1)}
    assert f"the committed line says {best[0.3]:.5f})" in text
    assert min(best, key=best.get) == 0.3


def test_the_lead_with_a_stable_backout_follows_from_the_results():
    def losses(name, loss, backout_lr):
        """The losses at the rate that is best with seed 1, by size, family and seed."""
        found = {}
        for row in map(json.loads, (DOCS / "research" / f"{name}.jsonl").read_text("utf-8").splitlines()):
            assert row["settings"].get("backout_lr", 0.2) == backout_lr
            rates = found.setdefault((row["size"], row["family"]), {})
            rates.setdefault(row["settings"]["lr_scale"], {})[row["seed"]] = row[loss]
        return {place: min(rates.values(), key=lambda by_seed: by_seed.get(1, 9)) for place, rates in found.items()}

    def lead(found, size="flops", equal="flops"):
        ours, theirs = found[equal, "successor"], found[size, "shift"]
        return [theirs[seed] - ours[seed] for seed in sorted({*ours} & {*theirs})]

    def interval(values):
        return abs(mean(values)), T[len(values)] * stdev(values) / len(values) ** 0.5

    study = " ".join((DOCS / "research" / "study.md").read_text("utf-8").split())
    readme = " ".join((DOCS.parent / "README.md").read_text("utf-8").split())
    log = " ".join((DOCS / "research" / "log.md").read_text("utf-8").split())
    number = r"([\d.]+ ± [\d.]+)"
    stable, before = losses("small-backout", "val_bpb", 0.002), losses("small", "val_bpb", 0.2)
    first, second = lead(stable), lead(losses("small-backout", "confirm_bpb", 0.002))
    assert (len(first), len(second), len(lead(stable, "own"))) == (6, 6, 3)
    assert all(value > 0 for value in first)
    assert all(value < 0 for value in lead(stable, "own"))
    change = [old - new for old, new in zip(lead(before), first, strict=True)]
    gains = [before["flops", "shift"][seed] - loss for seed, loss in stable["flops", "shift"].items()]
    assert [f"{gain:.3f}" for gain in sorted(gains)[-2:]] == ["0.011", "0.014"]
    assert sorted(gains)[-3] < 0.0025
    docstrings = lead(losses("docstrings-backout", "val_bpb", 0.002))
    two_heads = lead(losses("docstrings-heads", "val_bpb", 0.2))
    second_size = [
        lead(losses(name, loss, rate), "one", "one")[:3]
        for name, loss, rate in (
            ("depth2-backout", "val_bpb", 0.002),
            ("depth2-backout", "confirm_bpb", 0.002),
            ("depth2", "val_bpb", 0.2),
        )
    ]
    assert [len(values) for values in second_size] == [3, 3, 3]
    longer, longer_b = (losses("depth2-backout", loss, 0.002) for loss in ("val_bpb", "confirm_bpb"))
    behind = [
        [-value for value in lead(found, size, "one")] for size in ("tokens", "own") for found in (longer, longer_b)
    ]
    assert all(value > 0 for values in behind for value in values)
    for text, values in (
        (re.search(f"Without it the lead is {number} .six seeds", readme), first),
        (re.search(f"attention is ahead by {number} .three", readme), lead(stable, "own")),
        (re.search(f"by {number} if July's network is made stable", study), first),
        (re.search(f"and by {number} in the stable network", study), lead(stable, "own")),
        (re.search(f"0.7 M parameters is {number}, where the same six", log), first),
        (re.search(f"where the same six seeds had {number}", log), lead(before)),
        (re.search(f"parameter it is behind by {number} .three", log), lead(stable, "own")),
        (re.search(f"at equal FLOPs is {number} .six seeds", study), first),
        (re.search(f"shard B: {number}", study), second),
        (re.search(f"less by {number} than with these seeds", study), change),
        (re.search(f"the lead at equal tokens is {number},", study), lead(stable, "tokens")),
        (re.search(f"`successor` is behind by {number}.., for 1.47", study), lead(stable, "own")),
        (re.search(f"the lead is then {number} .four seeds", study), docstrings),
        (re.search(f"better solution, and the lead is {number}.. at equal", study), two_heads),
        (re.search(f"with two, on other text, it is ahead by {number} .0.7 M, three", study), two_heads),
        (re.search(f"With two heads per layer, on other text, it is {number} .three.", readme), two_heads),
        (re.search(f"and the lead of `successor` is {number} ..study", log), two_heads),
        (re.search(f"hardly changes: it is {number} .three seeds", study), second_size[0]),
        (re.search(f"three seeds; shard B: {number}., and was", study), second_size[1]),
        (re.search(f"and was {number} with the same seeds", study), second_size[2]),
        (re.search(f"many tokens: by {number} at equal tokens", study), behind[0]),
        (re.search(f"at equal tokens .shard B: {number}.,", study), behind[1]),
        (re.search(f"by {number} if each has 12 tokens", study), behind[2]),
        (re.search(f"tokens per parameter.. .shard B: {number}", study), behind[3]),
    ):
        assert_printed(text[1], interval(values))


def test_two_heads_end_where_the_study_says():
    rows = [json.loads(line) for line in (DOCS / "research" / "docstrings-heads.jsonl").read_text("utf-8").splitlines()]
    assert {row["settings"]["head_dim"] for row in rows} == {64}
    found = {(row["family"], row["settings"]["lr_scale"], row["seed"]): row["val_bpb"] for row in rows}
    text = " ".join((DOCS / "research" / "study.md").read_text("utf-8").split())
    ends, other = re.search(
        "Attention ends at ([\\d., and]+)\\. In .*? at 0.3 seed 1 is good, too \\(([\\d.]+)\\)", text
    ).groups()
    assert_printed(ends, [found["shift", 0.15, seed] for seed in (1, 2, 3)])
    assert_printed(other, [found["shift", 0.3, 1]])
    rates = {rate: found["shift", rate, 1] for rate in (0.3, 0.15, 0.075)}
    assert min(rates, key=rates.get) == 0.15
    ours = [found["successor", 0.3, seed] for seed in (1, 2, 3)]
    half = T[3] * stdev(ours) / 3**0.5
    assert f"`successor` has {mean(ours):.3f} ± {half:.3f} at the better of two rates (0.3)" in text
    assert found["successor", 0.3, 1] < found["successor", 0.15, 1]
    one_head = [json.loads(line) for line in (DOCS / "research" / "docstrings.jsonl").read_text("utf-8").splitlines()]
    before = {row["seed"]: row["val_bpb"] for row in one_head if decides(row)}
    cost = mean(found["successor", 0.3, seed] - before[seed] for seed in (1, 2, 3))
    assert f"two heads cost it about {cost:.3f}" in text


def decides(row):
    """True for `successor` at its best rate and equal FLOPs."""
    return (row["family"], row["size"], row["settings"]["lr_scale"]) == ("successor", "flops", 0.3)


def test_attentions_groups_on_docstrings_are_those_of_the_results():
    rows = [json.loads(line) for line in (DOCS / "research" / "docstrings.jsonl").read_text("utf-8").splitlines()]
    found = {
        (row["family"], row["settings"]["lr_scale"], row["seed"]): row["val_bpb"]
        for row in rows
        if row["size"] == "flops"
    }
    text = " ".join((DOCS / "research" / "study.md").read_text("utf-8").split())
    good, bad, lead = re.search(
        "it ends at ([\\d.]+ and [\\d.]+), with seeds 1 and 3 the first one, and it ends at ([\\d.]+ and [\\d.]+). "
        ".*? the lead is ([\\d.]+ and [\\d.]+)", text
    ).groups()  # fmt: skip
    assert_printed(good, [found["shift", 0.15, seed] for seed in (2, 4)])
    assert_printed(bad, [found["shift", 0.15, seed] for seed in (1, 3)])
    assert_printed(lead, [found["shift", 0.15, seed] - found["successor", 0.3, seed] for seed in (2, 4)])
