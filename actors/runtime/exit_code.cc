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
      return "a defect of Optlease, or a GPU that failed; the last lines of the log say which";
    case ExitCode::kUsage:
      return "wrong command line; see --help";
    case ExitCode::kBadConfiguration:
      return "the configuration breaks a rule; the message names the key";
    case ExitCode::kNoResources:
      return "too little shared, pinned, host, device or disk memory; the message has the numbers";
    case ExitCode::kAlreadyRunning:
      return "a live process owns this job; stop it or choose a name";
    case ExitCode::kStateExists:
      return "state of this job is there already; resume or clean it";
    case ExitCode::kStateAbsent:
      return "there is no state to resume, read or clean under this name";
    case ExitCode::kCrashLoop:
      return "a process died more often than the restart plan allows; see its log";
    case ExitCode::kStoreLost:
      return "the host store is gone and does not come back";
    case ExitCode::kCorruptState:
      return "a checksum or table of the state does not hold; start again with --fresh";
    case ExitCode::kReplaced:
      return "a newer process of this rank runs; nothing to do";
    case ExitCode::kLauncherLost:
      return "the launcher is gone; resume the job with a new one";
    case ExitCode::kTimeout:
      return "a deadline passed; the message says which";
    case ExitCode::kNoDevice:
      return "the device is absent, too old, or not built in";
    case ExitCode::kIo:
      return "a file or socket could not be read or written";
    case ExitCode::kNotRunning:
      return "no such job runs";
    case ExitCode::kInterrupted:
      return "stopped before its last step by a signal or `optlease stop`; resume it if its state "
             "was kept";
    case ExitCode::kTrainerFailed:
      return "the trainer command failed; see its log";
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
