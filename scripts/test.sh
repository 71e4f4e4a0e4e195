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
    *) # two processes of one thread each: faster than one of two, and kind to a small machine
        export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
        .venv/bin/python -m pytest -m "not slow and not gpu" -n 2 --dist worksteal --durations=10 "$@"
        [ $# != 0 ] || PYTHONPATH=.venv/images .venv/bin/python -m pytest tests/vision ;;
esac
