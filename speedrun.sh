#!/usr/bin/env bash
# Train, evaluate and talk to a model with one command.
#
#   bash speedrun.sh                            on a GPU node: the paper's mixer at depth 20 on FineWeb-Edu;
#                                               otherwise the paper's mixer and `successor` at depth 3
#   DEPTH=4 bash speedrun.sh                    without a GPU: larger models, trained for three times as many steps
#   RECIPE=best bash speedrun.sh                only `successor`, the recommended mixer
#   ATTENTION=dot_product bash speedrun.sh      only the baseline
#   DATA=~/my-texts bash speedrun.sh            your own text: a folder of .txt, .jsonl or parquet files
#   DRY_RUN=1 bash speedrun.sh                  print the commands and run none
#
# You can copy and run each printed command. The script skips finished steps and resumes an interrupted training, so you
# can rerun it at any time. Environment variables change the defaults:
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
#                                       (default: depth, settings that differ from the defaults, mixer)
#   EVAL_BUNDLE                         CORE evaluation bundle: folder, .zip, download or none; hub: for chat only
#   CHAT                                conversations, as for --data of scripts.chat_sft; none: no fine-tuning
#   TRACKER                             wandb, trackio or tensorboard
#   TRAIN_FLAGS                         more flags for scripts.base_train
#   GPUS                                number of GPUs to use (default: all; 0: the small run)
set -euo pipefail
set -f # TRAIN_FLAGS is split into words, and a * in it is not a file name
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

case "$*" in
    "") ;;
    -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "speedrun: got '$*', expected no arguments: environment variables are its settings (--help)" >&2; exit 2 ;;
esac

# ---- Check the variables before anything is done ----

bad=0
for name in DEPTH VOCAB_SIZE SEQUENCE_LEN SHARDS NUM_ITERATIONS TOTAL_BATCH_SIZE DEVICE_BATCH_SIZE SEED; do
    case "${!name:-1}" in # the digits one by one, because in some languages [0-9] also matches ²
        0* | *[!0123456789]* | ??????????*)
            echo "speedrun: $name: got '${!name}', expected an integer from 1 to 999999999" >&2; bad=1 ;;
    esac
done
case "${RECIPE:-}" in
    "") mixers= ;;
    paper) mixers=gaussian ;;
    best) mixers=successor ;;
    *) echo "speedrun: RECIPE: got '$RECIPE', expected paper or best" >&2; bad=1 ;;
esac
case "${GPUS:-0}" in *[!0123456789]* | ?????*)
    echo "speedrun: GPUS: got '$GPUS', expected an integer from 0 to 9999" >&2; bad=1 ;; esac
case "${RUN:-}" in .* | */*) echo "speedrun: RUN: got '$RUN', expected a plain folder name" >&2; bad=1 ;; esac
case "${TRAIN_FLAGS:-}" in *[\'\"\\]*)
    echo "speedrun: TRAIN_FLAGS: got '$TRAIN_FLAGS', expected words separated by spaces, without quotes" >&2; bad=1 ;; esac
[ "$bad" = 0 ] || exit 2

# ---- Set up: .venv with the pinned packages (an installed nanogka already has an environment) ----

if [ -f "$here/scripts/setup.sh" ]; then
    cd "$here"
    [ "${DRY_RUN:-}" = 1 ] || bash scripts/setup.sh
    [ ! -x .venv/bin/python ] || PATH="$PWD/.venv/bin:$PATH"
    chat=".venv/bin/python -m scripts.chat_cli"
fi
export PATH

base=${NANOGKA_BASE_DIR:-$HOME/.cache/nanogka} # the folder of all data and results
if [ -z "${GPUS:-}" ] && command -v nvidia-smi >/dev/null; then # otherwise there is no need to wait for torch
    GPUS=$(python -c 'import torch; print(torch.cuda.device_count())' 2>/dev/null || echo 0)
fi
GPUS=${GPUS:-0}

# ---- How a step is run ----

failed="" interrupted=0 code=0
trap 'interrupted=1' INT # Ctrl-C stops the current step, which saves its work, and then this script

# try TITLE COMMAND…: print the command, run it unless this is a dry run, and leave its exit code in $code.
try() {
    local title=$1 began=$SECONDS
    shift
    printf '\n== %s\n  ' "$title"
    printf ' %q' "$@"
    echo
    code=0
    [ "${DRY_RUN:-}" != 1 ] || return 0
    "$@" || code=$?
    echo "   ($((SECONDS - began)) s)"
    case "$code:$interrupted" in 130:* | 143:* | *:1) stop "$title" ;; esac
}

# stop TITLE: end the script, because the step that failed is one that everything else needs.
stop() {
    if [ "$code" = 2 ]; then
        echo "speedrun: '$1' refused its settings (see above). Set RUN=name to start another run" >&2
    else
        echo "speedrun: '$1' ended with exit code $code. Finished work is kept. Rerun this script to continue" >&2
    fi
    exit "$((code ? code : 130))"
}

# step: run a step that everything else needs. late: run a step whose failure is reported at the end.
step() { try "$@"; [ "$code" = 0 ] || stop "$1"; }
late() { try "$@"; [ "$code" = 0 ] || failed="$failed
    $1 (exit code $code)"; }

# newest_step RUN: the step of the newest checkpoint.
newest_step() { { ls "$base/runs/$1/checkpoints" 2>/dev/null || true; } | sed -n 's/^step_0*//p' | sort -n | tail -n 1; }

