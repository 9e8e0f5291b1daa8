#!/usr/bin/env bash
# Whole jobs on a GPU against the same jobs on the CPU: equal digests, undisturbed and killed.
#   tests/gpu/jobs.sh --bin DIR [--elements N] [--steps N] [--kills N] [--seed N]
#                     [--part all|whole|split]
# --bin: the folder of built programs (optlease, optlease-host-store, ...). --part: jobs that
# offload everything, those that keep a part on the device, or all. One GPU is enough: one rank.
# Ends with 0 when every job ended as it should, with 14 at once where there is no GPU; leaves
# nothing behind.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
configs=$here/../../configs
bin= elements=16000000 steps=300 kills=4 seed=$(date +%s) part=all
while [ $# -gt 0 ]; do
  case $1 in
    --bin) bin=$2 ;;
    --elements) elements=$2 ;;
    --steps) steps=$2 ;;
    --kills) kills=$2 ;;
    --seed) seed=$2 ;;
    --part) part=$2 ;;
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "jobs.sh: unknown argument $1" >&2; exit 2 ;;
  esac
  shift 2
done
# shellcheck source=tests/gpu/require_gpu.sh
. "$here/require_gpu.sh"
require_gpu jobs.sh
[ -x "$bin/optlease" ] || { echo "jobs.sh: no program $bin/optlease; give --bin" >&2; exit 2; }
RANDOM=$((seed % 32768))
work=$(mktemp -d /tmp/optlease-jobs-XXXXXX)
export XDG_RUNTIME_DIR=$work
trap 'rm -rf "$work"' EXIT
failed=0
say() { echo "jobs.sh: $*"; }
fail() { say "FAILED: $*"; failed=$((failed + 1)); }
digest_of() { sed -n 's/.*"state_digest": *"\([^"]*\)".*/\1/p' "$1" | head -1; }

# run NAME CONFIG [argument...]: to its end, in the foreground; the report is $work/NAME.json.
run() {
  local name=$1 config=$2
  shift 2
  "$bin/optlease" run "$configs/$config" --quiet --report "$work/$name.json" \
    --set job.name="$name" --set ranks.world_size=1 "$@" > "$work/$name.log" 2>&1
}
# same NAME WANTED: the job's digest is WANTED.
same() {
  local got
  got=$(digest_of "$work/$1.json")
  if [ -n "$got" ] && [ "$got" = "$2" ]; then
    if ! grep -q '"status": "passed"' "$work/$1.json" ||
      grep -q '"passed": false' "$work/$1.json"; then
      fail "$1: right digest, but its report did not pass: $(tr -d '\n' < "$work/$1.json" |
        grep -o '"detail": "[^"]*", *"name": "[^"]*", *"passed": false')"
    fi
    say "$1: digest $got"
    return
  fi
  fail "$1: digest '$got', wanted '$2'"
  tail -20 "$work/$1.log" "$work/optlease/$1/"*.log 2> /dev/null
}

# until_it_steps NAME PID: until the job has committed a step in this life of it, or has ended.
until_it_steps() {
  local first= now
  while kill -0 "$2" 2> /dev/null; do
    now=$("$bin/optlease" status "$1" --json 2> /dev/null |
      sed -n 's/.*"step_committed": *\([0-9]*\).*/\1/p' | head -1)
    [ -n "$now" ] && [ -n "$first" ] && [ "$now" -gt "$first" ] && return
    [ -n "$first" ] || first=$now
    sleep 0.05
  done
}

# killed NAME HOW WANTED [argument...]: SIGKILL of the launcher (and with HOW=all of its children in
# the same instant) at random moments, resumed each time.
killed() {
  local name=$1 how=$2 wanted=$3 flag= launcher children i code
  shift 3
  for ((i = 0; i <= kills; ++i)); do
    "$bin/optlease" run "$configs/cuda.toml" $flag --quiet --report "$work/$name.json" \
      --set job.name="$name" --set ranks.world_size=1 "${sized[@]}" "$@" \
      >> "$work/$name.log" 2>&1 &
    launcher=$!
    if [ "$i" -lt "$kills" ]; then
      until_it_steps "$name" "$launcher"
      sleep "0.$((RANDOM % 400 + 100))"
      if [ "$how" = all ]; then
        children=$(pgrep -P "$launcher")
        # shellcheck disable=SC2086
        kill -KILL "$launcher" $children 2> /dev/null
      else
        kill -KILL "$launcher" 2> /dev/null
      fi
    fi
    wait "$launcher" 2> /dev/null
    code=$?
    [ "$code" -eq 0 ] && break
    if [ "$code" -ne 137 ]; then
      fail "$name: life $i ended with code $code"
      tail -20 "$work/$name.log" "$work/optlease/$name/"*.log 2> /dev/null
      "$bin/optlease" clean "$name" > /dev/null 2>&1
      return
    fi
    flag=--resume
  done
  say "$name: $i kills"
  [ "$i" -gt 0 ] || fail "$name was over before it was killed; give more --elements or --steps"
  same "$name" "$wanted"
}

say "seed $seed, $elements elements, $steps steps"
sized=(--set model.elements="$elements" --set job.steps="$steps")
bf16=(--set model.param_dtype=BF16 --set model.grad_dtype=BF16)
run cpu cuda.toml --set ranks.device=cpu "${sized[@]}" "${bf16[@]}" || fail "cpu ended with code $?"
oracle=$(digest_of "$work/cpu.json")

