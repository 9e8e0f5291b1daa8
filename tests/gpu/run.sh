#!/usr/bin/env bash
# Runs every GPU test program, then `optlease bench` in several shapes, and writes one report (the
# figures of each bench in full beside it: REPORT.NAME.json).
#   tests/gpu/run.sh [--bin DIR] [--report FILE] [--quick] [--no-bench]
# --bin: the folder of built programs; without it they are built first, into build/gpu. --quick: the
# benchmarks on 64 Mi parameters. Ends with 0 when every test program that is there has passed, with
# 14 at once where there is no GPU.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=
report=gpu-report.txt
params=512
bench=yes
while [ $# -gt 0 ]; do
  case $1 in
    --bin) bin=$2; shift 2 ;;
    --report) report=$2; shift 2 ;;
    --quick) params=64; shift ;;
    --no-bench) bench=no; shift ;;
    *) echo "run.sh: unknown argument $1" >&2; exit 2 ;;
  esac
done

# shellcheck source=tests/gpu/require_gpu.sh
. "$here/require_gpu.sh"
require_gpu run.sh
tests="gpu_reduce_test gpu_device_test gpu_pipeline_test memory_test gpu_collectives_test"
if [ -z "$bin" ]; then
  build=$here/../../build/gpu
  cmake -S "$here/../.." -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release &&
    cmake --build "$build" || exit 1
  bin=$build/bin
fi

: > "$report" || exit 1
say() { echo "$*" | tee -a "$report"; }
say "GPU report, $(date -u +%Y-%m-%dT%H:%M:%SZ), $(uname -sr), $(nproc) CPUs"
if command -v nvidia-smi > /dev/null; then
  nvidia-smi --query-gpu=index,name,driver_version,pcie.link.gen.current,pcie.link.width.current \
    --format=csv 2>&1 | tee -a "$report"
fi
df -h /dev/shm 2>&1 | tee -a "$report"

failed=0
ran=0
for program in $tests; do
  if [ ! -x "$bin/$program" ]; then
    say "== $program: not built"
    continue
  fi
  say "== $program"
  begun=$(date +%s)
  timeout 300 "$bin/$program" --gtest_brief=1 2>&1 | tee -a "$report"
  code=${PIPESTATUS[0]}
  ran=$((ran + 1))
  [ "$code" -eq 0 ] || failed=$((failed + 1))
  say "== $program: exit code $code, $(($(date +%s) - begun)) s"
done

# bench NAME [argument...]: one run of `optlease bench`, in words in the report and as JSON beside it.
# Measured after the tests: its figures are judged by people.
bench() {
  local name=$1 code
  shift
  say "== optlease bench $*"
  timeout 600 "$bin/optlease" bench --device cuda --set job.name="$name" "$@" \
    --json > "$report.$name.json" 2>> "$report"
  code=$?
  ran=$((ran + 1))
  if [ "$code" -ne 0 ]; then
    failed=$((failed + 1))
    say "== exit code $code"
    return
  fi
  grep -E '"(of_floor|of_floors|ns_per_parameter|finish_spread|slower_direction_busy|in_bytes_per_second|floor_bytes_per_second|exposed_stall_seconds|gather_exposed_seconds|cpu_seconds|bounced_bytes|staging_bytes|device_bytes_beyond)"' \
    "$report.$name.json" | tee -a "$report"
}

if [ "$bench" = yes ] && [ -x "$bin/optlease" ] && [ -x "$bin/optlease-floor" ]; then
  bench main --parameters "${params}Mi"
  bench remainder --parameters "${params}Mi" --set optimizer.main=bf16+remainder
  bench half --parameters "${params}Mi" --set offload.fraction=0.5
  for shape in 12x4 12x3 8x6; do # MiB a chunk x staging buffers
    buffers=${shape#*x}
    bench "shape-$shape" --parameters "${params}Mi" --set offload.chunk_size_mb="${shape%x*}" \
      --set offload.staging_buffers="$buffers" --set offload.prefetch_windows=$((buffers + 1))
  done
  for size in 1Ki 1Mi 64Mi; do
    bench "size-$size" --parameters "$size" --steps 20
  done
  if [ "$(nvidia-smi -L 2> /dev/null | wc -l)" -ge 2 ]; then
    bench two-gpus --parameters "${params}Mi" --world-size 2
  fi
fi
say "$((ran - failed)) passed, $failed failed"
[ "$ran" -gt 0 ] && [ "$failed" -eq 0 ]
