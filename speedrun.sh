#!/usr/bin/env bash
# From text to a trained, evaluated, talking model with one command.
#
#   bash speedrun.sh                            on a GPU node: depth 20 on FineWeb-Edu; else a small real run, in minutes
#   ATTENTION=dot_product bash speedrun.sh      the baseline, with the same settings
#   DRY_RUN=1 bash speedrun.sh                  only say what would happen
#
# Sets up .venv first. DEPTH, DATA, NUM_ITERATIONS, WANDB_RUN and more override the plan:
# .venv/bin/python -m scripts.speedrun --help lists them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
bash scripts/setup.sh
exec .venv/bin/python -m scripts.speedrun
