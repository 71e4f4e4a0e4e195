#!/usr/bin/env bash
# From text to a trained, evaluated, talking model with one command.
#
#   bash speedrun.sh                            on a GPU node: the paper's mixer at depth 20 on FineWeb-Edu;
#                                               else the paper's mixer and `successor` at depth 3, side by side
#   DEPTH=4 bash speedrun.sh                    without a GPU: larger models, trained three times as long
#   RECIPE=best bash speedrun.sh                only `successor`, the recommended mixer
#   ATTENTION=dot_product bash speedrun.sh      only the baseline
#   DRY_RUN=1 bash speedrun.sh                  print the commands and run none
#
# Every line below that starts with `step` is a command to copy. What is done already is skipped and a training that was
# stopped resumes, so calling this again is quick and safe. Environment variables override the choices:
#
#   DEPTH, SEQUENCE_LEN, VOCAB_SIZE     of the model: layers, context in tokens, vocabulary
#   RECIPE                              paper or best: only the mixer gaussian or only successor
#   ATTENTION                           mixers, or patterns of mixers such as GGGD, with blanks between; the last one
#                                       learns to chat
#   DATA                                embedded, fineweb-edu, or a folder of shards, .txt or .jsonl files
#   NUM_ITERATIONS, TOTAL_BATCH_SIZE    training steps, tokens per step
#   DEVICE_BATCH_SIZE, SEED             rows per device and micro-batch; seed of weights and data order
#   RUN                                 name of the run's folder; of several mixers, the beginning of the names
#   EVAL_BUNDLE                         a CORE evaluation bundle: folder, .zip, download or none; hub: for chat only
#   CHAT                                conversations, as --data of scripts.chat_sft takes them; none: no fine-tuning
#   TRACKER                             wandb, trackio or tensorboard, as --tracker takes it
#   TRAIN_FLAGS                         more flags for scripts.base_train
#   GPUS                                how many to use (default: all there are; 0: the small run)
set -euo pipefail
set -f # TRAIN_FLAGS is split into words, but never taken for names of files
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

case "$*" in
    "") ;;
    -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "speedrun: got '$*', expected no arguments: environment variables are its settings (--help)" >&2; exit 2 ;;
esac

# The variables, checked before anything is done. Digits one by one: in some languages ² lies between 0 and 9.
bad=0
for name in DEPTH VOCAB_SIZE SEQUENCE_LEN NUM_ITERATIONS TOTAL_BATCH_SIZE DEVICE_BATCH_SIZE SEED; do
    case "${!name:-1}" in
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
    echo "speedrun: TRAIN_FLAGS: got '$TRAIN_FLAGS', expected words with blanks between, no quotes" >&2; bad=1 ;; esac
[ "$bad" = 0 ] || exit 2

# Set-up: a virtual environment in .venv with the pinned packages. An installed nanogka has its own already.
if [ -f "$here/scripts/setup.sh" ]; then
    cd "$here"
    [ "${DRY_RUN:-}" = 1 ] || bash scripts/setup.sh
    [ ! -x .venv/bin/python ] || PATH="$PWD/.venv/bin:$PATH"
    chat=".venv/bin/python -m scripts.chat_cli"
fi
export PATH

base=${NANOGKA_BASE_DIR:-$HOME/.cache/nanogka} # where everything goes
if [ -z "${GPUS:-}" ] && command -v nvidia-smi >/dev/null; then # else there is no need to wait for torch
    GPUS=$(python -c 'import torch; print(torch.cuda.device_count())' 2>/dev/null || echo 0)
fi
GPUS=${GPUS:-0}

# step TITLE COMMAND…: say what comes, and do it unless this is a dry run.
step() {
    local title=$1 code=0
    shift
    printf '\n== %s\n  ' "$title"
    printf ' %q' "$@"
    echo
    [ "${DRY_RUN:-}" != 1 ] || return 0
    "$@" || code=$?
    if [ "$code" != 0 ]; then
        echo "speedrun: '$title' ended with exit code $code; what is done is kept, call this again to go on" >&2
        exit "$code"
    fi
}

