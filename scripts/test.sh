#!/usr/bin/env bash
# Set up .venv if needed, lint, check the types, and run the tests. Arguments go to pytest.
#
#   bash scripts/test.sh                 the tests that CI runs
#   bash scripts/test.sh -m slow         the tests that take minutes, see CONTRIBUTING.md
#   bash scripts/test.sh tests/model     one part
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # for `sh scripts/test.sh`
set -euo pipefail
unset CDPATH # with it, cd may find another folder
unset PYTHONDONTWRITEBYTECODE # images set it, but many processes import the same modules
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh --dev
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/pyrefly check
case " $* " in
    *" -m "*) exec .venv/bin/python -m pytest "$@" ;;
    *) # two processes with one thread each are faster than one process with two threads
        # (files that need the same fixtures or libraries share one of them, see tests/conftest.py)
        export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
        images=""
        if [ $# = 0 ]; then
            # Next to the others: images need packages that the others must not see, and set-up waits for the index.
            PYTHONPATH=.venv/images .venv/bin/python -m pytest -m "not slow" \
                tests/vision tests/scripts/test_setup.py >.venv/images.log 2>&1 &
            images=$!
            set -- --ignore tests/vision --ignore tests/scripts/test_setup.py
        fi
        code=0
        .venv/bin/python -m pytest -m "not slow" -n 2 --dist loadfile --durations=10 "$@" || code=$?
        [ -z "$images" ] || wait "$images" || code=$?
        [ -z "$images" ] || cat .venv/images.log
        exit "$code" ;;
esac
