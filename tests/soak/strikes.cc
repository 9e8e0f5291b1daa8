// What a soak does to the processes of a job from outside: SIGKILL, SIGSTOP, starving; what it sees
// of those that survive; and whether the job moves again.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/statvfs.h>

#include <filesystem>
#include <fstream>

#include "actors/runtime/clock.h"
#include "shm/monotonic.h"
#include "tests/soak/soak_job.h"

namespace optlease::soak {
namespace {

namespace fs = std::filesystem;

// A process that is being started has some more open for a moment.
constexpr size_t kOpenFilesSlack = 8;
constexpr int kStepsMs = 60'000;
constexpr int kLookEvery = 6;  // recoveries

size_t open_files_of(pid_t pid) {
  std::error_code gone;
  size_t count = 0;
  for (fs::directory_iterator at("/proc/" + std::to_string(pid) + "/fd", gone), end;
       !gone && at != end; at.increment(gone)) {
    ++count;
  }
  return count;
}

}  // namespace

uint64_t shm_bytes_taken() {
  if (!has_own_shm()) return 0;
  struct statvfs room {};
  if (statvfs("/dev/shm", &room) != 0) return UINT64_MAX;
  return (room.f_blocks - room.f_bfree) * room.f_frsize;
}

std::vector<pid_t> SoakJob::pids_of(Who who) {
  std::vector<pid_t> pids;
  const Json status = job_.status();
  if (!status.contains("processes")) return pids;
  for (const Json& process : status["processes"]) {
    if (process["role"] == name_of(who) && process["pid"].is_number() && process["pid"] > 0) {
      pids.push_back(process["pid"].get<pid_t>());
    }
  }
  return pids;
}

bool SoakJob::kill_from_outside(Who who, std::mt19937_64& random) {
  std::vector<pid_t> pids;
  if (who == Who::kLauncher && job_.launcher_alive()) pids.push_back(job_.launcher_pid());
  if (who != Who::kLauncher) pids = pids_of(who);
  if (pids.empty() || kill(pids[random() % pids.size()], SIGKILL) != 0) return false;
  // Whoever looks after it next must not find it dying.
  while (who == Who::kLauncher && job_.launcher_alive()) poll(nullptr, 0, 1);
  death_ms_ = static_cast<int64_t>(monotonic_ms());
  if (who == Who::kStore || who == Who::kLauncher) ++uncertain_commits_;
  ++tally_.killed_from_outside;
  return true;
}

void SoakJob::kill_all() {
  if (!job_.launcher_alive()) return;
  for (const pid_t pid : job_.processes()) {
    tally_.killed_from_outside += kill(pid, SIGKILL) == 0 ? 1 : 0;
  }
  while (job_.launcher_alive()) poll(nullptr, 0, 1);
  ++uncertain_commits_;
  death_ms_ = static_cast<int64_t>(monotonic_ms());
}

void SoakJob::stop_for(Who who, int stopped_ms, int times, std::mt19937_64& random) {
  const std::vector<pid_t> pids = pids_of(who);
  if (pids.empty()) return;
  const pid_t pid = pids[random() % pids.size()];
  for (int i = 0; i < times && kill(pid, SIGSTOP) == 0; ++i) {
    poll(nullptr, 0, stopped_ms);
    kill(pid, SIGCONT);
    if (i + 1 < times) poll(nullptr, 0, stopped_ms);
  }
  death_ms_ = static_cast<int64_t>(monotonic_ms());
  // The launcher kills what is silent for too long, and may do so between a word and its count.
  if (who == Who::kStore) ++uncertain_commits_;
  ++(times > 1 ? tally_.starved : tally_.stopped);
}

bool SoakJob::await_steps(uint64_t steps) {
  const Deadline deadline = Deadline::after_ms(kStepsMs);
  const uint64_t before = steps_seen();
  while (steps_seen() < before + steps) {
    if (!goes_on()) return false;
    if (deadline.passed()) {
      ADD_FAILURE() << "no step is committed in " << kStepsMs << " ms: " << job_.status().dump(1);
      return false;
    }
    poll(nullptr, 0, 1);
  }
  return true;
}

void SoakJob::await_progress(Who who, const std::string& phase) {
  // The step at work may have been as good as committed; the one after it is not begun.
  if (!await_steps(2)) return;
  const double ms = static_cast<double>(static_cast<int64_t>(monotonic_ms()) - death_ms_);
  tally_.recovered(who, phase, ms / 1000.0);
  if (++recoveries_ % kLookEvery == 0) look_at_survivors();
}

// Descriptors that a death leaves open in those who live on would grow with each.
void SoakJob::look_at_survivors() {
  const Json status = job_.status();
  if (!status.contains("processes")) return;
  for (const Json& process : status["processes"]) {
    if (!process["pid"].is_number() || process["pid"] <= 0) continue;
    const auto pid = process["pid"].get<pid_t>();
    const size_t open = open_files_of(pid);
    const std::string who = process["role"].get<std::string>() + " " + std::to_string(pid);
    if (open == 0) continue;
    const size_t first = open_files_.emplace(who, std::pair{open, open}).first->second.first;
    EXPECT_LE(open, first + kOpenFilesSlack) << who << " has ever more files open";
  }
}

}  // namespace optlease::soak
