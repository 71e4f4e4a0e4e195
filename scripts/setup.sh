#!/usr/bin/env bash
# Create .venv in the repository and install the project into it. Does nothing if that is already done.
#
#   bash scripts/setup.sh            what a user needs (speedrun.sh calls it, so you rarely need to)
#   bash scripts/setup.sh --dev      also what the tests need (scripts/test.sh calls it)
#
# PYTHON=python3.12         the interpreter to use (default: the first of python3, python3.13 … python3.10 that fits)
# TORCH_BACKEND=cpu|auto    the torch build to install on Linux (default: auto with an NVIDIA GPU, else cpu);
#                           cu126, cu130 and so on install the build for that CUDA version
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # for `sh scripts/setup.sh`
set -euo pipefail
unset CDPATH # with it, cd may find another folder
unset PYTHONDONTWRITEBYTECODE # images set it, but later processes import the same modules
cd "$(dirname "${BASH_SOURCE[0]}")/.."

case "$*" in "") dev=0 ;; --dev) dev=1 ;; *) echo "setup: got '$*', expected nothing or --dev" >&2; exit 2 ;; esac
stamp=.venv/.installed
want=$(cat pyproject.toml constraints.txt scripts/setup.sh | cksum)
if [ "$dev" = 1 ]; then done=$stamp-dev; else done=$stamp; fi
if [ -f "$done" ] && [ "$(cat "$done")" = "$want" ]; then exit 0; fi

say() { echo "setup: $*"; }

# The GPUs' compute capabilities, such as 9.0, one a line. If the driver is broken, its users would get a CPU build.
gpus=
if command -v nvidia-smi >/dev/null; then
    if gpus=$(timeout 60 nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>&1); then
        gpus=$(grep -E '^[0-9]+\.[0-9]$' <<<"$gpus" || true)
    elif [ "${GPUS:-}" = 0 ]; then
        gpus=
    else
        [ -n "$gpus" ] || gpus="no answer"
        say "GPUS: got '${gpus%%$'\n'*}' from nvidia-smi, expected a list of GPUs. Repair the driver, or use the CPU with GPUS=0" >&2
        exit 2
    fi
fi
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
# `uv venv`, and Debian's Python until python3-venv is installed, leave an environment without pip.
.venv/bin/python -c 'import pip' 2>/dev/null || .venv/bin/python -m ensurepip >/dev/null
# uv installs in parallel, in a tenth of pip's processor time; pip is for places where only pip has an index. An image
# may set PIP_CONSTRAINT to its own versions, and a user may have configured pip to install into the home folder.
pip() { PIP_CONSTRAINT='' PIP_USER=0 .venv/bin/python -m pip --disable-pip-version-check install --quiet -c constraints.txt "$@"; }
[ -x .venv/bin/uv ] || pip uv
uv() { .venv/bin/uv pip install --quiet --python .venv/bin/python -c constraints.txt "$@"; }
install() { uv "$@" || pip "$@"; }

# Install torch first: on Linux, the plain package brings gigabytes of CUDA libraries that are useless on a CPU.
torch=$(grep '^torch==' constraints.txt) extras=serve
if ! .venv/bin/python -c 'import torch' 2>/dev/null && [ "$(uname -s)" = Linux ]; then
    backend=${TORCH_BACKEND:-$([ -n "$gpus" ] && echo auto || echo cpu)}
    say "installing $torch ($backend build)"
    # pip finds a CPU wheel where one is configured. uv knows PyTorch's own indexes and picks by driver version.
    # Of its 2,300 modules a run imports a third, and the first import compiles them.
    if [ "$backend" = cpu ] && pip --no-compile "$torch+cpu" 2>/dev/null; then :
    elif uv "$torch" --torch-backend="$backend"; then :
    else
        say "PyTorch's package index cannot be reached; installing the default build of $torch (large)"
        install "$torch"
    fi
fi
[ "$dev" = 0 ] || extras=dev
[ -z "$gpus" ] || extras=$extras,gpu
# FlashAttention 4 runs on Hopper and Blackwell. The models try it and fall back, so a failure here is no error.
case "$gpus" in 9.* | 10.*) install -e ".[$extras,fa4]" || say "FlashAttention 4 was not installed; torch's own is used" ;; esac
install -e ".[$extras]"
if [ "$dev" = 1 ]; then
    # Only tests/vision needs these two. PyPI's torchvision is a CUDA build. Next to a CPU build of torch in .venv, it
    # would break transformers, which imports torchvision wherever it finds it.
    install --no-deps --target .venv/images timm torchvision
fi
.venv/bin/python -c 'import torch; print(f"setup: done, torch {torch.__version__}")'
[ -z "$gpus" ] || say "$(.venv/bin/python -m nanogka.common.gpus) GPUs" # or it says why torch cannot use them
echo "$want" > "$stamp"
[ "$dev" = 0 ] || echo "$want" > "$stamp-dev"