# evaluated RUN FILE BUNDLE: whether FILE in the run's folder is of its newest checkpoint and, if one is named, of BUNDLE.
evaluated() {
    local newest
    newest=$(ls "$base/runs/$1/checkpoints" 2>/dev/null | sed -n 's/^step_0*//p' | sort -n | tail -n 1)
    [ -n "$newest" ] && grep -Eq "\"step\": $newest([^0-9]|\$)" "$base/runs/$1/$2" 2>/dev/null || return 1
    [ -z "$3" ] || grep -Fq "\"eval_bundle\": \"$3\"" "$base/runs/$1/$2"
}

mixers=${ATTENTION:-$mixers}
SEED=${SEED:-1}
if [ "$GPUS" -gt 0 ]; then
    mixers=${mixers:-gaussian} DEPTH=${DEPTH:-20} DATA=${DATA:-fineweb-edu} VOCAB_SIZE=${VOCAB_SIZE:-32768} SEQUENCE_LEN=${SEQUENCE_LEN:-2048}
    CHAT=${CHAT:-smoltalk:9,embedded:1} # nine tokens of smoltalk to one of embedded
    bundle=${EVAL_BUNDLE:-download} chat_bundle=${EVAL_BUNDLE:-hub}
    torchrun="python -m torch.distributed.run --standalone --nproc_per_node=$GPUS" # `--` ends its own flags
else
    mixers=${mixers:-gaussian successor} # the last one learns to chat
    DEPTH=${DEPTH:-3} DATA=${DATA:-embedded} VOCAB_SIZE=${VOCAB_SIZE:-4096} SEQUENCE_LEN=${SEQUENCE_LEN:-512}
    TOTAL_BATCH_SIZE=${TOTAL_BATCH_SIZE:-4096} NUM_ITERATIONS=${NUM_ITERATIONS:-$((DEPTH > 3 ? 300 : 100))}
    CHAT=${CHAT:-embedded} bundle=${EVAL_BUNDLE:-} chat_bundle=${EVAL_BUNDLE:-}
fi
[ "${EVAL_BUNDLE:-}" != hub ] || bundle=none # the hub has the questions of chat_eval only
tokenizer=$(basename "$DATA")-$VOCAB_SIZE

# 1. Data. The tokenizer needs eight shards of FineWeb-Edu; base_train fetches the others that its horizon needs. The
#    embedded corpus is the text that every Python installation carries.
if [ "$DATA" = fineweb-edu ]; then
    step "fetch the tokenizer's data" python -m scripts.fetch -n 8
fi

# 2. The tokenizer: byte-level BPE, trained on a sample of the corpus.
if [ -f "$base/tokenizers/$tokenizer/meta.json" ]; then
    echo "the tokenizer $tokenizer is there already"
else
    step "train the tokenizer" python -m scripts.tok_train --data "$DATA" --vocab-size "$VOCAB_SIZE" --name "$tokenizer"
fi

