#!/usr/bin/env bash
# Pretrain on any number of nodes. Arguments go to scripts.base_train.
#
#   sbatch --nodes=2 scripts/slurm.sh --depth 20 --data fineweb-edu --tokenizer fineweb-edu-32768
#
# First run `bash scripts/setup.sh` and train the tokenizer. Then submit the script from the repository. The repository
# and NANOGKA_BASE_DIR must be on a file system that all nodes share.
#SBATCH --job-name=nanogka
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=12:00:00
#SBATCH --signal=TERM@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.log
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:?submit it with sbatch}"

gpus=${SLURM_GPUS_ON_NODE:-8}
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# Derive the port from the job's id, so that two jobs on one node do not collide.
port=$((20000 + SLURM_JOB_ID % 20000))

# `--device cuda` stops the job on a node whose driver is too old for torch, which would otherwise train on the CPU.
# Without --kill-on-bad-exit a node that has failed would leave the others waiting. srun does not take the number of
# cores from sbatch since Slurm 22.05, and one core for eight processes starves them.
srun --kill-on-bad-exit=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-64}" .venv/bin/python -m scripts.launch \
    --nnodes="$SLURM_JOB_NUM_NODES" --nproc_per_node="$gpus" \
    --rdzv_backend=c10d --rdzv_endpoint="$first:$port" --rdzv_id="$SLURM_JOB_ID" \
    -m scripts.base_train -- --device cuda "$@" --resume auto
