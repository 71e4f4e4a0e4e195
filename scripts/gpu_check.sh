#!/usr/bin/env bash
# Everything that needs a GPU, in about ten minutes: the kernels against float64, the gpu tests, and the speed of the
# operator, of a training step and of decoding. With several GPUs also two training steps over all of them.
#
#   bash scripts/gpu_check.sh
#
# Every part runs, whatever happened to those before. Exits 0 if all passed, 1 if one failed (the last line names it),
# 3 if there is no GPU. PYTHON names another interpreter than .venv's.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python="${PYTHON:-.venv/bin/python}"
command -v "$python" > /dev/null || python=python3
gpus="$("$python" -c 'import torch; print(torch.cuda.device_count())')" || exit 3
[ "$gpus" -gt 0 ] || { echo "gpu_check: torch sees no CUDA device; nothing was checked" >&2; exit 3; }

failed=()
part() {  # name, command …
    echo "== $1"
    "${@:2}" || failed+=("$1")
}

# Relative errors of the result and of every gradient against the literal version in float64: a few roundings at most.
kernels() {
    "$python" - <<'PY'
import sys
import torch
from nanogka.attention import gaussian_attention
from nanogka.model.loss import capped_cross_entropy, plain_cross_entropy

TOLERANCE = {torch.bfloat16: 2e-2, torch.float32: 1e-5}

def results(function, inputs):
    leaves = [t.detach().requires_grad_() for t in inputs]
    y = function(*leaves)
    return [y.detach(), *torch.autograd.grad(y.float().square().sum(), leaves)]

def judge(name, function, literal, inputs):
    exact = results(literal, [t.double() for t in inputs])
    errors = [((a.double() - b).norm() / b.norm()).item() for a, b in zip(results(function, inputs), exact)]
    ok = all(error <= TOLERANCE[inputs[0].dtype] for error in errors)
    print("ok  " if ok else "FAIL", f"{name}: errors", *(f"{e:.1e}" for e in errors), flush=True)
    return ok

torch.manual_seed(0)
passed = []
for dtype in (torch.bfloat16, torch.float32):
    for D in (64, 128):
        for T, window in ((17, None), (239, None), (1024, None), (1024, 100)):
            q, k, v = (torch.randn(2, T, 2, D, device="cuda").to(dtype) for _ in range(3))
            sigma = torch.full((2,), 2 * D**0.25, device="cuda")
            operator = lambda *t, backend="triton": gaussian_attention(*t, window=window, backend=backend)
            literal = lambda *t: operator(*t, backend="reference")
            name = f"attention, {dtype}, D={D}, T={T}, window={window}"
            passed.append(judge(name, operator, literal, (q, k, v, sigma)))
    hidden, weight = torch.randn(999, 256, device="cuda").to(dtype), torch.randn(32768, 256, device="cuda")
    targets = torch.randint(-1, 32768, (999,), device="cuda")
    losses = [lambda h, w, f=f: f(h, w, targets, cap=15.0) for f in (capped_cross_entropy, plain_cross_entropy)]
    passed.append(judge(f"loss, {dtype}", *losses, (hidden, weight)))
sys.exit(not all(passed))
PY
}

part "kernels against float64" kernels
part "gpu tests" "$python" -m pytest -q -m gpu tests
attention=("$python" -m scripts.bench attention --device cuda --dtype bfloat16 --heads 16 --head-dim 128)
part "operator" "${attention[@]}" --batch 8 --lengths 1024,2048,4096 --contestants softmax,gaussian,triton
part "operator, windowed" "${attention[@]}" --batch 2 --lengths 8192 --window 1024 --contestants softmax,gaussian,triton
part "training step" "$python" -m scripts.bench train --device cuda --dtype bfloat16 --depth 20 --sequence-len 2048 \
    --batch 8 --vocab-size 32768
part "decoding" "$python" -m scripts.bench generate --device cuda --dtype bfloat16 --depth 20 --vocab-size 32768 \
    --contexts 8192

if [ "$gpus" -gt 1 ]; then
    NANOGKA_BASE_DIR="$(mktemp -d)" && export NANOGKA_BASE_DIR
    part "tokenizer" "$python" -m scripts.tok_train --vocab-size 4096
    part "two steps on $gpus GPUs" "$python" -m torch.distributed.run --standalone --nproc_per_node="$gpus" \
        -m scripts.base_train -- --depth 4 --sequence-len 512 --num-iterations 2 --total-batch-size 65536
    rm -r "$NANOGKA_BASE_DIR"
fi

[ ${#failed[@]} -eq 0 ] || { echo "FAILED: $(IFS=,; echo "${failed[*]}")"; exit 1; }
echo "all parts passed"
