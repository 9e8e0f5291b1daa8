#!/usr/bin/env bash
# How long a killed actor holds up its job: SIGKILL of the GPU actor in the middle of its steps, to
# the first commit of its successor; and whether the job then ends with the undisturbed digest.
#   tests/gpu/recovery.sh --bin DIR [--state-mib N] [--steps N] [--kills N] [--device cuda|cpu]
#                         [--seed N] [--chunk-mb N]
# --bin: the folder of built programs (optlease, optlease-host-store, ...). --state-mib: optimizer
# state in shared memory, 16 GiB by default; /dev/shm needs a little more. One GPU is enough: one
# rank. Prints each kill and the median; ends with 0 when every kill was survived and the digests
# are equal, however long it took. Leaves nothing behind.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
config=$here/../../configs/cuda.toml
bin= state_mib=16384 steps=100 kills=5 device=cuda seed=$(date +%s) chunk_mb=16
while [ $# -gt 0 ]; do
  case $1 in
    --bin) bin=$2 ;;
    --state-mib) state_mib=$2 ;;
    --steps) steps=$2 ;;
    --kills) kills=$2 ;;
    --device) device=$2 ;;
    --seed) seed=$2 ;;
    --chunk-mb) chunk_mb=$2 ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "recovery.sh: unknown argument $1" >&2; exit 2 ;;
  esac
  shift 2
done
# shellcheck source=tests/gpu/require_gpu.sh
. "$here/require_gpu.sh"
[ "$device" != cuda ] || require_gpu recovery.sh
[ -x "$bin/optlease" ] || { echo "recovery.sh: no program $bin/optlease; give --bin" >&2; exit 2; }
RANDOM=$((seed % 32768))
work=$(mktemp -d /tmp/optlease-recovery-XXXXXX)
export XDG_RUNTIME_DIR=$work
launcher=
# The launcher's end is its children's too.
finish() {
  [ -n "$launcher" ] && kill -TERM "$launcher" 2> /dev/null && wait "$launcher" 2> /dev/null
  for job in recovery-calm recovery; do "$bin/optlease" clean "$job" > /dev/null 2>&1; done
  rm -rf "$work"
}
trap finish EXIT
say() { echo "recovery.sh: $*"; }
die() {
  say "FAILED: $*"
  tail -15 "$work"/*.log "$work"/optlease/*/*.log 2> /dev/null
  exit 1
}
now_ms() { echo $(($(date +%s%N) / 1000000)); }
digest_of() { sed -n 's/.*"state_digest": *"\([^"]*\)".*/\1/p' "$1" | head -1; }

# start NAME: in the background; its progress goes to $work/NAME.log, its report to NAME.json.
start() {
  "$bin/optlease" run "$config" --report "$work/$1.json" --set job.name="$1" \
    --set job.steps="$steps" --set ranks.world_size=1 --set ranks.device="$device" \
    --set model.elements=$((state_mib * 1048576 / 12)) --set offload.chunk_size_mb="$chunk_mb" \
    --set offload.staging_buffers=4 --set restart.intensity=1000 --set restart.backoff_max_ms=20 \
    > "$work/$1.log" 2>&1 &
  launcher=$!
}
running() { kill -0 "$launcher" 2> /dev/null; }
step_now() { sed -n 's/.*step \([0-9-]*\) of [0-9]*$/\1/p' "$work/recovery.log" | tail -1; }
# As its store heard last, at most a tenth of a second ago.
phase_now() {
  "$bin/optlease" status recovery --json 2> /dev/null | tr '{' '\n' |
    sed -n 's/.*"phase": *"\([a-z_]*\)".*/\1/p' | head -1
}
recoveries() { grep -c 'gpu_actor 0 recovered' "$work/recovery.log"; }

say "seed $seed, $state_mib MiB of state, $steps steps, $kills kills, device $device"
start recovery-calm
wait "$launcher" || die "the undisturbed job ended with code $?"
launcher=
oracle=$(digest_of "$work/recovery-calm.json")
say "undisturbed: digest $oracle"

# one_kill NUMBER: one line, and the milliseconds to times.
one_kill() {
  local step s pid phase killed limit before
  step=$(step_now)
  # A step further, so that what the kill before left behind is over.
  limit=$(($(now_ms) + 120000))
  while s=$(step_now); [ -z "$s" ] || [ "$s" -le "${step:-0}" ]; do
    running || die "the job was over before kill $1; give more --steps or --state-mib"
    [ "$(now_ms)" -lt "$limit" ] || die "no step in 120 s before kill $1"
    sleep 0.02
  done
  sleep "0.$((100 + RANDOM % 900))"
  # In the middle of a step: its commits have begun.
  phase=
  while [ "$phase" != stream ]; do
    running || die "the job was over before kill $1; give more --steps or --state-mib"
    [ "$(now_ms)" -lt "$limit" ] || die "no step streams before kill $1; the phase is '$phase'"
    phase=$(phase_now)
  done
  before=$(recoveries)
  pid=$(sed -n 's/.*gpu_actor 0 started (incarnation [0-9]*, pid \([0-9]*\)).*/\1/p' \
    "$work/recovery.log" | tail -1)
  killed=$(now_ms)
  kill -KILL "$pid" 2> /dev/null || die "kill $1: no process $pid; the job was over: more --steps"
  while [ "$(recoveries)" -le "$before" ]; do
    running || break
    [ $(($(now_ms) - killed)) -lt 60000 ] || die "kill $1: no commit within 60 s"
    sleep 0.005
  done
  [ "$(recoveries)" -gt "$before" ] ||
    die "kill $1: the job ended before a commit was seen; give more --steps"
  times+=($(($(now_ms) - killed)))
  say "kill $1 (pid $pid): first commit ${times[-1]} ms after SIGKILL;" \
    "the launcher's: $(grep 'gpu_actor 0 recovered' "$work/recovery.log" | tail -1 |
      sed 's/.*recovered: //')"
  say "  its successor $(grep -h '] started: ' "$work"/optlease/recovery/*actor*.log 2> /dev/null |
    tail -1 | sed 's/.*\] //')"
}

times=()
start recovery
for ((k = 1; k <= kills; ++k)); do one_kill "$k"; done
wait "$launcher" || die "the job ended with code $?"
launcher=
got=$(digest_of "$work/recovery.json")
[ -n "$got" ] && [ "$got" = "$oracle" ] || die "digest '$got', undisturbed '$oracle'"
say "digest equal: $got"
mapfile -t sorted < <(printf '%s\n' "${times[@]}" | sort -n)
say "SIGKILL to first commit, ms: ${sorted[*]}; median ${sorted[$((kills / 2))]}," \
  "worst ${sorted[-1]} (bars: median 1000, worst 2000)"
