#!/usr/bin/env bash
# Sets up .venv if needed, then lints and runs the tests. Arguments go to pytest.
#
#   bash scripts/test.sh                 what CI runs
#   bash scripts/test.sh -m slow         the tests that take minutes
#   bash scripts/test.sh -m gpu          the tests that need a CUDA device
#   bash scripts/test.sh tests/model     one part
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
.venv/bin/ruff check .
case " $* " in
    *" -m "*) exec .venv/bin/python -m pytest "$@" ;;
    *) exec .venv/bin/python -m pytest -m "not slow and not gpu" --durations=10 "$@" ;;
esac
