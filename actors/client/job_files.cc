#include "actors/client/job_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <thread>

namespace optlease {

namespace {

constexpr int kJobFileRetryMs = 20;

Status check_directory(const RunDirectory& directory) {
  Status status = directory.check();
  if (status.code() != StatusCode::kNotFound) return status;
  return {StatusCode::kNotFound,
          format("job '%s' is not running: there is no %s. Start it with `optlease run`, as this "
                 "user and with the same XDG_RUNTIME_DIR",
                 directory.job_name().c_str(), directory.path().c_str())};
}

// A clean end leaves the directory where the state is kept, with another name for the plan.
bool has_ended_and_was_kept(const RunDirectory& directory) {
  return ::access(directory.job_file().c_str(), F_OK) != 0 &&
         ::access(directory.kept_file().c_str(), F_OK) == 0;
}

// Empty where there is none, as an unset variable.
std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view{} : std::string_view{value};
}

}  // namespace

Result<std::string> job_name_or_environment(const char* job) {
  const std::string name(job != nullptr ? std::string_view{job} : environment("OPTLEASE_JOB"));
  if (job == nullptr && name.empty())
    return Status{
        StatusCode::kInvalidArgument,
        "no job was named and OPTLEASE_JOB is not set: name the job, or start the trainer "
        "from `optlease run`, which sets it"};
  if (const std::string why = why_invalid_job_name(name); !why.empty())
    return Status{StatusCode::kInvalidArgument,
                  format("job name '%s': %s", name.c_str(), why.c_str())};
  return name;
}

Result<uint32_t> rank_or_environment(int32_t rank) {
  if (rank >= 0) return static_cast<uint32_t>(rank);
  const std::string_view text = environment("OPTLEASE_RANK");
  if (text.empty())
    return Status{StatusCode::kInvalidArgument,
                  "no rank was given and OPTLEASE_RANK is not set: give the rank, or start the "
                  "trainer from `optlease run`, which sets it"};
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value >= kRankCountMax)
    return Status{StatusCode::kInvalidArgument,
                  format("OPTLEASE_RANK is '%.*s', not a number in 0..%u",
                         static_cast<int>(text.size()), text.data(), kRankCountMax - 1)};
  return value;
}

Result<RunningJob> find_running_job(const std::string& job, Deadline deadline) {
  auto directory = RunDirectory::of(job);
  if (!directory) return directory.status();
  for (;;) {
    OPTLEASE_TRY(check_directory(directory.value()));
    const std::string path = directory.value().job_file();
    auto plan = read_job_plan(path);
    if (plan) return RunningJob{std::move(directory.value()), std::move(plan.value())};
    if (has_ended_and_was_kept(directory.value()))
      return Status{StatusCode::kNotFound,
                    format("job '%s' is not running: its state was kept when it ended. Go on with "
                           "`optlease run --resume`",
                           job.c_str())};
    // A launcher that has only just made the directory has not written the file yet.
    if (plan.status().code() != StatusCode::kNotFound) return plan.status();
    if (deadline.passed())
      return Status{
          StatusCode::kTimeout,
          format("job '%s' has a run directory, but %s did not appear in time: its launcher "
                 "is still starting, or has ended without cleaning up (`optlease clean`)",
                 job.c_str(), path.c_str())};
    std::this_thread::sleep_for(std::chrono::milliseconds(deadline.remaining_ms(kJobFileRetryMs)));
  }
}

Status check_still_running(const RunDirectory& directory) {
  struct stat info {};
  const bool gone = ::lstat(directory.path().c_str(), &info) != 0 && errno == ENOENT;
  if (!gone && !has_ended_and_was_kept(directory)) return Status::ok();
  const std::string path = gone ? directory.path() : directory.job_file();
  return {StatusCode::kPeerLost,
          format("job '%s' has ended: %s is gone. Its launcher's output says why",
                 directory.job_name().c_str(), path.c_str())};
}

}  // namespace optlease
