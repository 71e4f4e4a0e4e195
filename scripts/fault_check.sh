#!/usr/bin/env bash
# Kills a training of two ranks at random moments and checks that nothing is lost. Arguments: see --help.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
exec .venv/bin/python -m scripts.fault_check "$@"
