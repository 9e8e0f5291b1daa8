// Exit codes of every program of this project; docs/OPERATING.md lists them with the words that
// meaning_of() has, which a test compares. The launcher decides
// by them whether a restart can help. A process that a signal ended has no exit code of ours.
#pragma once

#include <string>
#include <vector>

#include "shm/contract/status.h"

namespace optlease {

// Frozen: append only. Numbers below 64, so that they cannot be mistaken for a shell's 126..255.
enum class ExitCode : int {
  kOk = 0,
  kInternal = 1,          // a defect, or an error that has no code of its own
  kUsage = 2,             // wrong command line
  kBadConfiguration = 3,  // the configuration or the job plan breaks a rule
  kNoResources = 4,       // shm, disk, pinned, host or device memory is too small
  kAlreadyRunning = 5,    // the job (or a socket of it) is owned by a live process
  kStateExists = 6,       // a new job was asked for, and segments of that name are there
  kStateAbsent = 7,       // a resume was asked for, and there is nothing to resume
  kCrashLoop = 8,         // a child died more often than the restart plan allows
  kStoreLost = 9,         // the host store is gone and does not come back
  kCorruptState = 10,     // a checksum, magic or table does not hold
  kReplaced = 11,         // a newer incarnation of this rank runs: end, do not restart
  kLauncherLost = 12,     // the lifeline closed: the launcher is gone
  kTimeout = 13,          // a deadline passed
  kNoDevice = 14,         // the device is absent, too old, or not built in
  kIo = 15,               // a file or socket could not be read or written
  kNotRunning = 16,       // the job that a tool asked for does not run
  kInterrupted = 17,      // ended by the user's signal, at a step boundary
  kTrainerFailed = 18,    // the trainer command ended with an error of its own
};

// "ok", "usage", "crash_loop", ...; "?" for a number that is no exit code of ours.
const char* name_of(ExitCode code);
// One line for people: what it means and what to do.
const char* meaning_of(ExitCode code);
// All of them, ascending: for documentation tests and --help.
const std::vector<ExitCode>& all_exit_codes();
// The code with which a program ends because of `status`.
ExitCode exit_code_for(const Status& status);
// The same where `status` is about a file or a program that somebody named: that it is absent is
// kIo there, and no word about a state.
ExitCode exit_code_for_file(const Status& status);
// True where a restart of the child can help (a crash, a timeout), false where it would end the
// same way again (wrong usage, no resources, corrupt state) or must not happen (replaced, ok).
bool restart_can_help(ExitCode code);

}  // namespace optlease
