#!/usr/bin/env bash
# Create .venv in the repository and install the project into it. Does nothing if that is already done.
#
#   bash scripts/setup.sh            (speedrun.sh and scripts/test.sh call it, so you rarely need to)
#
# PYTHON=python3.12         the interpreter to use (default: the first of python3, python3.13 … python3.10 that fits)
# TORCH_BACKEND=cpu|auto    the torch build to install on Linux (default: auto with an NVIDIA GPU, else cpu);
#                           cu126, cu130 and so on install the build for that CUDA version
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

stamp=.venv/.installed
want=$(cat pyproject.toml constraints.txt scripts/setup.sh | cksum)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$want" ]; then exit 0; fi

say() { echo "setup: $*"; }
at_least() { "$1" -c "import sys; sys.exit(sys.version_info[:2] < (3, $2))" 2>/dev/null; }

python=${PYTHON:-}
if [ -z "$python" ]; then
    for candidate in python3 python3.13 python3.12 python3.11 python3.10; do
        if at_least "$candidate" 10; then python=$candidate; break; fi
    done
fi
if [ -z "$python" ] || ! at_least "$python" 10; then
    say "nanogka needs Python 3.10 or newer${PYTHON:+; PYTHON=$PYTHON is older}. Install one, or set PYTHON to its path." >&2
    exit 1
fi
if at_least "$python" 14; then
    say "$("$python" --version) is newer than 3.13, the newest tested version; set PYTHON to use another one"
fi

say "installing into .venv with $("$python" --version) (once; later calls skip this)"
[ -x .venv/bin/python ] || "$python" -m venv .venv
pip() { .venv/bin/python -m pip --disable-pip-version-check install --quiet -c constraints.txt "$@"; }

# Install torch first: on Linux, the plain package brings gigabytes of CUDA libraries that are useless on a CPU.
torch=$(grep '^torch==' constraints.txt)
if ! .venv/bin/python -c 'import torch' 2>/dev/null && [ "$(uname -s)" = Linux ]; then
    backend=cpu
    if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then backend=auto; fi
    backend=${TORCH_BACKEND:-$backend}
    say "installing $torch ($backend build)"
    # pip finds a CPU wheel where one is configured. uv knows PyTorch's own indexes and picks by driver version.
    if [ "$backend" = cpu ] && pip "$torch+cpu" 2>/dev/null; then :
    elif pip uv && .venv/bin/uv pip install --quiet --python .venv/bin/python "$torch" --torch-backend="$backend"; then :
    else
        say "PyTorch's package index cannot be reached; installing the default build of $torch (large)"
        pip "$torch"
    fi
fi
pip -e '.[dev]'
# Only tests/vision needs these two. PyPI's torchvision is a CUDA build. Next to a CPU build of torch in .venv, it would
# break transformers, which imports torchvision wherever it finds it.
pip --no-deps --target .venv/images timm torchvision
.venv/bin/python -c 'import torch; print(f"setup: done, torch {torch.__version__}, CUDA {torch.cuda.is_available()}")'
echo "$want" > "$stamp"
