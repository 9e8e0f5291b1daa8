// optlease digest, optlease export
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "actors/runtime/clock.h"
#include "actors/wire/socket.h"
#include "launcher/commands/commands.h"
#include "launcher/files.h"
#include "launcher/job_claim.h"
#include "launcher/job_place.h"
#include "launcher/job_state.h"
#include "launcher/store_link.h"
#include "shm/job_lock.h"

namespace optlease {
namespace {

using Json = nlohmann::ordered_json;
constexpr int kLockRetryMs = 20;
constexpr int kHoldMsMin = 100;
constexpr int kHoldMsMax = 86'400'000;

struct StateFlags {
  std::string job;
  bool json = false;
  double timeout_s = 60;
  std::string out;
  std::string dtype = "f32";
};

// A job's state that does not move: by a hold where the job lives, by its lock where it does not.
struct RestingState {
  std::optional<SocketContext> context;
  std::optional<StepHold> hold;
  std::optional<JobLock> lock;
  std::optional<JobState> state;
  bool lock_is_new = false;  // there was none, and there shall be none
  bool job_ended = false;    // while its next step boundary was waited for

  RestingState() = default;
  RestingState(const RestingState&) = delete;
  RestingState& operator=(const RestingState&) = delete;
  ~RestingState() {
    if (lock && lock_is_new) lock->release_and_unlink();
  }
  Status keep() { return hold ? hold->keep() : Status::ok(); }
};

std::string lock_holders_clause(const RunDirectory& run) {
  const std::string who = lock_holders_text(run);
  return who.empty() ? ", or the job runs from another run directory (XDG_RUNTIME_DIR)"
                     : ", or it is left over; its lock is open in " + who;
}

// Takes the lock of a job that does not run. Where another tool reads this state it will be done
// soon. Busy where the job lives and a launcher answers; Timeout where somebody who is no launcher
// of this run directory has the lock for too long.
Status lock_at_rest(const RunDirectory& run, Deadline deadline, RestingState* out) {
  while (true) {
    if (is_listening(run.launcher_socket())) return {StatusCode::kBusy, "the job runs"};
    auto probed = JobLock::try_probe(run.lock_segment());
    if (!probed) return probed.status();
    if (probed.value() != JobLock::State::kHeld && !job_answers(run)) {
      auto lock = JobLock::acquire(run.lock_segment(), false);
      if (lock) {
        out->lock_is_new = probed.value() == JobLock::State::kAbsent;
        out->lock.emplace(std::move(lock).value());
        return Status::ok();
      }
      if (lock.status().code() != StatusCode::kBusy) return lock.status();
    }
    if (deadline.passed()) {
      return {StatusCode::kTimeout, "somebody has the state of job " + run.job_name() +
                                        " and no launcher answers in " + run.path() +
                                        ": another tool reads it" + lock_holders_clause(run)};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(kLockRetryMs));
  }
}

Status bring_to_rest(const RunDirectory& run, Deadline deadline, RestingState* out) {
  Status locked = lock_at_rest(run, deadline, out);
  if (locked.code() == StatusCode::kBusy) {
    out->context.emplace();
    const int left_ms = std::max(kHoldMsMin, deadline.remaining_ms(kHoldMsMax));
    auto hold = StepHold::take(*out->context, run, static_cast<uint64_t>(left_ms),
                               [&run] { return check_live(run); });
    out->job_ended = hold.status().code() == StatusCode::kNotFound;
    if (!hold) return hold.status();
    out->hold.emplace(std::move(hold).value());
  } else if (!locked.is_ok()) {
    return locked;
  }
  auto state = JobState::open(run);
  if (!state) return state.status();
  out->state.emplace(std::move(state).value());
  return out->state->check_at_rest();
}

Json digest_json(const std::string& job, const StateDigest& digest) {
  Json spaces = Json::array();
  for (const SpaceDigest& space : digest.spaces) {
    Json tensors = Json::array();
    for (const TensorDigest& tensor : space.tensors) {
      Json entry = {{"name", tensor.name}, {"digest", tensor.digest}};
      for (uint32_t a = 0; a < kAdamArrayCount; ++a) entry[kAdamArrayNames[a]] = tensor.arrays[a];
      tensors.push_back(std::move(entry));
    }
    spaces.push_back({{"name", space.name}, {"digest", space.digest}, {"tensors", tensors}});
  }
  return {{"job", job},
          {"step_committed", digest.step_committed},
          {"state_digest", digest.state_digest},
          {"ranks", digest.ranks},
          {"spaces", spaces}};
}

// Brings the job to rest and lets `work` read it. A store that is restarted meanwhile has forgotten
// the hold, and what was read is worth nothing: then all of it once more, while there is time.
ExitCode read_at_rest(const char* command, const StateFlags& flags,
                      const std::function<Status(RestingState&, const RunDirectory&)>& work) {
  auto run = run_of(command, flags.job);
  if (!run) return complain(command, run.status());
  const Deadline deadline = Deadline::after_ms(static_cast<int64_t>(flags.timeout_s * 1000));
  while (true) {
    RestingState resting;
    Status done = bring_to_rest(run.value(), deadline, &resting);
    if (resting.job_ended) return complain(command, done.message(), ExitCode::kNotRunning);
    if (done.is_ok()) done = work(resting, run.value());
    if (done.is_ok()) return ExitCode::kOk;
    if (done.code() != StatusCode::kPeerLost) return complain(command, done);
    if (deadline.passed()) return complain(command, done.message(), ExitCode::kTimeout);
  }
}

ExitCode digest_command(const StateFlags& flags) {
  const auto work = [&flags](RestingState& resting, const RunDirectory& run) -> Status {
    auto digest = digest_job(*resting.state, [&resting] { return resting.keep(); });
    if (!digest) return digest.status();
    if (flags.json) {
      std::printf("%s\n", digest_json(run.job_name(), digest.value()).dump(2).c_str());
    } else {
      std::printf("%s  %s step %lld\n", digest.value().state_digest.c_str(), run.job_name().c_str(),
                  static_cast<long long>(digest.value().step_committed));
    }
    return Status::ok();
  };
  return read_at_rest("digest", flags, work);
}

ExitCode export_command(const StateFlags& flags) {
  // Before a job holds still for it.
  const Result<std::string> path = replaceable_path(flags.out);
  if (!path.is_ok()) {
    return complain("export", "--out: " + path.status().message(), ExitCode::kIo);
  }
  const auto work = [&flags, &path](RestingState& resting, const RunDirectory& run) -> Status {
    const ExportOptions options{path.value(), flags.dtype == "bf16" ? DType::kBF16 : DType::kF32};
    OPTLEASE_TRY(export_weights(*resting.state, options, [&resting] { return resting.keep(); }));
    std::printf("%s: main weights of job %s at step %lld as %s\n", flags.out.c_str(),
                run.job_name().c_str(),
                static_cast<long long>(resting.state->view().step_committed()),
                name_of(options.dtype));
    return Status::ok();
  };
  return read_at_rest("export", flags, work);
}

}  // namespace

void add_digest_command(CLI::App& app, Command* chosen) {
  auto flags = std::make_shared<StateFlags>();
  CLI::App* command = app.add_subcommand(
      "digest", "One name for a job's whole state; a running job holds still meanwhile");
  command->add_option("job", flags->job, "The job's name or TOML file")->required();
  command->add_flag("--json", flags->json, "Also of every rank, space, tensor and array");
  command->add_option("--timeout-s", flags->timeout_s, "How long to wait for a step boundary")
      ->check(refuse_nan)
      ->check(CLI::Range(0.1, 86400.0))
      ->capture_default_str();
  command->callback([=] { *chosen = [flags] { return digest_command(*flags); }; });
}

void add_export_command(CLI::App& app, Command* chosen) {
  auto flags = std::make_shared<StateFlags>();
  CLI::App* command = app.add_subcommand(
      "export", "Write the main weights as safetensors; a running job holds still meanwhile");
  command->add_option("job", flags->job, "The job's name or TOML file")->required();
  command->add_option("--out", flags->out, "The file to write")->required()->check(refuse_empty);
  command->add_option("--dtype", flags->dtype, "f32 (exact) or bf16 (rounded to nearest even)")
      ->check(CLI::IsMember({"f32", "bf16"}))
      ->capture_default_str();
  command->add_option("--timeout-s", flags->timeout_s, "How long to wait for a step boundary")
      ->check(refuse_nan)
      ->check(CLI::Range(0.1, 86400.0))
      ->capture_default_str();
  command->callback([=] { *chosen = [flags] { return export_command(*flags); }; });
}

}  // namespace optlease
