#!/usr/bin/env bash
# Everything that wants a GPU, in one command and under 8 minutes: the gpu tests, the operator's speed against torch's own
# attention, a windowed layer against a dense one, a depth-20 training step against the baseline's, and decoding with it.
#
#   bash scripts/gpu_check.sh            PASS or FAIL for each target, with what was measured; JSON on the last line
#
# The targets are for one H100 or H200. The same JSON goes to <base dir>/benchmarks/gpu_check.json, each part's output to
# <base dir>/benchmarks/gpu_check/. Exits 0 if every target is met, 1 if one is missed or a part fails, 3 if there is no
# CUDA device or no torch. PYTHON names another interpreter than .venv's.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="${PYTHON:-.venv/bin/python}"
command -v "$python" > /dev/null || python=python3
deadline=465 # seconds after the start at which the last part is stopped; judging takes the rest of 8 minutes
SECONDS=0

folder="$("$python" - probe <<'PY'
import sys
try:
    import torch
except ImportError:
    sys.exit("gpu_check: torch is not installed; run `bash scripts/setup.sh` first")
if not torch.cuda.is_available():
    sys.exit(f"gpu_check: torch {torch.__version__} sees no CUDA device; nothing was checked")
try:
    import triton
except ImportError:
    sys.exit("gpu_check: triton is not installed; run `bash scripts/setup.sh` on a Linux machine with a GPU first")