phases=(before_lease copy_in update copy_out before_commit after_commit between_steps)
phases+=(prepared answered gather)
rehearsals=
for i in "${!phases[@]}"; do
  rehearsals+="{role=\"gpu_actor\",step=$((3 + 3 * i)),phase=\"${phases[$i]}\"},"
done
rehearsals+='{role="host_store",step=33,phase="before_commit"}'
both='{role="trainer",step=10,phase="update"},{role="trainer",step=20,phase="copy_out"},'
both+='{role="gpu_actor",step=20,phase="copy_out"}'

whole_jobs() {
  run cuda cuda.toml "${sized[@]}" "${bf16[@]}" || fail "cuda ended with code $?"
  same cuda "$oracle"
  local dtypes types name
  for dtypes in F32:F32 F16:BF16; do
    types=(--set model.param_dtype="${dtypes%:*}" --set model.grad_dtype="${dtypes#*:}")
    name=${dtypes/:/-}
    run "cpu-$name" cuda.toml --set ranks.device=cpu "${sized[@]}" "${types[@]}" ||
      fail "cpu-$name ended with code $?"
    run "cuda-$name" cuda.toml "${sized[@]}" "${types[@]}" || fail "cuda-$name ended with code $?"
    same "cuda-$name" "$(digest_of "$work/cpu-$name.json")"
  done

  run actor-kills cuda.toml "${sized[@]}" --set "rehearse=[$rehearsals]" ||
    fail "actor-kills ended with code $?"
  same actor-kills "$oracle"

  killed launcher-kills launcher "$oracle"
  killed node-kills all "$oracle" --set gradients.durable=true

  run trainer-cpu quickstart.toml || fail "trainer-cpu ended with code $?"
  run trainer-cuda quickstart.toml --set ranks.device=cuda || fail "trainer-cuda ended with code $?"
  same trainer-cuda "$(digest_of "$work/trainer-cpu.json")"
  # The trainer alone, then it and the actor at once: parameters and gradients outlive both.
  run trainer-kills quickstart.toml --set ranks.device=cuda --set "rehearse=[$both]" ||
    fail "trainer-kills ended with code $?"
  same trainer-kills "$(digest_of "$work/trainer-cpu.json")"
}

split_jobs() {
  local i split splits word launcher digests lost code
  # A part of the state stays on the device: the digest of the CPU job that offloads everything,
  # also under kills.
  splits=("optimizer.main=bf16+remainder" "offload.fraction=0" "offload.fraction=0.3")
  splits+=("optimizer.main=bf16+remainder offload.fraction=0.5")
  for i in "${!splits[@]}"; do
    split=()
    for word in ${splits[$i]}; do split+=(--set "$word"); done
    run "cuda-split$i" cuda.toml "${sized[@]}" "${split[@]}" ||
      fail "cuda-split$i ended with code $?"
    same "cuda-split$i" "$oracle"
    run "kills-split$i" cuda.toml "${sized[@]}" "${split[@]}" --set "rehearse=[$rehearsals]" ||
      fail "kills-split$i ended with code $?"
    same "kills-split$i" "$oracle"
  done
  killed launcher-kills-split launcher "$oracle" --set "optimizer.main=bf16+remainder" \
    --set offload.fraction=0.7

  # A hold of a running job: the actor saves its resident slots first.
  run hold-split cuda.toml "${sized[@]}" --set offload.fraction=0.6 &
  launcher=$!
  digests=0
  while kill -0 "$launcher" 2> /dev/null; do
    "$bin/optlease" digest hold-split > "$work/hold-split.digest" 2> /dev/null &&
      digests=$((digests + 1))
    sleep 0.5
  done
  wait "$launcher" || fail "hold-split ended with code $?"
  say "hold-split: $digests digests of the running job"
  [ "$digests" -gt 0 ] || fail "hold-split: no digest of the running job"
  same hold-split "$oracle"

  # All killed at one instant: what stayed on the device is lost (the resident slots, or the summed
  # gradients of a step that was open), and the resumed job says so.
  lost=(--set job.name=lost-split --set ranks.world_size=1 "${sized[@]}")
  lost+=(--set offload.fraction=0.6)
  "$bin/optlease" run "$configs/cuda.toml" --quiet "${lost[@]}" > "$work/lost-split.log" 2>&1 &
  launcher=$!
  until_it_steps lost-split "$launcher"
  # shellcheck disable=SC2046
  kill -KILL "$launcher" $(pgrep -P "$launcher") 2> /dev/null
  wait "$launcher" 2> /dev/null
  "$bin/optlease" run "$configs/cuda.toml" --resume --quiet "${lost[@]}" \
    >> "$work/lost-split.log" 2>&1
  code=$?
  [ "$code" -eq 10 ] || fail "lost-split: resumed with code $code, wanted 10 (corrupt_state)"
  if ! cat "$work/lost-split.log" "$work/optlease/lost-split/"*.log 2> /dev/null |
    grep -q "lay in the device's memory"; then
    fail "lost-split: no words about what is lost"
    tail -20 "$work/lost-split.log" "$work/optlease/lost-split/"*.log 2> /dev/null
  fi
  "$bin/optlease" clean lost-split > /dev/null 2>&1
}

[ "$part" = split ] || whole_jobs
[ "$part" = whole ] || split_jobs
[ "$failed" -eq 0 ] && say "all jobs ended as they should" || say "$failed failed"
[ "$failed" -eq 0 ]
