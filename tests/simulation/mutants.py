#!/usr/bin/env python3
"""Plants one bug after another (planted_bugs.py) into the simulation and demands that it is found.

    tests/simulation/mutants.py --build build/dev [--events N] [--seed N] [--table] [NAME...]
    tests/simulation/mutants.py --build build/dev --unseen    those that are known to survive
    tests/simulation/mutants.py --check       only: every planted bug still fits its file

REQUIRES: a build tree of Ninja in which simulation_test is built. A mutant is a copy of one source
file, compiled as the file itself is, in front of the libraries: nothing in the tree or in another
target changes. Exit code 0: each was found; with --unseen too.
"""

import argparse
import glob
import os
import re
import subprocess
import sys
import time

from planted_bugs import PLANTED, UNSEEN

ROOT = os.path.realpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
TEST = "Simulation.OfANodeWhoseProcessesDieAtAnyEventBreaksNoRule"
HANG_SECONDS = 300


def mutated(path, before, after):
    """The file with the bug in it; an error where it does not fit exactly once."""
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        text = file.read()
    if text.count(before) != 1:
        raise SystemExit(f"{path} has {text.count(before)} times, not once: {before!r}")
    return text.replace(before, after)


def check():
    names = [name for name, _, _, _ in PLANTED]
    if len(set(names)) != len(names):
        raise SystemExit("two planted bugs have the same name")
    for _, path, before, after in PLANTED:
        mutated(path, before, after)
    if not UNSEEN.issubset(names):
        raise SystemExit(f"UNSEEN names no planted bug: {UNSEEN.difference(names)}")
    print(f"{len(names)} planted bugs fit, of which {len(UNSEEN)} are known to survive")


class Build:
    def __init__(self, tree):
        self.tree = os.path.realpath(tree)
        self.run(["ninja", "simulation_test"])
        commands = self.run(["ninja", "-t", "commands", "simulation_test"]).splitlines()
        self.link = commands[-1]
        self.compile = {}
        for command in commands:
            found = re.search(r" -c (\S+)", command)
            if found:
                self.compile[os.path.relpath(found[1], ROOT)] = command

    def run(self, command):
        done = subprocess.run(command, cwd=self.tree, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}: {done.stdout}{done.stderr}")
        return done.stdout

    def mutant(self, name, path, text):
        """A simulation_test of its own with that text in the place of the file."""
        folder = os.path.join(self.tree, "mutants")
        os.makedirs(folder, exist_ok=True)
        source, compiled = (os.path.join(folder, name + end) for end in (".cc", ".o"))
        program = os.path.join(folder, name)
        with open(source, "w", encoding="utf-8") as file:
            file.write(text)
        command = re.sub(r" -MD -MT \S+ -MF \S+", "", self.compile[path])
        command = re.sub(r" -o \S+ -c \S+", f" -Wno-error -o {compiled} -c {source}", command)
        self.run(["sh", "-c", command])
        command = re.sub(r" -o (\S*simulation_test)\b", f" {compiled} -o {program}", self.link)
        self.run(["sh", "-c", command])
        os.remove(compiled)
        return program


def found_by(program, seed, events):
    """What the simulation says of it, with seed and event; none where it survives."""
    environment = dict(os.environ, OPTLEASE_TEST_SEED=str(seed), OPTLEASE_SIM_EVENTS=str(events))
    with subprocess.Popen([program, "--gtest_filter=" + TEST], env=environment, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running:
        try:
            output = running.communicate(timeout=HANG_SECONDS)[0]
        except subprocess.TimeoutExpired:
            running.kill()
            output = running.communicate()[0] + f"hangs for {HANG_SECONDS} s"
        for left in glob.glob(f"/dev/shm/optlease-sim.{running.pid}.*"):
            os.remove(left)
    if running.returncode == 0:
        return None
    broken = re.search(r'"event (\d+), [\d.]+ ms: (.*)"', output)
    aborted = re.search(r"aborted: OPTLEASE_TEST_SEED=(\d+), event (\d+)", output)
    if broken:
        where = re.search(r"found with OPTLEASE_TEST_SEED=(\d+)", output)
        return where[1], broken[1], broken[2]
    if aborted:
        said = re.search(r"(?:check|CHECK)[^\n]*", output)
        return aborted[1], aborted[2], "a check of the product: " + (said[0] if said else "abort")
    return "?", "?", output.strip().splitlines()[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="rows for docs/TESTING.md")
    parser.add_argument("--unseen", action="store_true", help="only those of UNSEEN")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    check()
    if args.check:
        return 0
    if not args.build:
        parser.error("--build is needed")
    unknown = set(args.names).difference(name for name, _, _, _ in PLANTED)
    if unknown:
        parser.error(f"no planted bug has the name {', '.join(sorted(unknown))}; "
                     "planted_bugs.py lists them")
    if not os.path.exists(os.path.join(args.build, "build.ninja")):
        parser.error(f"{args.build} is no build tree of Ninja: configure one with "
                     "-DOPTLEASE_TESTS=ON first")
    build = Build(args.build)
    survivors = []
    for name, path, before, after in PLANTED:
        wanted = name in args.names if args.names else (name in UNSEEN) == args.unseen
        if not wanted:
            continue
        begun = time.monotonic()
        program = build.mutant(name, path, mutated(path, before, after))
        found = found_by(program, args.seed, args.events)
        os.remove(program)
        if found is None:
            survivors.append(name)
            print(f"SURVIVES: {name}", flush=True)
        elif args.table:
            print(f"| `{name}` | `{path}` | {found[0]} | {found[1]} |", flush=True)
        else:
            print(f"found: {name}: seed {found[0]}, event {found[1]}: {found[2]} "
                  f"({time.monotonic() - begun:.0f} s)", flush=True)
    print(f"{len(survivors)} survive" + "".join(f"\n  {name}" for name in survivors))
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
