#!/usr/bin/env bash
# Everything that needs a GPU, into one report (the figures of each bench in full beside it:
# REPORT.NAME.json).
#   tests/gpu/run.sh [--bin DIR] [--report FILE] [--parts LIST] [--quick]
# --bin: the folder of built programs; without it they are built first, into build/gpu.
# --parts: which, with commas between them; all by default:
#   tests      every gtest program of this folder
#   sanitizer  compute-sanitizer (memcheck, racecheck, initcheck) on their small cases
#   jobs       whole jobs against the CPU device's digests, killed and not (jobs.sh)
#   recovery   SIGKILL of the actor to the first new commit (recovery.sh)
#   share      uneven shards on two GPUs (share.sh); skipped where there is one
#   bench      `optlease bench` in several shapes
# --quick: tests and benches alone, the benches on 64 Mi parameters.
# Ends with 0 when all that ran has passed, with 14 at once where there is no GPU.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=
report=gpu-report.txt
params=512
parts=tests,sanitizer,jobs,recovery,share,bench
while [ $# -gt 0 ]; do
  case $1 in
    --bin) bin=$2; shift 2 ;;
    --report) report=$2; shift 2 ;;
    --parts) parts=$2; shift 2 ;;
    --quick) parts=tests,bench; params=64; shift ;;
    -h | --help) sed -n '2,15s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "run.sh: unknown argument $1" >&2; exit 2 ;;
  esac
done
for part in ${parts//,/ }; do
  case $part in
    tests|sanitizer|jobs|recovery|share|bench) ;;
    *) echo "run.sh: unknown part $part; see the head of this script" >&2; exit 2 ;;
  esac
done

# shellcheck source=tests/gpu/require_gpu.sh
. "$here/require_gpu.sh"
require_gpu run.sh
programs="gpu_reduce_test gpu_device_test gpu_pipeline_test memory_test gpu_collectives_test"
if [ -z "$bin" ]; then
  build=$here/../../build/gpu
  cmake -S "$here/../.." -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release &&
    cmake --build "$build" || exit 1
  bin=$build/bin
fi

: > "$report" || exit 1
say() { echo "$*" | tee -a "$report"; }
wants() { [[ ,$parts, == *",$1,"* ]]; }
gpus=$(nvidia-smi -L 2> /dev/null | wc -l)
say "GPU report, $(date -u +%Y-%m-%dT%H:%M:%SZ), $(uname -sr), $(nproc) CPUs"
if command -v nvidia-smi > /dev/null; then
  nvidia-smi --query-gpu=index,name,driver_version,pcie.link.gen.current,pcie.link.width.current \
    --format=csv 2>&1 | tee -a "$report"
fi
df -h /dev/shm 2>&1 | tee -a "$report"

failed=0
ran=0
# step NAME LIMIT_SECONDS COMMAND...: its output goes to the report, its exit code is counted.
step() {
  local name=$1 limit=$2 begun code
  shift 2
  say "== $name"
  begun=$(date +%s)
  timeout "$limit" "$@" 2>&1 | tee -a "$report"
  code=${PIPESTATUS[0]}
  ran=$((ran + 1))
  [ "$code" -eq 0 ] || failed=$((failed + 1))
  say "== $name: exit code $code, $(($(date +%s) - begun)) s"
}

if wants tests; then
  for program in $programs; do
    if [ -x "$bin/$program" ]; then
      step "$program" 300 "$bin/$program" --gtest_brief=1
    else
      say "== $program: not built"
    fi
  done
fi

# sanitized TOOL PROGRAM FILTER: cases of some ten thousand elements; large ones take hours there.
sanitized() {
  step "$1: $2 $3" 300 compute-sanitizer --tool "$1" --error-exitcode 9 "$bin/$2" \
    --gtest_brief=1 --gtest_filter="$3"
}
if wants sanitizer; then
  if command -v compute-sanitizer > /dev/null; then
    for tool in memcheck racecheck initcheck; do
      sanitized "$tool" gpu_device_test 'GpuUpdate.*-*LargeChunk*'
      sanitized "$tool" gpu_reduce_test 'GpuReduce.Sums*:GpuGradientMath.GivesTheStatisticsOfTheCpu'
      sanitized "$tool" gpu_pipeline_test '*ThatTheCpuDeviceCommits/1:*ThatTheCpuDeviceCommits/3'
    done
  else
    say "== sanitizer: there is no compute-sanitizer on the PATH; it comes with the CUDA Toolkit"
  fi
fi
wants jobs && step jobs.sh 1200 bash "$here/jobs.sh" --bin "$bin"
wants recovery && step recovery.sh 600 bash "$here/recovery.sh" --bin "$bin"
if wants share; then
  if [ "$gpus" -ge 2 ]; then
    step share.sh 600 bash "$here/share.sh" --bin "$bin"
  else
    say "== share.sh: skipped, it needs two GPUs"
  fi
fi

figures='of_floor|of_floors|ns_per_parameter|finish_spread|slower_direction_busy'
figures+='|in_bytes_per_second|floor_bytes_per_second|exposed_stall_seconds|cpu_seconds'
figures+='|gather_exposed_seconds|bounced_bytes|staging_bytes|device_bytes_beyond'
# bench NAME [argument...]: one run of `optlease bench`, in words in the report and as JSON beside
# it. Measured after the tests: its figures are judged by people.
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
  grep -E "\"($figures)\"" "$report.$name.json" | tee -a "$report"
}

if wants bench && [ -x "$bin/optlease" ] && [ -x "$bin/optlease-floor" ]; then
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
  [ "$gpus" -ge 2 ] && bench two-gpus --parameters "${params}Mi" --world-size 2
fi
say "$((ran - failed)) passed, $failed failed"
[ "$ran" -gt 0 ] && [ "$failed" -eq 0 ]
