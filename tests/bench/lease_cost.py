#!/usr/bin/env python3
"""What leases and commits cost a whole job over its real sockets, and what other ranks wait for a
rank that restarts. Runs configs/synthetic.toml with the programs beside `optlease` and prints one
JSON object; ratios are within one run.

    tests/bench/lease_cost.py [--optlease build/release/bin/optlease] [--elements N]
                              [--window-mib N]

cost     CPU time of the host store (all it does is serve leases, records and commits) and of the
         actors' message threads, and the actors' waits for leases, against the wall time of the
         same steps. CPU time is read from /proc/PID/task/TID/schedstat, in nanoseconds.
restart  the longest step of rank 0, and what it waited for leases, in a job whose rank 1 is killed
         in its update, against the same job undisturbed.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DEADLINE_S = 600
LEASE_WAIT = "optlease_actor_lease_wait_seconds_total"


class Job:
    """One run of the launcher in a run directory of its own."""

    def __init__(self, args, directory, settings, rehearsals=""):
        self.optlease = args.optlease
        self.report = os.path.join(directory, "report.json")
        self.environment = dict(os.environ, XDG_RUNTIME_DIR=directory)
        with open(os.path.join(ROOT, "configs", "synthetic.toml"), encoding="utf-8") as config:
            text = config.read()
        path = os.path.join(directory, "job.toml")
        with open(path, "w", encoding="utf-8") as config:
            config.write(text + rehearsals)
        self.name = "lease-cost-%d" % os.getpid()
        settings = dict(settings, **{"job.name": '"%s"' % self.name,
                                     "gradients.nonfinite_steps": "[]"})  # a skipped step is none
        command = [self.optlease, "run", path, "--fresh", "--report", self.report]
        for key, value in settings.items():
            command += ["--set", "%s=%s" % (key, value)]
        with open(os.path.join(directory, "log"), "w", encoding="utf-8") as log:
            self.process = subprocess.Popen(command, env=self.environment, stdout=log, stderr=log)
        self.deadline = time.monotonic() + DEADLINE_S

    def ask(self, *words):
        answer = subprocess.run([self.optlease, *words], env=self.environment, text=True,
                                capture_output=True, timeout=60, check=False)
        return json.loads(answer.stdout) if answer.returncode == 0 and answer.stdout else None

    def wait_for_step(self, step):
        while time.monotonic() < self.deadline and self.process.poll() is None:
            status = self.ask("status", self.name, "--json")
            if status and status.get("step_committed", -1) >= step:
                return status
            time.sleep(0.05)
        raise SystemExit("lease_cost: step %d was not reached (exit code %s)" %
                         (step, self.process.poll()))

    def lease_waits(self):
        lines = self.ask("monitor", self.name, "--once", "--json")
        return [rank[LEASE_WAIT] for rank in lines["ranks"]]

    def end(self):
        self.process.wait(timeout=max(1, self.deadline - time.monotonic()))
        with open(self.report, encoding="utf-8") as report:
            return json.load(report)


def cpu_seconds(pid, main_thread_only):
    tasks = [str(pid)] if main_thread_only else os.listdir("/proc/%d/task" % pid)
    total = 0
    for task in tasks:
        with open("/proc/%d/task/%s/schedstat" % (pid, task), encoding="ascii") as stat:
            total += int(stat.read().split()[0])
    return total * 1e-9


def sample(job, status):
    """Times so far, of the processes of one status."""
    store = [p["pid"] for p in status["processes"] if p["role"] == "host_store"]
    actors = [p["pid"] for p in status["processes"] if p["role"] == "gpu_actor"]
    return {"step": status["step_committed"], "wall": time.monotonic(),
            "store": sum(cpu_seconds(pid, False) for pid in store),
            "loops": sum(cpu_seconds(pid, True) for pid in actors),
            "actors": sum(cpu_seconds(pid, False) for pid in actors),
            "waits": sum(job.lease_waits())}


def cost(args):
    settings = {"ranks.world_size": 1, "model.elements": args.elements, "job.steps": args.steps,
                "offload.chunk_size_mb": args.window_mib, "offload.window_chunks": 1}
    with tempfile.TemporaryDirectory() as directory:
        job = Job(args, directory, settings)
        first = sample(job, job.wait_for_step(2))
        before = sample(job, job.wait_for_step(3))
        # Nobody asks the processes for anything between the two samples that count.
        time.sleep((before["wall"] - first["wall"]) * (args.steps - 5))
        after = sample(job, job.wait_for_step(4))
        job.end()
    spent = {key: after[key] - before[key] for key in before}
    return {"elements": args.elements, "window_mib": args.window_mib, "steps": spent["step"],
            "step_seconds": spent["wall"] / spent["step"],
            "store_cpu_of_step": spent["store"] / spent["wall"],
            "message_threads_cpu_of_step": spent["loops"] / spent["wall"],
            "lease_wait_of_step": spent["waits"] / spent["wall"],
            "store_and_message_threads_cpu_of_actors_cpu":
                (spent["store"] + spent["loops"]) / spent["actors"]}


def restart(args):
    settings = {"ranks.world_size": 2, "model.elements": args.elements // 4,
                "job.steps": args.steps, "offload.chunk_size_mb": 1}
    kill = '\n[[rehearse]]\nrole = "gpu_actor"\nrank = 1\nstep = %d\nphase = "update"\n' % (
        args.steps // 2)
    found = {}
    for name, rehearsal in (("undisturbed", ""), ("killed", kill)):
        with tempfile.TemporaryDirectory() as directory:
            job = Job(args, directory, settings, rehearsal)
            job.wait_for_step(1)
            before = job.lease_waits()
            job.wait_for_step(args.steps - 1)
            after = job.lease_waits()
            report = job.end()
        found[name] = {"rank_0_lease_wait_seconds": after[0] - before[0],
                       "longest_step_seconds": report["step_seconds"]["max"],
                       "recovery_seconds": [each["recovery_seconds"]
                                            for each in report["restarts"]],
                       "state_digest": report["state_digest"]}
    if not found["killed"]["recovery_seconds"]:
        raise SystemExit("lease_cost: rank 1 was not killed")
    found["digests_equal"] = (found["killed"]["state_digest"] ==
                              found["undisturbed"]["state_digest"])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optlease", default=os.path.join(ROOT, "build/release/bin/optlease"))
    parser.add_argument("--elements", type=int, default=64 << 20)
    parser.add_argument("--window-mib", type=int, default=32)
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()
    print(json.dumps({"cost": cost(args), "restart": restart(args)}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