# train RUN TITLE COMMAND…: run a training, and resume it after a crash as long as each attempt saves a newer checkpoint.
# Bad settings (exit code 2) and non-finite losses (3) would come again, so these end it.
train() {
    local run=$1 before
    shift
    while :; do
        before=$(newest_step "$run")
        try "$@"
        case "$code" in 0 | 2 | 3) return ;; esac
        [ "$(newest_step "$run")" != "$before" ] || return 0
        echo "speedrun: '$1' ended with exit code $code; resuming from step $(newest_step "$run")" >&2
    done
}

# evaluated RUN FILE BUNDLE: true if FILE has complete results of the newest checkpoint, and of BUNDLE if one is named.
evaluated() {
    local newest results="$base/runs/$1/$2"
    newest=$(newest_step "$1")
    [ -n "$newest" ] && grep -Eq "\"step\": $newest([^0-9]|\$)" "$results" 2>/dev/null || return 1
    grep -q '"complete": true' "$results" || return 1
    [ -z "$3" ] || grep -Fq "\"eval_bundle\": \"$3\"" "$results"
}

# ---- The settings; those that differ from the defaults are part of the run's name ----

checksum() { printf '%04x' $(($(printf %s "$1" | cksum | cut -d ' ' -f 1) % 65536)); }

# use NAME DEFAULT LETTER: set the variable NAME to its default if it is empty.
named=
use() {
    local value=${!1:-$2}
    [ "$value" = "$2" ] || named="$named-$3$value"
    printf -v "$1" %s "$value"
}

# identify PATH: a short name. Two folders of one base name get two names, so that they do not share a tokenizer.
identify() {
    local path
    path=$(cd "$(dirname "$1")" 2>/dev/null && pwd -P)/$(basename "$1")
    printf '%s-%s' "$(basename "$1" | tr -c 'A-Za-z0-9.\n-' _)" "$(checksum "$path")"
}

mixers=${ATTENTION:-$mixers}
if [ "$GPUS" -gt 0 ]; then
    mixers=${mixers:-gaussian} DEPTH=${DEPTH:-20} usual=fineweb-edu
    use VOCAB_SIZE 32768 v
    use SEQUENCE_LEN 2048 t
    usual_chat=smoltalk:9,embedded:1 # nine tokens of smoltalk to one of embedded
    bundle=${EVAL_BUNDLE:-download} chat_bundle=${EVAL_BUNDLE:-hub}
    # One process per GPU. `--device cuda` stops them if the driver is too old for torch; otherwise they would train on
    # the CPU. The lone `--` separates torchrun's flags from the script's.
    launch="python -m torch.distributed.run --standalone --nproc_per_node=$GPUS -m"
    flags="-- --device cuda"
else
    mixers=${mixers:-gaussian successor} DEPTH=${DEPTH:-3} usual=embedded
    use VOCAB_SIZE 4096 v
    use SEQUENCE_LEN 512 t
    usual_steps=$((DEPTH > 3 ? 300 : 100)) usual_batch=4096
    usual_chat=embedded bundle=${EVAL_BUNDLE:-} chat_bundle=${EVAL_BUNDLE:-}
    launch="python -m" flags=
