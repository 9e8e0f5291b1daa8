#include "actors/runtime/exit_code.h"

namespace optlease {

const char* name_of(ExitCode code) {
  switch (code) {
    case ExitCode::kOk:
      return "ok";
    case ExitCode::kInternal:
      return "internal";
    case ExitCode::kUsage:
      return "usage";
    case ExitCode::kBadConfiguration:
      return "bad_configuration";
    case ExitCode::kNoResources:
      return "no_resources";
    case ExitCode::kAlreadyRunning:
      return "already_running";
    case ExitCode::kStateExists:
      return "state_exists";
    case ExitCode::kStateAbsent:
      return "state_absent";
    case ExitCode::kCrashLoop:
      return "crash_loop";
    case ExitCode::kStoreLost:
      return "store_lost";
    case ExitCode::kCorruptState:
      return "corrupt_state";
    case ExitCode::kReplaced:
      return "replaced";
    case ExitCode::kLauncherLost:
      return "launcher_lost";
    case ExitCode::kTimeout:
      return "timeout";
    case ExitCode::kNoDevice:
      return "no_device";
    case ExitCode::kIo:
      return "io";
    case ExitCode::kNotRunning:
      return "not_running";
    case ExitCode::kInterrupted:
      return "interrupted";
    case ExitCode::kTrainerFailed:
      return "trainer_failed";
  }
  return "?";
}

const char* meaning_of(ExitCode code) {
  switch (code) {
    case ExitCode::kOk:
      return "done as asked";
    case ExitCode::kInternal:
      return "a defect of Optlease (its log has the last words); a GPU or NCCL that failed or "
             "does not answer under a running process; or a self-test, a comparison or a check "
             "of the report that failed";
    case ExitCode::kUsage:
      return "wrong command line; see --help";
    case ExitCode::kBadConfiguration:
      return "the configuration or `OPTLEASE_ISA` breaks a rule, or differs from the state that "
             "is to be resumed; the message names the key";
    case ExitCode::kNoResources:
      return "shared, pinned, host, device or disk memory is too small, or there is no room for a "
             "thread; the message has the numbers";
    case ExitCode::kAlreadyRunning:
      return "a live process owns this job; stop it, or choose another name";
    case ExitCode::kStateExists:
      return "a new job was asked for, and a state of that name is there; --resume it, or discard "
             "it with --fresh";
    case ExitCode::kStateAbsent:
      return "there is nothing to resume, read, export or clean under this name";
    case ExitCode::kCrashLoop:
      return "processes died more often than `[restart]` allows; the state is kept, and the logs "
             "say why";
    case ExitCode::kStoreLost:
      return "the host store does not answer";
    case ExitCode::kCorruptState:
      return "a checksum, digest, magic or table does not hold; a segment is gone, or something "
             "else stands in its place (another mode, owner or kind of file), when a process of "
             "the job starts that maps it; or the segments were exchanged for older ones under a "
             "running job";
    case ExitCode::kReplaced:
      return "(an actor's) a newer incarnation of its rank runs; nothing to do";
    case ExitCode::kLauncherLost:
      return "(a child's) the launcher is gone; resume the job with a new one. Of `stop`: it "
             "was killed before the state was removed or marked as kept, which is there as it was";
    case ExitCode::kTimeout:
      return "a deadline passed; of `digest` and `export` also: a step is open, or was left "
             "half-way (resume the job first)";
    case ExitCode::kNoDevice:
      return "a GPU cannot be used: too old, or no driver, or ranks of several GPUs have no NCCL, "
             "or one of a wrong version (too few GPUs are 4, a build without CUDA is 3)";
    case ExitCode::kIo:
      return "a file, socket or program could not be read, written or started; absent ones too";
    case ExitCode::kNotRunning:
      return "no such job runs";
    case ExitCode::kInterrupted:
      return "`run` was stopped by a signal or by `optlease stop` before its last step; the "
             "summary says whether the state was kept";
    case ExitCode::kTrainerFailed:
      return "the trainer command cannot start, or failed more often than `[restart]` allows; see "
             "its log";
  }
  return "?";
}

const std::vector<ExitCode>& all_exit_codes() {
  static const std::vector<ExitCode> all = [] {
    std::vector<ExitCode> codes;
    for (int number = 0; number < 64; ++number) {
      const auto code = static_cast<ExitCode>(number);
      if (name_of(code)[0] != '?') codes.push_back(code);
    }
    return codes;
  }();
  return all;
}

ExitCode exit_code_for(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return ExitCode::kOk;
    case StatusCode::kInvalidArgument:
      return ExitCode::kBadConfiguration;
    case StatusCode::kNotFound:
      return ExitCode::kStateAbsent;
    case StatusCode::kAlreadyExists:
      return ExitCode::kStateExists;
    case StatusCode::kNoSpace:
      return ExitCode::kNoResources;
    case StatusCode::kPermission:
    case StatusCode::kIo:
      return ExitCode::kIo;
    case StatusCode::kCorrupt:
    case StatusCode::kWrongVersion:
      return ExitCode::kCorruptState;
    case StatusCode::kStaleIncarnation:
      return ExitCode::kReplaced;
    case StatusCode::kTimeout:
    case StatusCode::kBusy:
      return ExitCode::kTimeout;
    case StatusCode::kPeerLost:
      return ExitCode::kStoreLost;
    case StatusCode::kUnsupported:
      return ExitCode::kNoDevice;
    case StatusCode::kCancelled:
      return ExitCode::kInterrupted;
    case StatusCode::kStaleEpoch:
    case StatusCode::kStaleLease:
    case StatusCode::kStaleStep:
    case StatusCode::kInternal:
      return ExitCode::kInternal;
  }
  return ExitCode::kInternal;
}

ExitCode exit_code_for_file(const Status& status) {
  return status.code() == StatusCode::kNotFound ? ExitCode::kIo : exit_code_for(status);
}

bool restart_can_help(ExitCode code) {
  switch (code) {
    case ExitCode::kInternal:
    case ExitCode::kStoreLost:
    case ExitCode::kTimeout:
    case ExitCode::kIo:
      return true;
    case ExitCode::kOk:
    case ExitCode::kUsage:
    case ExitCode::kBadConfiguration:
    case ExitCode::kNoResources:
    case ExitCode::kAlreadyRunning:
    case ExitCode::kStateExists:
    case ExitCode::kStateAbsent:
    case ExitCode::kCrashLoop:
    case ExitCode::kCorruptState:
    case ExitCode::kReplaced:
    case ExitCode::kLauncherLost:
    case ExitCode::kNoDevice:
    case ExitCode::kNotRunning:
    case ExitCode::kInterrupted:
    case ExitCode::kTrainerFailed:
      return false;
  }
  return true;  // a number that is none of ours, say from a library's exit(): worth one more try
}

}  // namespace optlease
