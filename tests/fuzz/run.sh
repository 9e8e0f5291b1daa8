#!/usr/bin/env bash
# Builds the fuzzers with clang (preset fuzz) and runs them side by side, then says in a table how
# far each came. Ends with 1, and the path of what reproduces it, where one found something.
#
#   bash tests/fuzz/run.sh                 every fuzzer for a minute
#   bash tests/fuzz/run.sh --seconds N     for N seconds each
#   bash tests/fuzz/run.sh --runs N        until each has tried N inputs, however long it takes
#   bash tests/fuzz/run.sh --only NAME     one of them (message_fuzz, store_fuzz, ...)
#   bash tests/fuzz/run.sh --jobs N        at most N at once (as many as there are cores)
#   bash tests/fuzz/run.sh --seed N        libFuzzer's seed; another one each time without it
#
# What they learnt stays in build/fuzz/corpus, and the next run goes on from there; the log of each
# is build/fuzz/logs/NAME.log. To see a finding again: build/fuzz/bin/NAME FILE
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# The longest input and the most memory (MiB) of each. The first is for frames longer than any
# message may be; the memory holds AddressSanitizer's own as well.
fuzzers=(
  "message_fuzz 1200000 700"
  "store_fuzz 4096 500"
  "actor_fuzz 4096 500"
  "segment_fuzz 16384 500"
  "config_fuzz 8192 500"
  "tensor_file_fuzz 16384 500"
  "document_fuzz 65536 500"
)
seconds=60 runs=-1 only= jobs=$(nproc) seed=0
while [ $# -gt 0 ]; do
  case "$1" in
    --seconds) seconds=${2:?--seconds needs a number}; shift 2 ;;
    --runs) runs=${2:?--runs needs a number} seconds=0; shift 2 ;;
    --only) only=${2:?--only needs the name of a fuzzer}; shift 2 ;;
    --jobs) jobs=${2:?--jobs needs a number}; shift 2 ;;
    --seed) seed=${2:?--seed needs a number}; shift 2 ;;
    -h | --help) sed -n '2,14s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "tests/fuzz/run.sh: unknown argument '$1'; see --help" >&2; exit 2 ;;
  esac
done
if [ -n "$only" ]; then
  chosen=()
  for line in "${fuzzers[@]}"; do [ "${line%% *}" != "$only" ] || chosen+=("$line"); done
  if [ ${#chosen[@]} -eq 0 ]; then
    echo "tests/fuzz/run.sh: no fuzzer is called '$only'; there are ${fuzzers[*]%% *}" >&2
    exit 2
  fi
  fuzzers=("${chosen[@]}")
fi
command -v clang++ >/dev/null || {
  echo "tests/fuzz/run.sh: the fuzzers need clang++, which is not installed: run" \
    "tests/install_dependencies.sh, or leave them out (tests/run.sh --no-fuzz)" >&2
  exit 1
}

echo "fuzz: build"
mkdir -p build
cmake --preset fuzz >build/fuzz-configure.log 2>&1 || { cat build/fuzz-configure.log >&2; exit 1; }
targets=()
for line in "${fuzzers[@]}"; do targets+=("${line%% *}"); done
cmake --build build/fuzz --parallel "$jobs" --target "${targets[@]}" | tail -n 1

export ASAN_OPTIONS=quarantine_size_mb=16:malloc_context_size=6:detect_leaks=1
export UBSAN_OPTIONS=print_stacktrace=1
folder=build/fuzz
mkdir -p $folder/logs $folder/found
declare -A name_of=()
trap 'for pid in "${!name_of[@]}"; do kill "$pid" 2>/dev/null || true; clean "$pid"; done' EXIT

# What a fuzzer that was ended leaves in /dev/shm.
clean() { rm -rf "/dev/shm/optlease-fuzz-$1" "/dev/shm/optlease-fuzz-$1".*; }

# And what one left that was run by hand and found something.
for left in /dev/shm/optlease-fuzz-*; do
  pid=${left##*/optlease-fuzz-} pid=${pid%%.*}
  [ ! -e "$left" ] || [ -e "/proc/$pid" ] || clean "$pid"
done

start() { # name longest-input memory
  local name=$1 corpus=$folder/corpus/$1 seeds=$folder/seeds/$1
  rm -rf "$seeds" && mkdir -p "$corpus" "$seeds"
  OPTLEASE_FUZZ_SEEDS=$seeds $folder/bin/"$name" >$folder/logs/"$name".log 2>&1 &
  local code=0
  wait $! || code=$?
  clean $!
  if [ "$code" -ne 0 ]; then
    cat $folder/logs/"$name".log >&2
    echo "tests/fuzz/run.sh: $name refuses its own seeds" >&2
    exit 1
  fi
  local words=()
  [ ! -s "$seeds.words" ] || words=(-dict="$seeds.words")
  $folder/bin/"$name" "$corpus" "$seeds" "${words[@]}" -runs="$runs" -max_total_time="$seconds" \
    -seed="$seed" -entropic=0 -max_len="$2" -rss_limit_mb="$3" -timeout=20 -print_final_stats=1 \
    -artifact_prefix=$folder/found/"$name"- >$folder/logs/"$name".log 2>&1 &
  name_of[$!]=$name
}

declare -A ended=()
wait_for_one() {
  local pid code=0
  wait -n -p pid "${!name_of[@]}" || code=$?
  ended[${name_of[$pid]}]=$code
  unset "name_of[$pid]"
  clean "$pid"
}

echo "fuzz: ${#fuzzers[@]} fuzzers, $([ "$runs" -ge 0 ] && echo "$runs inputs" ||
  echo "$seconds s") each, $jobs at once"
for line in "${fuzzers[@]}"; do
  [ ${#name_of[@]} -lt "$jobs" ] || wait_for_one
  # shellcheck disable=SC2086 # three words
  start $line
done
while [ ${#name_of[@]} -gt 0 ]; do wait_for_one; done

stat() { sed -n "s/^stat::$2: *//p" $folder/logs/"$1".log | tail -n 1; }
failed=()
printf '%-18s %12s %8s %9s %9s  %s\n' fuzzer inputs 'a second' features 'peak MiB' result
for line in "${fuzzers[@]}"; do
  name=${line%% *}
  features=$(sed -n 's/.* ft: \([0-9]*\) .*/\1/p' $folder/logs/"$name".log | tail -n 1)
  result=clean
  if [ "${ended[$name]}" -ne 0 ]; then
    result=$(sed -n 's/.*Test unit written to //p' $folder/logs/"$name".log | tail -n 1)
    result="FOUND ${result:-code ${ended[$name]}}"
    failed+=("$name")
  fi
  printf '%-18s %12s %8s %9s %9s  %s\n' "$name" "$(stat "$name" number_of_executed_units)" \
    "$(stat "$name" average_exec_per_sec)" "${features:-?}" "$(stat "$name" peak_rss_mb)" "$result"
done
[ ${#failed[@]} -eq 0 ] && exit 0
for name in "${failed[@]}"; do
  echo "fuzz: $name found something; the end of $folder/logs/$name.log:" >&2
  grep -v '^stat::\|^#[0-9]' $folder/logs/"$name".log | tail -n 60 | cut -c 1-400 >&2
done
exit 1
