#!/usr/bin/env bash
# Run a part of the tests with the lowest versions that pyproject.toml allows, in an environment apart (.venv-lowest).
#
#   bash scripts/test_lowest.sh                      tokenizer, data, operator, model, checkpoints, command lines
#   bash scripts/test_lowest.sh tests/export         one part
#
# PYTHON and TORCH_BACKEND mean what they mean in setup.sh. Without PyTorch's own package index, torch comes from the
# one that uv is configured for (UV_DEFAULT_INDEX).
set -euo pipefail
unset CDPATH # with it, cd may find another folder
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# The lowest versions have no wheels for newer Pythons. On Linux, the plain package of torch brings gigabytes of CUDA.
if [ ! -d .venv-lowest ]; then
    # A command of pyenv may exist for a Python that is not installed.
    for python in python3.10 python3.11 python3.12 python3; do if "$python" -c "" 2>/dev/null; then break; fi; done
    "${PYTHON:-$python}" -m venv .venv-lowest
fi
.venv-lowest/bin/python -m pip --disable-pip-version-check install --quiet 'uv>=0.8'
install() {
    .venv-lowest/bin/uv pip install --quiet --python .venv-lowest/bin/python --resolution lowest-direct -e '.[dev]' "$@"
}
if ! install --torch-backend "${TORCH_BACKEND:-cpu}"; then
    echo "test_lowest: torch cannot be installed from PyTorch's package index; trying its default build (large)" >&2
    install
fi
[ $# -gt 0 ] || set -- tests/test_tokenizer.py tests/data tests/attention tests/model tests/common tests/train/test_checkpoint.py
exec .venv-lowest/bin/python -m pytest -m "not slow" "$@"
