#!/usr/bin/env bash
# Two ranks with uneven shards on two GPUs: do they end together, and is the state that of the CPU?
#   tests/gpu/share.sh --bin DIR [--elements N] [--steps N]
# Rank 0 holds N elements, rank 1 twice as many. Prints, of the last steps seen, how long each rank
# streamed and then waited for the other; then kills both actors in turn. Ends with 0 when the
# digests agree. Times are printed, never judged.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin= elements=32000000 steps=40
while [ $# -gt 0 ]; do
  case $1 in
    --bin) bin=$2 ;;
    --elements) elements=$2 ;;
    --steps) steps=$2 ;;
    *) echo "share.sh: unknown argument $1" >&2; exit 2 ;;
  esac
  shift 2
done
# shellcheck source=tests/gpu/require_gpu.sh
. "$here/require_gpu.sh"
require_gpu share.sh
[ -x "$bin/optlease" ] || { echo "share.sh: no program $bin/optlease; give --bin" >&2; exit 2; }
work=$(mktemp -d /tmp/optlease-share-XXXXXX)
export XDG_RUNTIME_DIR=$work
trap 'rm -rf "$work"' EXIT
digest_of() { sed -n 's/.*"state_digest": *"\([^"]*\)".*/\1/p' "$1" | head -1; }

tensors="{name=\"both\",shape=[$((2 * elements))],space=\"dense\"},"
tensors+="{name=\"mine\",shape=[$elements],space=\"expert\"}"
# job NAME [argument...]
job() {
  local name=$1
  shift
  "$bin/optlease" run "$here/../../configs/moe.toml" --quiet --report "$work/$name.json" \
    --set job.name="$name" --set job.steps="$steps" --set offload.chunk_size_mb=12 \
    --set "model.parameters=[$tensors]" \
    --set 'spaces=[{name="dense",ranks="all"},{name="expert",ranks=[1]}]' "$@" \
    > "$work/$name.log" 2>&1
}
field() { grep -o "\"optlease_actor_$1\": *[-0-9.e]*" | sed 's/.*: *//' | tr '\n' ' '; }

# watched NAME [argument...]: the job, and what its ranks say meanwhile.
watched() {
  local name=$1 pid view code
  job "$@" &
  pid=$!
  while kill -0 "$pid" 2> /dev/null; do
    sleep 1
    view=$("$bin/optlease-monitor" "$name" --once --json --timeout-ms 500 2> /dev/null) || continue
    echo "$name: step $(field step_committed <<< "$view")|" \
      "stream s $(field step_stream_seconds <<< "$view")|" \
      "then waits s $(field step_wait_committed_seconds <<< "$view")|" \
      "deferred $(field leases_deferred_total <<< "$view")"
  done
  wait "$pid"
  code=$?
  [ "$code" -eq 0 ] && return
  echo "share.sh: FAILED: $name ended with code $code"
  tail -20 "$work/$name.log"
  exit 1
}

job cpu --set ranks.device=cpu || { tail -20 "$work/cpu.log"; exit 1; }
watched cuda --set ranks.device=cuda
watched cuda-ceiling --set ranks.device=cuda --set offload.in_flight_mb=48
kills='{role="gpu_actor",rank=0,step=5,phase="copy_out"},'
kills+='{role="gpu_actor",rank=1,step=9,phase="update"},'
kills+='{role="gpu_actor",rank=1,step=13,phase="between_steps"}'
watched kills --set ranks.device=cuda --set "rehearse=[$kills]"
wanted=$(digest_of "$work/cpu.json")
for name in cuda cuda-ceiling kills; do
  got=$(digest_of "$work/$name.json")
  if [ -z "$got" ] || [ "$got" != "$wanted" ]; then
    echo "share.sh: FAILED: $name: digest '$got', the CPU's is '$wanted'"
    exit 1
  fi
done
echo "share.sh: digest $wanted on the CPU and on the GPUs, with and without a ceiling"
