#!/usr/bin/env bash
# Builds Optlease and runs its tests. Installs what is missing first.
#
#   bash tests/run.sh                     the default: fuzzers, unit and system tests; release
#   bash tests/run.sh --preset asan       the same under a sanitizer preset (asan, tsan, dev, cpu)
#   bash tests/run.sh --long              200 seeded kill runs instead of a dozen, and longer tests
#   bash tests/run.sh --label unit        only tests with that label (unit, system)
#   bash tests/run.sh --soak [--kills N]  the soak alone: N kills (10000), at every point and random
#   bash tests/run.sh --seed N            repeats the random numbers of a run (in LastTest.log)
#   bash tests/run.sh --no-fuzz           without the fuzzers (tests/fuzz/run.sh, with clang), a
#                                         minute each where no preset or label is asked for
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=release
label=
fuzz=yes
soak=
kills=10000
while [ $# -gt 0 ]; do
  case "$1" in
    --no-fuzz) fuzz=no; shift ;;
    --preset) fuzz=no preset=${2:?--preset needs a name}; shift 2 ;;
    --label) fuzz=no label=${2:?--label needs unit or system}; shift 2 ;;
    --long) export OPTLEASE_TEST_LONG=1; shift ;;
    --soak) soak=yes; shift ;;
    --kills) kills=${2:?--kills needs a number}; shift 2 ;;
    --seed) export OPTLEASE_TEST_SEED=${2:?--seed needs a number}; shift 2 ;;
    -h | --help) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "tests/run.sh: unknown argument '$1'; see --help" >&2; exit 2 ;;
  esac
done

bash tests/install_dependencies.sh
echo "configure: preset $preset"
cmake --preset "$preset" -DOPTLEASE_TESTS=ON
echo "build: $(nproc) jobs"
cmake --build --preset "$preset" --parallel "$(nproc)"
if [ -n "$soak" ]; then
  report="build/$preset/soak-report.json"
  echo "soak: $kills kills, coverage in $report and $report.txt"
  exec env OPTLEASE_SOAK_KILLS="$kills" OPTLEASE_SOAK_REPORT="$report" "build/$preset/bin/soak_test"
fi
[ "$fuzz" = no ] || bash tests/fuzz/run.sh
echo "test: preset $preset${label:+, label $label}"
# Loopback and shared memory are the only things the tests touch; system tests run one at a time
# (RUN_SERIAL), unit tests side by side.
exec ctest --test-dir "build/$preset" --output-on-failure --no-tests=error \
  --parallel "$(nproc)" ${label:+-L "$label"}