fi
DATA=${DATA:-$usual} CHAT=${CHAT:-$usual_chat}
case "$DATA" in embedded | fineweb-edu | climbmix) corpus=$DATA ;; *) corpus=$(identify "$DATA") ;; esac
from_hub=0
case "$DATA" in fineweb-edu | climbmix) from_hub=1 ;; esac
[ "$DATA" = "$usual" ] || named="$named-$corpus"
use NUM_ITERATIONS "${usual_steps:-}" n
use TOTAL_BATCH_SIZE "${usual_batch:-}" b
use SEED 1 s
[ -z "${TRAIN_FLAGS:-}" ] || named="$named-$(checksum "$TRAIN_FLAGS")"
if [ "$from_hub" = 1 ] && [ -z "$NUM_ITERATIONS" ]; then
    # Enough for the default horizon of every mixer (the baseline's is the longest): 101 shards at depth 20. The order of
    # the documents depends on the number of shards, so runs that are compared must use the same number.
    needed=$(((DEPTH * DEPTH * (DEPTH + 8) + 110) / 111)) # a fit to the parameters of depths 6 to 32
    use SHARDS $((needed > 8 ? needed : 8)) h
fi
[ "${EVAL_BUNDLE:-}" != hub ] || bundle=none # the hub has only the questions of chat_eval
tokenizer=$corpus-$VOCAB_SIZE
began=$SECONDS

# name_run MIXER, training_flags MIXER RUN: set $run and the array $options.
name_run() {
    run=${RUN:-d$DEPTH$named}-$1
    [ -z "${RUN:-}" ] || [ "$1" != "$mixers" ] || run=$RUN
}
training_flags() {
    options=(--data "$DATA" --tokenizer "$tokenizer" --depth "$DEPTH" --attention "$1"
        --sequence-len "$SEQUENCE_LEN" --seed "$SEED" --run "$2"
        ${SHARDS:+--shards "$SHARDS"} ${NUM_ITERATIONS:+--num-iterations "$NUM_ITERATIONS"}
        ${TOTAL_BATCH_SIZE:+--total-batch-size "$TOTAL_BATCH_SIZE"}
        ${DEVICE_BATCH_SIZE:+--device-batch-size "$DEVICE_BATCH_SIZE"} ${TRACKER:+--tracker "$TRACKER"})
    # With a batch 128 times below the reference, the rates that √(batch ratio) gives are too low (docs/research/log.md).
    [ "$GPUS" -gt 0 ] || options+=(--lr-scale 1.2 --eval-every 20 --eval-tokens 16384 --save-every 100)
    options+=(${TRAIN_FLAGS:-} --resume auto)
}

# ---- 1. Data and tokenizer ----
# Everything that comes from the network is fetched before the GPUs work: the tokenizer needs eight shards, and the rest
# is downloaded while the tokenizer is trained. The embedded corpus is the documentation of the installed Python.

wanted=
[ "$bundle" != download ] || wanted="--bundle"
if [ "$CHAT" != none ]; then
    [ "$chat_bundle" != hub ] || wanted="$wanted --chat-tasks"
    case "$CHAT" in *smoltalk* | *hub:*) wanted="$wanted --conversations $CHAT" ;; esac
fi
if [ "$from_hub" = 1 ]; then
    step "fetch the tokenizer's data" python -m scripts.fetch --data "$DATA" -n 8
    wanted="--data $DATA -n ${SHARDS:-8} $wanted"
elif [ -n "$wanted" ]; then
    wanted="-n 0 $wanted"
fi
download=
if [ -n "$wanted" ] && [ "${DRY_RUN:-}" != 1 ]; then
    mkdir -p "$base"
    python -m scripts.fetch $wanted >"$base/fetch.log" 2>&1 &
    download=$!
fi

# A byte-level BPE tokenizer, trained on a sample of the corpus.
if [ -f "$base/tokenizers/$tokenizer/meta.json" ]; then
    echo "the tokenizer $tokenizer already exists"
else
    step "train the tokenizer" python -m scripts.tok_train --data "$DATA" --vocab-size "$VOCAB_SIZE" --name "$tokenizer"
fi
# Wait for the download. After a failure the second attempt shows what is missing.
if [ -n "$wanted" ] && { [ -z "$download" ] || ! wait "$download"; }; then
    step "fetch everything else" python -m scripts.fetch $wanted
fi

# ---- 2. Pretraining and evaluation ----
# The depth sets width, heads, number of steps and batch. --resume auto continues a stopped run and leaves a finished one
# alone. The evaluation measures bits per byte, runs the tasks of the CORE bundle if there is one, and draws samples.

if [ "$GPUS" -gt 0 ]; then
    for mixer in $mixers; do # on one process, in seconds: what will be trained, and whether the settings are right
        name_run "$mixer"
        training_flags "$mixer" "$run"
        step "plan the run" python -m scripts.base_train --device cuda "${options[@]}" --dry-run
    done