# 3. Pretraining. Depth sets width, heads, horizon and batch; --resume auto continues a stopped run and leaves a
#    finished one alone. The first lines of its output say what the run will cost, and with --dry-run nothing else.
# 4. Evaluation: bits per byte, the tasks of the CORE bundle if there is one, a few samples.
for mixer in $mixers; do
    run=${RUN:-d$DEPTH}-$mixer
    [ -z "${RUN:-}" ] || [ "$mixer" != "$mixers" ] || run=$RUN
    set -- --data "$DATA" --tokenizer "$tokenizer" --depth "$DEPTH" --attention "$mixer" \
        --sequence-len "$SEQUENCE_LEN" --seed "$SEED" --run "$run" \
        ${NUM_ITERATIONS:+--num-iterations "$NUM_ITERATIONS"} \
        ${TOTAL_BATCH_SIZE:+--total-batch-size "$TOTAL_BATCH_SIZE"} \
        ${DEVICE_BATCH_SIZE:+--device-batch-size "$DEVICE_BATCH_SIZE"} ${TRACKER:+--tracker "$TRACKER"}
    if [ "$GPUS" -gt 0 ]; then
        step "train the model" $torchrun -m scripts.base_train -- "$@" ${TRAIN_FLAGS:-} --resume auto
    else
        # With a batch 128 times below the reference, the rates that √(batch ratio) gives are too cautious (docs/research/log.md).
        step "train the model" python -m scripts.base_train "$@" --lr-scale 1.2 --eval-every 100 \
            --eval-tokens 65536 --save-every 100 ${TRAIN_FLAGS:-} --resume auto
    fi
    if evaluated "$run" evaluation.json "$bundle"; then
        echo "$run is evaluated already"
    else
        step "evaluate" python -m scripts.base_eval --run "$run" ${bundle:+--eval-bundle "$bundle"}
    fi
done

# 5. Fine-tuning of the last one on conversations, and questions to its outcome.
talk=$run
if [ "$CHAT" != none ]; then
    talk=$run-chat
    if [ "$GPUS" -gt 0 ]; then
        step "learn to chat" $torchrun -m scripts.chat_sft -- --base "$run" --run "$talk" --data "$CHAT" \
            ${TRACKER:+--tracker "$TRACKER"} --resume auto
    elif [ "$CHAT" = embedded ]; then
        # One or two exchanges per row: attention that averages over all it sees is best shown few. The longest
        # exchange has 44 tokens of a vocabulary of 4 096 (docs/research/log.md).
        row=$((VOCAB_SIZE >= 4096 ? 48 : 96))
        row=$((row < SEQUENCE_LEN ? row : SEQUENCE_LEN))
        rows=48 rates=0.6
        [ "$mixer" != successor ] || rows=24 rates=1.2 # takes larger rates and smaller batches
        step "learn to chat" python -m scripts.chat_sft --base "$run" --run "$talk" --data embedded \
            --sequence-len "$row" --total-batch-size $((rows * row)) --device-batch-size "$rows" \
            --num-iterations 500 --lr-scale "$rates" --bandwidth-lr 0.1 \
            --eval-every 250 --eval-tokens 4000 --save-every 100 \
            ${TRACKER:+--tracker "$TRACKER"} --resume auto
    else
        step "learn to chat" python -m scripts.chat_sft --base "$run" --run "$talk" --data "$CHAT" \
            --lr-scale 0.3 --save-every 100 ${TRACKER:+--tracker "$TRACKER"} --resume auto
    fi
    if evaluated "$talk" chat_evaluation.json "$chat_bundle"; then
        echo "$talk is evaluated already"
    else
        step "ask it" python -m scripts.chat_eval --run "$talk" ${chat_bundle:+--eval-bundle "$chat_bundle"}
    fi
fi

# 6. The page of its heads; the report, which compares the runs (report.html in the run's folder); a first reply.
if [ -f "$base/runs/$run/visualization/index.html" ]; then
    echo "the page of the heads of $run is there already"
else
    step "draw its heads" python -m scripts.visualize --run "$run"
fi
if [ "$base/runs/$run/report.html" -nt "$base/runs/$run/evaluation.json" ] &&
    { [ "$talk" = "$run" ] || [ "$base/runs/$run/report.html" -nt "$base/runs/$talk/chat_evaluation.json" ]; }; then
    echo "the report of $run is there already"
else
    step "report" python -m scripts.report --run "$run"
fi
step "ask it something" python -m scripts.chat_cli --run "$talk" -p "How do you spell kif?"

printf '\nDone. Talk to it:\n    %s --run %s\n' "${chat:-nanogka chat}" "$talk"
