#!/usr/bin/env bash
# clang-tidy (.clang-tidy, tests/.clang-tidy) and cppcheck (tests/style/cppcheck.txt) over the
# sources that the preset cpu compiles, side by side. Ends with 0 where neither has found anything.
# It is no part of tests/run.sh: docs/TESTING.md says how long it takes.
#
#   bash tests/style/analyse.sh                everything
#   bash tests/style/analyse.sh --changed      what differs from main, and what includes that
#   bash tests/style/analyse.sh --changed REV  the same for another revision
#   bash tests/style/analyse.sh FILE...        these
#   ... --jobs N                               not on all cores
#   ... --only clang-tidy | --only cppcheck    one of the two
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

jobs=$(nproc) only= changed= files=()
while [ $# -gt 0 ]; do
  case "$1" in
    --changed)
      changed=main
      if [ $# -gt 1 ] && [ "${2#--}" = "$2" ]; then changed=$2; shift; fi
      shift ;;
    --jobs) jobs=${2:?--jobs needs a number}; shift 2 ;;
    --only) only=${2:?--only needs clang-tidy or cppcheck}; shift 2 ;;
    -h | --help) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --*) echo "analyse.sh: unknown argument '$1'; see --help" >&2; exit 2 ;;
    *) files+=("$1"); shift ;;
  esac
done
case "$only" in
  '' | clang-tidy | cppcheck) ;;
  *) echo "analyse.sh: --only $only? clang-tidy and cppcheck are known" >&2; exit 2 ;;
esac
tidy=$(command -v clang-tidy-14 || command -v clang-tidy || true)
if [ -z "$tidy" ] || ! command -v cppcheck >/dev/null; then
  echo "analyse.sh: clang-tidy and cppcheck are needed: apt-get install clang-tidy cppcheck" >&2
  exit 2
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --preset cpu -DOPTLEASE_TESTS=ON >"$work/configure.log" ||
  { cat "$work/configure.log" >&2; exit 1; }

if [ -n "$changed" ]; then
  { git diff --name-only "$changed" -- && git ls-files --others --exclude-standard; } |
    sort -u >"$work/changed"
  mapfile -t files < <(grep -E '\.(cc|c)$' "$work/changed" || true)
  while read -r header; do
    mapfile -t -O "${#files[@]}" files < <(grep -rlF "#include \"$header\"" --include='*.cc' \
      --include='*.c' actors shm kernels launcher tests || true)
  done < <(grep -E '\.h$' "$work/changed" || true)
fi

# The commands of the files in question, one entry a file. `all`: none was named.
python3 - "$work" "$([ -z "$changed" ] && [ ${#files[@]} -eq 0 ] && echo all || echo some)" \
  ${files[@]+"${files[@]}"} <<'PYTHON'
import json, os, sys
work, which, wanted = sys.argv[1], sys.argv[2], {os.path.abspath(f) for f in sys.argv[3:]}
here = os.getcwd() + "/"
folders = tuple(here + f + "/" for f in ("actors", "shm", "kernels", "launcher", "tests"))
entries = {}
for entry in json.load(open("build/cpu/compile_commands.json")):
    if entry["file"].startswith(folders) and (which == "all" or entry["file"] in wanted):
        entries.setdefault(entry["file"], entry)
json.dump(list(entries.values()), open(work + "/compile_commands.json", "w"))
with open(work + "/files", "w") as out:
    out.writelines(f[len(here):] + "\n" for f in sorted(entries))
for file in sorted(wanted - set(entries)):
    if os.path.exists(file) and file.endswith((".cc", ".c")):
        print(f"analyse.sh: {file[len(here):]} is not compiled by the preset cpu: left out")
PYTHON
count=$(wc -l <"$work/files")
[ "$count" -gt 0 ] || { echo "analyse.sh: no source to look at"; exit 0; }
echo "analyse.sh: $count sources, $jobs jobs"

check() {
  cppcheck --project="$work/compile_commands.json" --enable=warning,performance,portability \
    --std=c++20 --library=posix --library=googletest --inline-suppr --quiet --error-exitcode=1 \
    --suppressions-list=tests/style/cppcheck.txt \
    --template='{file}:{line}: {severity}: {message} [{id}]' >"$work/cppcheck.log" 2>&1
}
# One file a process; what is said of one comes in one piece.
tidy_one() {
  local said
  said=$("$tidy" -p "$work" --quiet --extra-arg=-Wno-unknown-warning-option "$1" 2>/dev/null) ||
    { printf '%s\n' "$said"; return 1; }
}
export -f tidy_one
export tidy work

failed=0 cppcheck_pid=
if [ "$only" != clang-tidy ]; then
  check &
  cppcheck_pid=$!
fi
if [ "$only" != cppcheck ]; then
  xargs -a "$work/files" -d '\n' -n 1 -P "$jobs" bash -c 'tidy_one "$1"' tidy_one || failed=1
fi
if [ -n "$cppcheck_pid" ]; then
  wait "$cppcheck_pid" || { failed=1; cat "$work/cppcheck.log"; }
fi
[ "$failed" -eq 0 ] && echo "analyse.sh: nothing found in $count sources in $SECONDS s"
exit "$failed"
