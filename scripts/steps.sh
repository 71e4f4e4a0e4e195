# The part of speedrun.sh that runs its steps: checks of the variables, set-up, names, failures, Ctrl-C.

case "$*" in
    "") ;;
    -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p;}' "$0"; exit 0 ;;
    *) echo "speedrun: got '$*', expected no arguments: environment variables are its settings (--help)" >&2; exit 2 ;;
esac

# ---- Check the variables before anything is done ----

bad=0
odd() { echo "speedrun: $1: got '${!1}', expected $2" >&2; bad=1; }
for name in DEPTH VOCAB_SIZE SEQUENCE_LEN SHARDS NUM_ITERATIONS TOTAL_BATCH_SIZE DEVICE_BATCH_SIZE SEED; do
    case "${!name:-1}" in # the digits one by one, because in some languages [0-9] also matches ²
        0* | *[!0123456789]* | ??????????*) odd $name "an integer from 1 to 999999999" ;;
    esac
done
case "${RECIPE:-}" in "" | paper | best) ;; *) odd RECIPE "paper or best" ;; esac
case "${STAGE:-}" in "" | prepare | train | after) ;; *) odd STAGE "prepare, train or after" ;; esac
case "${GPUS:-0}" in *[!0123456789]* | ?????*) odd GPUS "an integer from 0 to 9999" ;; esac
case "${RUN:-}" in [.-]* | */*) odd RUN "a plain folder name" ;; esac
case "${TRAIN_FLAGS:-}" in *[\'\"\\]*) odd TRAIN_FLAGS "words separated by spaces, without quotes" ;; esac
[ "$bad" = 0 ] || exit 2

# ---- Set up: .venv with the pinned packages (an installed nanogka already has an environment) ----

if [ -f "$here/scripts/setup.sh" ]; then
    # The steps run in the checkout, but a relative path counts from the folder of the caller.
    if [ "$PWD" != "$here" ]; then
        for name in DATA CHAT EVAL_BUNDLE NANOGKA_BASE_DIR; do
            case "$name ${!name:-}" in
                *" " | *" /"* | *" ~"* | "DATA embedded" | "CHAT embedded") ;;
                NANOGKA_BASE_DIR*) export NANOGKA_BASE_DIR="$PWD/$NANOGKA_BASE_DIR" ;;
                *) [ ! -e "${!name}" ] || printf -v "$name" %s "$PWD/${!name}" ;;
            esac
        done
    fi
    cd "$here"
    [ "${DRY_RUN:-}" = 1 ] || bash scripts/setup.sh || exit
    [ ! -x .venv/bin/python ] || export PATH="$PWD/.venv/bin:$PATH"
fi
home=~ # also if HOME is not set
base=${NANOGKA_BASE_DIR:-$home/.cache/nanogka} # the folder of all data and results
case "$base" in "~" | "~/"*) base=$home${base#"~"} ;; esac
if [ -z "${GPUS:-}" ] && command -v nvidia-smi >/dev/null; then # otherwise there is no need to wait for torch
    GPUS=$(python -m nanogka.common.gpus) || exit 2 # it has said why torch cannot use them
elif [ -z "${GPUS:-}" ] && command -v rocm-smi >/dev/null; then
    echo "speedrun: this machine has an AMD GPU, which nanogka does not use; the small run on the CPU follows" >&2
fi
GPUS=${GPUS:-0}

# ---- Names, and what is downloaded ----

checksum() { printf '%04x' $(($(printf %s "$1" | cksum | cut -d ' ' -f 1) % 65536)); }

# identify PATH: a short name. Two folders of one base name get two names, so that they do not share a tokenizer.
identify() {
    local path
    path=$(cd "$(dirname "$1")" 2>/dev/null && pwd -P)/$(basename "$1")
    printf '%s-%s' "$(basename "$1" | tr -c 'A-Za-z0-9.\n-' _)" "$(checksum "$path")"
}

# A run is named after the variables that are set, and its tokenizer after corpus and size.
corpus=${DATA:-}
case "$corpus" in "" | embedded | fineweb-edu | climbmix) ;; *) corpus=$(identify "$DATA") ;; esac
named=${VOCAB_SIZE:+-v$VOCAB_SIZE}${SEQUENCE_LEN:+-t$SEQUENCE_LEN}${corpus:+-$corpus}
named=$named${NUM_ITERATIONS:+-n$NUM_ITERATIONS}${TOTAL_BATCH_SIZE:+-b$TOTAL_BATCH_SIZE}${SEED:+-s$SEED}
named=$named${TRAIN_FLAGS:+-$(checksum "$TRAIN_FLAGS")}${SHARDS:+-h$SHARDS}
chat_named=${CHAT:+-$(identify "$CHAT")}
case "${RECIPE:-}" in paper) : "${ATTENTION:=gaussian}" ;; best) : "${ATTENTION:=successor}" ;; esac

# name_run MIXER
name_run() { if [ "${RUN:-}" ] && [ "$1" = "$ATTENTION" ]; then echo "$RUN"; else echo "${RUN:-d$DEPTH$named}-$1"; fi; }

# machine_flags FLAG…: those of TRAIN_FLAGS that depend on the machine, so that every training needs them.
machine_flags() {
    while [ $# -gt 0 ]; do
        case "$1" in
            --allow-torch | --activation-checkpointing | --compile=* | --dtype=*) printf ' %s' "$1" ;;
            --compile | --dtype) printf ' %s' "$1" ${2:+"$2"} ;;
        esac
        shift
    done
}

# settle: find what follows from the variables after the defaults are known.
settle() {
    tokenizer=${corpus:-$DATA}-$VOCAB_SIZE corpus_flags="" extra_flags="" talk_flags="" failed="" began=$SECONDS
    case "$DATA" in fineweb-edu | climbmix)
        # Without a number of steps: enough for the default horizon of every mixer (the baseline's is the longest), 101
        # shards at depth 20. The order of the documents depends on the number of shards, so runs that are compared
        # must use the same number.
        local needed=$(((DEPTH * DEPTH * (DEPTH + 8) + 110) / 111)) # a fit to the parameters of depths 6 to 32
        [ "${NUM_ITERATIONS:-}" ] || : "${SHARDS:=$((needed > 8 ? needed : 8))}"
        corpus_flags="--data $DATA -n ${SHARDS:-8}" ;;
    esac
    [ "$bundle" != download ] || extra_flags="--bundle"
    [ "$bundle" != hub ] || bundle=none # the hub has only the questions of chat_eval
    [ "$bundle" != none ] || parts=""
    [ "$chat_bundle" != hub ] || [ "$CHAT" = none ] || extra_flags="$extra_flags --chat-tasks"
    case "$CHAT" in *smoltalk* | *hub:*) talk_flags="--conversations $CHAT" ;; esac
}

# advise RUN: before RUN is trained, tell the user of a CPU that computes in float32 of a faster way.
advise() {
    if [ "${DRY_RUN:-}" = 1 ] || [ "$GPUS" -gt 0 ] || [ "$DEPTH" -lt 3 ] || [ -e "$base/runs/$1" ]; then return; fi
    case "$(python -m nanogka.common.runtime)" in
        "cpu float32") echo "speedrun: this CPU has no units for bfloat16, so this may take several times as long as README says.
    DEPTH=2 bash speedrun.sh trains smaller models that chat almost as well, in a third of the time" ;;
    esac
}

# ---- How a step is run ----

interrupted=0 code=0
trap 'interrupted=1' INT # Ctrl-C stops the current step, which saves its work, and then this script

# during STAGE: true in this stage, and in all of them if the variable STAGE is empty.
during() { [ "${STAGE:-$1}" = "$1" ]; }

# try TITLE COMMAND…: print the command, run it unless this is a dry run, and leave its exit code in $code.
try() {
    local title=$1 start=$SECONDS
    shift
    printf '\n== %s\n  ' "$title"
    printf ' %q' "$@"
    echo
    code=0
    [ "${DRY_RUN:-}" != 1 ] || return 0
    "$@" || code=$?
    echo "   ($((SECONDS - start)) s)"
    case "$code:$interrupted" in 130:* | 143:* | *:1) stop "$title" ;; esac
}

# stop TITLE: end the script, because the step that failed is one that everything else needs.
stop() {
    if [ "$code" = 2 ]; then
        echo "speedrun: '$1' refused its settings (see above). If an earlier run has others, set RUN=name" >&2
    else
        echo "speedrun: '$1' ended with exit code $code. Finished work is kept. Rerun this script to continue" >&2
    fi
    exit "$((code ? code : 130))"
}

# step: run a step that everything else needs. late: run a step whose failure is reported at the end.
step() { try "$@"; [ "$code" = 0 ] || stop "$1"; }
late() { try "$@"; [ "$code" = 0 ] || fail "$1 (exit code $code)"; }
fail() { failed="$failed
    $1"; }

# behind FUNCTION ARGUMENT…: call a function, such as `step`, at the same time as the next steps. caught_up: wait for it
# and show what it printed. After a failure, call it again in the foreground: it resumes from the work that was saved.
behind() {
    caught_up
    [ "${DRY_RUN:-}" != 1 ] || { "$@"; return 0; }
    mkdir -p "$base"
    waiting=("$@")
    printf '\n== at the same time as the next steps: %s\n' "$2"
    set -m # it gets its own process group, all of which can be stopped
    { failed=; "$@"; [ -z "$failed" ]; } </dev/null >"$base/behind.log" 2>&1 &
    waiting_for=$!
    set +m
}
waiting=() waiting_for=
caught_up() {
    [ "${#waiting[@]}" != 0 ] || return 0
    local call=("${waiting[@]}")
    code=0
    wait "$waiting_for" || code=$?
    [ "$interrupted" = 0 ] || stop "${call[1]}"
    waiting=() waiting_for=
    if [ "$code" = 0 ]; then cat "$base/behind.log"; else "${call[@]}"; fi
}
stop_behind() {
    [ -n "$waiting_for" ] || return 0
    kill -TERM -- "-$waiting_for" 2>/dev/null || true
    while kill -0 -- "-$waiting_for" 2>/dev/null; do sleep 0.1; done # a training saves its state first
}
trap stop_behind EXIT

# ahead TITLE COMMAND…: run a step that makes the first training start faster; nothing is lost if it fails.
ahead() {
    [ "${DRY_RUN:-}" != 1 ] || { try "$@"; return 0; }
    mkdir -p "$base"
    "${@:2}" >"$base/ahead.log" 2>&1 &
    ahead_of=$!
}
ahead_of=

untrained=" "
# refused MIXER: go on without one of several mixers if it refused its settings; otherwise stop.
refused() {
    if [ "$code" != 2 ] || [ "$1" = "$ATTENTION" ]; then stop "train the model"; fi
    fail "train the model $(name_run "$1") (it refused its settings)"
    untrained="$untrained$1 "
}

# train RUN TITLE COMMAND…: run a training, and resume it after a crash as long as each attempt saves a newer checkpoint.
# Bad settings (exit code 2) and non-finite losses (3) would come again, so these end it.
train() {
    local run=$1 before
    # On a CPU a step allocates and frees hundreds of megabytes. glibc would return them to the kernel each time and fetch
    # small pages again. Keep them, in huge pages. Other systems ignore the variable.
    local -x GLIBC_TUNABLES=${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=4294967296}
    shift
    [ -z "$ahead_of" ] || wait "$ahead_of" || true # it uses the GPUs' memory
    ahead_of=
    while :; do
        before=$(newest_step "$run")
        try "$@"
        case "$code" in 0 | 2 | 3) return ;; esac
        [ "$(newest_step "$run")" != "$before" ] || return 0
        echo "speedrun: '$1' ended with exit code $code; resuming from step $(newest_step "$run")" >&2
    done
}
newest_step() { { ls "$base/runs/$1/checkpoints" 2>/dev/null || true; } | sed -n 's/^step_0*//p' | sort -n | tail -n 1; }

# finish RUN: report what failed, or how to go on.
finish() {
    caught_up
    if [ -n "$failed" ]; then
        printf '\nspeedrun: these steps failed; rerun this script to repeat them:%s\n' "$failed" >&2
        exit 1
    fi
    local total=$((SECONDS - began)) chat="nanogka chat"
    [ ! -f scripts/setup.sh ] || chat=".venv/bin/python -m scripts.chat_cli"
    printf '\nDone in %d min %d s.' $((total / 60)) $((total % 60))
    [ "${STAGE:-after}" != after ] || printf ' Talk to it:\n    %s --run %s' "$chat" "$1"
    echo
}
