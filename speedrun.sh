#!/usr/bin/env bash
# Train, evaluate and talk to a model with one command.
#
#   bash speedrun.sh                            on a GPU node: the paper's mixer at depth 20 on FineWeb-Edu;
#                                               otherwise the paper's mixer and `successor` at depth 3
#   DEPTH=2 bash speedrun.sh                    without a GPU: smaller models that chat almost as well, on any CPU
#   DEPTH=4 bash speedrun.sh                    without a GPU: larger models, trained for three times as many steps
#   RECIPE=best bash speedrun.sh                only `successor`, the recommended mixer
#   ATTENTION=dot_product bash speedrun.sh      only the baseline
#   DATA=~/my-texts bash speedrun.sh            your own text: a folder of .txt, .jsonl or parquet files
#   DRY_RUN=1 bash speedrun.sh                  print the commands and run none
#   STAGE=prepare GPUS=8 bash speedrun.sh       download and tokenize for the node, on a machine without GPUs
#
# You can copy and run each printed command. Finished work is skipped and interrupted work resumed, so you can rerun this
# script at any time. Environment variables change the defaults:
#
#   DEPTH, SEQUENCE_LEN, VOCAB_SIZE     model: layers, context in tokens, vocabulary
#   RECIPE                              paper or best: only the mixer gaussian, or only successor
#   ATTENTION                           mixers, or patterns of mixers such as GGGD, separated by spaces; the last one
#                                       learns to chat
#   DATA                                embedded, fineweb-edu, climbmix, or a folder of shards, .txt or .jsonl files
#   SHARDS                              training shards of fineweb-edu or climbmix, the same for every mixer
#   NUM_ITERATIONS, TOTAL_BATCH_SIZE    training steps, tokens per step
#   DEVICE_BATCH_SIZE, SEED             rows per device and micro-batch; seed of weights and data order
#   RUN                                 name of the run's folder; prefix of the names if there are several mixers
#                                       (default: depth, the variables that you set, mixer)
#   EVAL_BUNDLE                         CORE evaluation bundle: folder, .zip, download or none; hub: for chat only
#   CHAT                                conversations, as for --data of scripts.chat_sft; none: no fine-tuning
#   TRACKER                             wandb, trackio or tensorboard
#   TRAIN_FLAGS                         more flags for scripts.base_train; those about the machine, such as
#                                       --allow-torch, also reach scripts.chat_sft
#   GPUS                                number of GPUs to use (default: all; 0: the small run)
#   STAGE                               prepare, train or after: only the steps before, on or after the GPUs
[ -n "${BASH_VERSION:-}" ] || exec bash "$0" "$@" # for `sh speedrun.sh`
set -euo pipefail
set -f # TRAIN_FLAGS is split into words, and a * in it is not a file name
unset CDPATH # with it, cd may find another folder
unset PYTHONDONTWRITEBYTECODE # images set it, but many processes import the same modules
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/scripts/steps.sh" # checks the variables, sets up, and defines how a step is run: step, late, behind, train

# ---- What differs between a GPU node and a laptop ----

if [ "$GPUS" -gt 0 ]; then
    : "${ATTENTION:=gaussian}" "${DEPTH:=20}" "${SEQUENCE_LEN:=2048}" "${VOCAB_SIZE:=32768}" "${DATA:=fineweb-edu}"
    : "${CHAT:=smoltalk:9,embedded:1}" # nine tokens of smoltalk to one of embedded
    bundle=${EVAL_BUNDLE:-download} chat_bundle=${EVAL_BUNDLE:-hub} parts="--eval bpb,core,sample"
    small="" small_eval="" small_chat=""
    # One process per GPU. `--device cuda` keeps them from training on the CPU if torch cannot use the GPUs.
    launch="python -m scripts.launch --nproc_per_node=$GPUS -m" flags="-- --device cuda"
else
    : "${ATTENTION:=gaussian successor}" "${DEPTH:=3}" "${SEQUENCE_LEN:=512}" "${VOCAB_SIZE:=1024}" "${DATA:=embedded}"
    : "${CHAT:=embedded}" "${NUM_ITERATIONS:=$((DEPTH > 3 ? 840 : 280))}" "${TOTAL_BATCH_SIZE:=2048}"
    bundle=${EVAL_BUNDLE:-} chat_bundle=${EVAL_BUNDLE:-} launch="python -m" flags="" parts=""
    # Two mixers are trained at the same time. One alone is hardly faster with all cores, because its matrices are small.
    cores=$(nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 2)
    export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((cores > 1 ? cores / 2 : 1))}
    # With a batch 256 times below the reference, the rates that √(batch ratio) gives are too low (docs/research/log.md).
    small="--lr-scale 1.2 --eval-every 140 --eval-tokens 16384 --save-every 100" small_eval="--split-tokens 65536 --max-per-task 100"
    small_chat="--lr-scale 0.3 --save-every 100"
    # The base's rate is too high for copying and spelling. Each mixer has the better of the rates that were tried.
    # A narrower model needs more steps.
    [ "$CHAT" != embedded ] || small_chat="--num-iterations $((DEPTH > 2 ? 1200 : 1800)) --total-batch-size 2016 --bandwidth-lr 0.05
        --lr-scale $(case "$ATTENTION" in *successor) echo 0.3 ;; *) echo 0.6 ;; esac)
        --eval-every 420 --eval-tokens 4000 --save-every 120"