from nanogka.runtime import base_dir
versions = f"torch {torch.__version__}, triton {triton.__version__}"
print(f"gpu_check: {torch.cuda.get_device_name()}, {versions}", file=sys.stderr)
print(base_dir() / "benchmarks" / "gpu_check")
PY
)" || exit 3
mkdir -p "$folder"
rm -f "$folder"/*.log # an earlier run's figures must not stand for a part that fails now

part() {  # name, seconds at most, command …
    local name="$1" limit="$2" left=$((deadline - SECONDS)) started="$SECONDS" status
    shift 2
    [ "$limit" -le "$left" ] || limit="$left"
    echo "== $name"
    if [ "$limit" -gt 0 ]; then
        timeout -k 5 "$limit" "$@" 2>&1 | tee "$folder/$name.log"
        status="${PIPESTATUS[0]}"
    else
        echo "gpu_check: no time left for $name"
        status=124
    fi
    echo "gpu_check: exit status $status after $((SECONDS - started)) of at most $limit s" | tee -a "$folder/$name.log"
}

bench=("$python" -m scripts.bench_attention --device cuda --dtype bfloat16 --heads 16 --head-dim 128 --repeats 20)
part dense-2048 90 "${bench[@]}" --batch 8 --lengths 2048 --contestants ours,triton,sdpa
part dense-8192 60 "${bench[@]}" --batch 2 --lengths 8192 --contestants ours,triton,sdpa
part window-8192 60 "${bench[@]}" --batch 2 --lengths 8192 --window 1024 --contestants ours,triton,flex
part train-d20 180 "$python" -m scripts.bench_train --device cuda --dtype bfloat16 --depth 20 --sequence-len 2048 \
    --batch 8 --vocab-size 32768 --repeats 8 --compile
decode=("$python" -m scripts.bench_generate --device cuda --dtype bfloat16 --depth 20 --contexts 8192 --sequence-len 2048 \
    --vocab-size 32768 --streams 1 --tokens 32 --repeats 3 --no-token-by-token)
part decode-d20 60 "${decode[@]}" --steps growing,graph
part tests 180 "$python" -m pytest -m gpu -q tests/attention tests/model tests/generate
part decode-compiled 150 "${decode[@]}" --steps compiled # compiling takes most of it; not having the time is no failure

"$python" - judge "$folder" "$SECONDS" <<'PY'
import json, pathlib, re, sys

folder, seconds = pathlib.Path(sys.argv[2]), int(sys.argv[3])
PARTS = ("dense-2048", "dense-8192", "window-8192", "train-d20", "decode-d20", "tests")
OPTIONAL = ("decode-compiled",)


def text(part):
    log = folder / f"{part}.log"
    return log.read_text() if log.exists() else ""


def document(part):
    return next(json.loads(line) for line in reversed(text(part).splitlines()) if line.startswith("{"))


def row(part, contestant):
    return next(m for m in document(part)["measurements"] if m["contestant"] == contestant)


def forward(part, contestant="ours"):
    return row(part, contestant)["forward_flops"] / 1e12


def faster(part, other, other_part=None):
    return row(other_part or part, other)["total_seconds"] / row(part, "ours")["total_seconds"]


def ratio(key):
    return document("train-d20")["ratios"][key]


def decoding(mixer, steps=("graph", "compiled")):
    """The fastest of these kinds of step, and of the peak bandwidth what it reaches, in per cent."""
    measured = []
    for part in ("decode-d20", *OPTIONAL):
        try:
            peak = document(part)["peak_bandwidth"]
            rows = [r for r in document(part)["results"] if r["mixer"] == mixer and r["step"] in steps]
        except StopIteration:
            continue
        measured += [(1e3 * r["token_seconds"], peak and 100 * r["bandwidth"] / peak) for r in rows]
    return min(measured)


def passed_tests():
    counts = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|error)", text("tests"))}
    return counts.get("passed", 0) if not counts.keys() & {"failed", "error"} else 0


# what, at least or at most, the target, how it is measured (the operator as the model calls it unless said otherwise)
TARGETS = [
    ("gpu tests passed, none failed", ">=", 1, passed_tests),
    ("forward at T = 2048, TFLOP/s", ">=", 320, lambda: forward("dense-2048")),
    ("forward at T = 8192, TFLOP/s", ">=", 370, lambda: forward("dense-8192")),
    ("forward + backward at T = 2048, speed over torch's SDPA", ">=", 1, lambda: faster("dense-2048", "sdpa")),
    ("forward + backward at T = 8192, speed over torch's SDPA", ">=", 1, lambda: faster("dense-8192", "sdpa")),
    ("window 1024 at T = 8192, speed over dense", ">=", 3, lambda: faster("window-8192", "ours", "dense-8192")),
    ("depth-20 step, tokens/s over the baseline's", ">=", 1.2, lambda: ratio("tokens_per_second")),
    ("depth-20 step, peak memory over the baseline's", "<=", 0.7, lambda: ratio("peak_bytes")),
    ("decoding at depth 20, 8192 tokens, one stream, ms a token", "<=", 1, lambda: decoding("gaussian")[0]),
]
FIGURES = [
    ("our kernels alone, forward at T = 2048, TFLOP/s", lambda: forward("dense-2048", "triton")),
    ("our kernels alone, forward at T = 8192, TFLOP/s", lambda: forward("dense-8192", "triton")),
    ("torch's SDPA, forward at T = 2048, TFLOP/s", lambda: forward("dense-2048", "sdpa")),
    ("torch's SDPA, forward at T = 8192, TFLOP/s", lambda: forward("dense-8192", "sdpa")),
    ("window 1024 at T = 8192, speed over FlexAttention", lambda: faster("window-8192", "flex")),
    ("decoding, GKA: bandwidth in % of the peak", lambda: decoding("gaussian")[1]),
    ("decoding, baseline: ms a token", lambda: decoding("dot_product")[0]),
    ("decoding, baseline: bandwidth in % of the peak", lambda: decoding("dot_product")[1]),
    ("decoding, GKA, one CUDA graph: ms a token", lambda: decoding("gaussian", ["graph"])[0]),
    ("decoding, GKA, compiled and recorded: ms a token", lambda: decoding("gaussian", ["compiled"])[0]),
    ("decoding, GKA, launched kernel by kernel: ms a token", lambda: decoding("gaussian", ["growing"])[0]),
]


def measured(function):
    try:
        return function()
    except (StopIteration, KeyError, TypeError, ValueError, ZeroDivisionError):  # the part failed, or had no time
        return None


def show(value):
    return "not measured" if value is None else f"{value:.2f}"


print("== verdicts")
results = []
for name, sign, target, function in TARGETS:
    value = measured(function)
    ok = value is not None and (value >= target if sign == ">=" else value <= target)
    results.append({"target": name, "wanted": f"{sign} {target}", "measured": value, "pass": ok})
    print(f"{'PASS' if ok else 'FAIL'}  {name}: {show(value)}, wanted {sign} {target}")
figures = {name: measured(function) for name, function in FIGURES}
for name, value in figures.items():
    print(f"      {name}: {show(value)}")
said = ("attention on ", "decoding on ", "decoding step: ")
backends = sorted({line for p in (*PARTS, *OPTIONAL) for line in text(p).splitlines() if line.startswith(said)})
print(*(f"      {line}" for line in backends), sep="\n")
status = {p: next(iter(re.findall(r"gpu_check: exit status (\d+)", text(p))), None) for p in PARTS}
failed = [part for part, code in status.items() if code != "0"]
if failed:
    print(f"FAIL  parts that did not finish: {', '.join(failed)} (see {folder})")
passed = not failed and all(result["pass"] for result in results)
hardware = measured(lambda: document("dense-2048")["hardware"])
summary = {"passed": passed, "hardware": hardware, "seconds": seconds, "failed_parts": failed, "targets": results}
summary |= {"figures": figures, "backends": backends}
folder.with_suffix(".json").write_text(json.dumps(summary, indent=1) + "\n")
print(json.dumps(summary))
sys.exit(not passed)
PY
