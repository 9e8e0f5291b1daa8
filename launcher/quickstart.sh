#!/usr/bin/env bash
# Builds Optlease and runs its main job twice: a byte-level language model on two ranks, undisturbed
# and with three rehearsed kills (an actor, the host store, a trainer). Then shows that both ended
# with the same bits. Needs Debian 12 (root or sudo for missing packages), two cores, no GPU.
#
#   bash launcher/quickstart.sh
#
# Leaves the two reports in build/quickstart/.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case "${1:-}" in
  '') ;;
  -h | --help) sed -n '2,8s/^# \{0,1\}//p' launcher/quickstart.sh; exit 0 ;;
  *) echo "quickstart.sh: unknown argument '$1'; it takes none" >&2; exit 2 ;;
esac

bin=build/release/bin
reports=build/quickstart
programs=(optlease optlease-host-store optlease-gpu-actor optlease-trainer optlease-monitor
  optlease-floor)

echo "[1/4] packages"
bash tests/install_dependencies.sh --programs

echo "[2/4] build (preset release; some minutes the first time)"
mkdir -p "$reports"
# Without the tests, whose libraries are not installed here, unless the folder has found them
# before.
tests=OFF
grep -qs '^GTest_DIR:PATH=/' build/release/CMakeCache.txt && tests=ON
cmake --preset release -DOPTLEASE_TESTS="$tests" >"$reports/configure.log" 2>&1 ||
  { tail -n 20 "$reports/configure.log"; exit 1; }
cmake --build --preset release --parallel "$(nproc)" --target "${programs[@]}"

echo "[3/4] run: undisturbed, then with three rehearsed kills"
"$bin/optlease" run configs/quickstart.toml --fresh --report "$reports/undisturbed.json"
"$bin/optlease" run configs/quickstart_rehearsed.toml --fresh --report "$reports/rehearsed.json"

echo "[4/4] compare"
"$bin/optlease" compare "$reports/undisturbed.json" "$reports/rehearsed.json"
