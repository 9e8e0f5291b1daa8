#!/usr/bin/env bash
# Runs every GPU test program, then the benchmarks, and writes one report.
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

if [ "$bench" = yes ] && [ -x "$bin/gpu_stream_bench" ]; then
  say "== gpu_stream_bench"
  timeout 300 "$bin/gpu_stream_bench" --params "$params" 2>&1 | tee -a "$report"
  code=${PIPESTATUS[0]}
  ran=$((ran + 1))
  [ "$code" -eq 0 ] || failed=$((failed + 1))
fi
say "$((ran - failed)) passed, $failed failed"
[ "$ran" -gt 0 ] && [ "$failed" -eq 0 ]
