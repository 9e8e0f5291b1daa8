#!/usr/bin/env bash
# Installs the Debian packages that building and testing need and that are missing. Run as root or
# with sudo at hand; does nothing, and needs no rights, where everything is there.
#
#   bash tests/install_dependencies.sh             what the programs and the tests need
#   bash tests/install_dependencies.sh --programs  what building the programs needs, and no more
#   ... --list                                     only prints the names, one a line
set -euo pipefail

packages=(
  g++ cmake ninja-build pkg-config               # the build
  libboost-dev libzmq3-dev cppzmq-dev libspdlog-dev libtomlplusplus-dev libcli11-dev
  nlohmann-json3-dev libxxhash-dev libgloo-dev   # the programs
)
test_packages=(
  binutils                                       # the vectorisation test
  libgtest-dev libgmock-dev libbenchmark-dev     # tests and benchmarks
  clang-tidy                                     # the naming gate
  clang libclang-rt-dev llvm                     # the fuzzers, and names in what they report
)
tests=yes list=no
for word in "$@"; do
  case "$word" in
    --programs) tests=no ;;
    --list) list=yes ;;
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "dependencies: unknown argument '$word'; --programs and --list are known" >&2; exit 2 ;;
  esac
done
[ "$tests" = no ] || packages+=("${test_packages[@]}")
if [ "$list" = yes ]; then
  printf '%s\n' "${packages[@]}"
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
    missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "dependencies: all ${#packages[@]} packages are installed"
  exit 0
fi

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || {
    echo "dependencies: neither root nor sudo is here, and these packages are missing:" \
      "${missing[*]}" >&2
    exit 1
  }
  as_root=(sudo)
fi
echo "dependencies: installing ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { "${as_root[@]}" apt-get update && "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
       apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "dependencies: apt-get failed; its last lines are above" >&2
  exit 1
fi
echo "dependencies: installed"
