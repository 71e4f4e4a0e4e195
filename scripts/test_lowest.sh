#!/usr/bin/env bash
# Run a part of the tests with the lowest versions that pyproject.toml allows, in an environment apart (.venv-lowest).
#
#   bash scripts/test_lowest.sh                      tokenizer, data, operator, model, checkpoints, command lines
#   bash scripts/test_lowest.sh tests/export         one part
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
[ -d .venv-lowest ] || python3 -m venv .venv-lowest
.venv-lowest/bin/python -m pip --disable-pip-version-check install --quiet 'uv>=0.8'
.venv-lowest/bin/uv pip install --quiet --python .venv-lowest/bin/python --resolution lowest-direct -e '.[dev]'
[ $# -gt 0 ] || set -- tests/test_tokenizer.py tests/data tests/attention tests/model tests/common tests/train/test_checkpoint.py
exec .venv-lowest/bin/python -m pytest -m "not slow" "$@"