fi
trained=
for mixer in $mixers; do
    name_run "$mixer"
    training_flags "$mixer" "$run"
    train "$run" "train the model" $launch scripts.base_train $flags "${options[@]}"
    if [ "$code" = 2 ] && [ "$mixer" != "$mixers" ]; then
        # One of several mixers may lack an option that TRAIN_FLAGS gives.
        failed="$failed
    train the model $run (it refused its settings)"
        continue
    fi
    [ "$code" = 0 ] || stop "train the model"
    trained="$trained $run" last=$mixer
    if evaluated "$run" evaluation.json "$bundle"; then
        echo "$run is already evaluated"
    else
        parts=
        [ "$GPUS" = 0 ] || [ "$bundle" = none ] || parts="--eval bpb,core,sample" # a minute on eight GPUs
        late "evaluate" $launch scripts.base_eval $flags --run "$run" $parts ${bundle:+--eval-bundle "$bundle"}
    fi
done
[ -n "$trained" ] || { echo "speedrun: no model was trained:$failed" >&2; exit 2; }
run=${trained##* } first=${trained# } first=${first%% *}

# ---- 3. Fine-tuning of the last model on conversations, and questions whose answers are known ----

talk=$run
if [ "$CHAT" != none ]; then
    talk=$run-chat
    [ "$CHAT" = "$usual_chat" ] || talk=$run-chat-$(identify "$CHAT")
    options=(--base "$run" --run "$talk" --data "$CHAT" ${TRACKER:+--tracker "$TRACKER"})
    if [ "$GPUS" = 0 ] && [ "$CHAT" = embedded ]; then
        # One or two exchanges per row: attention that averages over everything it sees learns best from short rows. The
        # longest exchange has 44 tokens with a vocabulary of 4,096 (docs/research/log.md).
        row=$((VOCAB_SIZE >= 4096 ? 48 : 96))
        row=$((row < SEQUENCE_LEN ? row : SEQUENCE_LEN))
        rows=48 rates=0.6
        [ "$last" != successor ] || rows=24 rates=1.2 # it learns with larger rates and smaller batches
        options+=(--sequence-len "$row" --total-batch-size $((rows * row)) --device-batch-size "$rows"
            --num-iterations 500 --lr-scale "$rates" --bandwidth-lr 0.1
            --eval-every 250 --eval-tokens 4000 --save-every 100)
    elif [ "$GPUS" = 0 ]; then
        options+=(--lr-scale 0.3 --save-every 100)
    fi
    train "$talk" "learn to chat" $launch scripts.chat_sft $flags "${options[@]}" --resume auto
    if [ "$code" != 0 ]; then
        failed="$failed
    learn to chat (exit code $code)"
        talk=$run
    elif evaluated "$talk" chat_evaluation.json "$chat_bundle"; then
        echo "$talk is already evaluated"
    else
        late "ask it questions" $launch scripts.chat_eval $flags --run "$talk" ${chat_bundle:+--eval-bundle "$chat_bundle"}
    fi
fi
late "ask it something" python -m scripts.chat_cli --run "$talk" -p "How do you spell kif?"
[ "$CHAT" != embedded ] || late "let it compute with the calculator" python -m scripts.chat_cli --run "$talk" -p "What is 2 + 4 + 3?"

# ---- 4. The page of its attention heads, and the report ----

[ "$GPUS" = 0 ] || printf '\nThe GPUs are no longer needed. The last two steps run on the CPU and take a few minutes.\n'
if [ -f "$base/runs/$run/visualization/index.html" ]; then
    echo "the attention page of $run already exists"
else
    late "draw its attention heads" python -m scripts.visualize --run "$run" --device cpu
fi
if [ "$base/runs/$run/report.html" -nt "$base/runs/$run/evaluation.json" ] &&
    { [ "$talk" = "$run" ] || [ "$base/runs/$run/report.html" -nt "$base/runs/$talk/chat_evaluation.json" ]; }; then
    echo "the report of $run already exists"
else
    other=
    [ "$first" = "$run" ] || other=$first
    late "report" python -m scripts.report --run "$run" ${other:+--compare "$other"}
fi

total=$((SECONDS - began))
if [ -n "$failed" ]; then
    printf '\nspeedrun: these steps failed; rerun this script to repeat them:%s\n' "$failed" >&2
    exit 1
fi
printf '\nDone in %d min %d s. Talk to it:\n    %s --run %s\n' $((total / 60)) $((total % 60)) "${chat:-nanogka chat}" "$talk"