fi
settle # sets $tokenizer, and the flags of what comes from the network: $corpus_flags, $extra_flags, $talk_flags
advise "$(name_run "${ATTENTION%% *}")"

options=(--data "$DATA" --tokenizer "$tokenizer" --depth "$DEPTH" --sequence-len "$SEQUENCE_LEN" --seed "${SEED:-1}"
    ${SHARDS:+--shards "$SHARDS"} ${NUM_ITERATIONS:+--num-iterations "$NUM_ITERATIONS"}
    ${TOTAL_BATCH_SIZE:+--total-batch-size "$TOTAL_BATCH_SIZE"} ${TRACKER:+--tracker "$TRACKER"}
    ${DEVICE_BATCH_SIZE:+--device-batch-size "$DEVICE_BATCH_SIZE"} $small ${TRAIN_FLAGS:-})

# On a GPU, one process shows in seconds what will be trained, and whether the settings and the kernels work, before
# anything is downloaded.
for mixer in $ATTENTION; do
    [ "$GPUS" = 0 ] || ! during train || step "plan the run" \
        python -m scripts.base_train --device cuda --attention "$mixer" --run "$(name_run "$mixer")" "${options[@]}" --dry-run
done

# ---- 1. prepare: data and tokenizer, without a GPU ----
# The tokenizer, a byte-level BPE, needs eight shards. The rest is downloaded while it is trained. The embedded corpus is
# the documentation of the installed Python.

# Torch's compiler needs only the sizes, so it works meanwhile: on every GPU, because its cache is per device.
if [ "$GPUS" -gt 0 ] && [ -z "${STAGE:-}${TRAIN_FLAGS:-}" ]; then
    ahead "compile the training step" $launch scripts.bench -- train --device cuda --mixers "${ATTENTION%% *}" --depth "$DEPTH" \
        --sequence-len "$SEQUENCE_LEN" --vocab-size "$VOCAB_SIZE" --batch "${DEVICE_BATCH_SIZE:-32}" --repeats 1
fi
if during prepare; then
    [ -z "$corpus_flags" ] || step "fetch the tokenizer's data" python -m scripts.fetch --data "$DATA" -n 8
    [ -z "$corpus_flags$extra_flags" ] || behind step "fetch everything else" \
        python -m scripts.fetch ${corpus_flags:--n 0} $extra_flags $talk_flags
    step "train the tokenizer" \
        python -m scripts.tok_train --data "$DATA" --vocab-size "$VOCAB_SIZE" --name "$tokenizer" --keep
    caught_up
    [ -z "$talk_flags" ] || behind step "tokenize the conversations" \
        python -m scripts.fetch -n 0 $talk_flags --tokenizer "$tokenizer" --sequence-len "$SEQUENCE_LEN"
fi

# ---- 2. train: each mixer is trained and evaluated, and the last one learns to chat ----
# The depth sets width, heads, number of steps and batch. The evaluation measures bits per byte, runs the tasks of the
# CORE bundle if there is one, and draws samples.

# work_on MIXER: train and evaluate it.
work_on() {
    local run
    run=$(name_run "$1")
    if during train; then
        train "$run" "train the model" \
            $launch scripts.base_train $flags --attention "$1" --run "$run" "${options[@]}" --resume auto
        [ "$code" = 0 ] || { refused "$1"; return 0; } # one of several mixers may lack an option in TRAIN_FLAGS
        late "evaluate" $launch scripts.base_eval $flags --run "$run" $parts $small_eval ${bundle:+--eval-bundle "$bundle"}
    fi
}

# On a CPU, each mixer but the last is trained at the same time as the next one.
for mixer in $ATTENTION; do
    if [ "$GPUS" = 0 ] && [ "$mixer" != "${ATTENTION##* }" ]; then behind work_on "$mixer"; else work_on "$mixer"; fi
done
caught_up
trained=
for mixer in $ATTENTION; do
    case "$untrained" in *" $mixer "*) ;; *) trained="$trained$(name_run "$mixer") " ;; esac
done
[ -n "$trained" ] || { echo "speedrun: no model was trained:$failed" >&2; exit 2; }

first=${trained%% *} run=${trained% } run=${run##* } talk=$run
if [ "$CHAT" != none ]; then
    talk=$run-chat$chat_named
    if during train; then
        caught_up
        train "$talk" "learn to chat" $launch scripts.chat_sft $flags --base "$run" --run "$talk" --data "$CHAT" \
            $small_chat ${TRACKER:+--tracker "$TRACKER"} $(machine_flags ${TRAIN_FLAGS:-}) --resume auto
        [ "$code" = 0 ] || { fail "learn to chat (exit code $code)"; talk=$run; }
        [ "$talk" = "$run" ] || late "ask it questions whose answers are known" \
            $launch scripts.chat_eval $flags --run "$talk" ${chat_bundle:+--eval-bundle "$chat_bundle"}
    fi
fi

# ---- 3. after: talk to it, the page of its attention heads, the report; on the CPU ----

if during after; then
    late "ask it something" python -m scripts.chat_cli --run "$talk" --temperature 0 --examples
    late "draw its attention heads" python -m scripts.visualize --run "$run" --device cpu
    late "report" python -m scripts.report --run "$run" $([ "$first" = "$run" ] || echo "--compare $first")
    [ "$GPUS" -gt 0 ] || late "write it as a page for any browser" python -m scripts.page --run "$talk"
fi
finish "$talk"
