#!/usr/bin/env bash
# Everything that wants a GPU, in one command and under 8 minutes: the gpu tests, the operator's speed against torch's own
# attention, a windowed layer against a dense one, and a depth-20 training step against the baseline's.
#
#   bash scripts/gpu_check.sh            results under <base dir>/benchmarks, verdicts on the last lines
#
# Exits 0 if every target is met, 1 if one is missed or a part fails, 3 if there is no CUDA device.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="${PYTHON:-.venv/bin/python}"
[ -x "$python" ] || python=python3

"$python" - <<'PY' || exit 3
import sys
try:
    import torch
except ImportError:
    sys.exit("gpu_check: torch is not installed; run `bash scripts/setup.sh` first")
if not torch.cuda.is_available():
    sys.exit(f"gpu_check: torch {torch.__version__} sees no CUDA device; nothing was checked")
print(f"gpu_check: {torch.cuda.get_device_name()}, torch {torch.__version__}")
PY

base="${NANOGKA_BASE_DIR:-$HOME/.cache/nanogka}/benchmarks/gpu_check"
mkdir -p "$base"
failed=0

part() {  # name, seconds at most, command …
    local name="$1" limit="$2"
    shift 2
    echo "== $name"
    timeout "$limit" "$@" 2>&1 | tee "$base/$name.log"
    local status="${PIPESTATUS[0]}"
    [ "$status" -eq 0 ] || { echo "gpu_check: $name failed with status $status"; failed=1; }
}

bench=("$python" -m scripts.bench_attention --device cuda --dtype bfloat16 --heads 16 --head-dim 128)
part tests 150 "$python" -m pytest -m gpu tests/attention tests/model
part dense-2048 70 "${bench[@]}" --batch 8 --lengths 2048 --contestants ours,sdpa,flex --repeats 20
part dense-8192 60 "${bench[@]}" --batch 2 --lengths 8192 --contestants ours,sdpa,flex --repeats 20
part window-8192 60 "${bench[@]}" --batch 2 --lengths 8192 --window 1024 --contestants ours,flex --repeats 20
part train-d20 120 "$python" -m scripts.bench_train --device cuda --dtype bfloat16 --depth 20 --sequence-len 2048 \
    --batch 8 --vocab-size 32768 --repeats 8 --compile

"$python" - "$base" <<'PY' || failed=1
import json, pathlib, sys

base = pathlib.Path(sys.argv[1])


def document(name):
    lines = (base / f"{name}.log").read_text().splitlines()
    return next((json.loads(line) for line in reversed(lines) if line.startswith("{")), None)


def row(name, contestant):
    return next(m for m in document(name)["measurements"] if m["contestant"] == contestant)


checks = {
    "forward at T=2048, TFLOP/s": (320, lambda: row("dense-2048", "ours")["forward_flops"] / 1e12),
    "forward at T=8192, TFLOP/s": (370, lambda: row("dense-8192", "ours")["forward_flops"] / 1e12),
    "forward + backward over SDPA at T=2048": (
        1, lambda: row("dense-2048", "sdpa")["total_seconds"] / row("dense-2048", "ours")["total_seconds"]),
    "forward + backward over SDPA at T=8192": (
        1, lambda: row("dense-8192", "sdpa")["total_seconds"] / row("dense-8192", "ours")["total_seconds"]),
    "window 1024 over dense at T=8192": (
        3, lambda: row("dense-8192", "ours")["total_seconds"] / row("window-8192", "ours")["total_seconds"]),
    "depth-20 tokens/s over the baseline's": (1.2, lambda: document("train-d20")["ratios"]["tokens_per_second"]),
    "baseline's peak memory over depth-20's": (1 / 0.7, lambda: 1 / document("train-d20")["ratios"]["peak_bytes"]),
}
missed = 0
for name, (least, measure) in checks.items():
    try:
        value = measure()
        ok = value >= least
        print(f"{'met   ' if ok else 'MISSED'} {name}: {value:.2f}, wanted at least {least:.2f}")
    except (OSError, TypeError, StopIteration, KeyError) as error:
        ok = False
        print(f"MISSED {name}: not measured ({type(error).__name__})")
    missed += not ok
sys.exit(missed > 0)
PY
exit "$failed"
