// The arguments that the launcher gives to the host store and to GPU actors. Builder and parser
// live together so that the two ends agree; a test sends one through the other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "actors/runtime/exit_code.h"
#include "actors/runtime/log.h"

namespace optlease {

struct ChildArgs {
  std::string job;           // --job NAME
  uint32_t rank = 0;         // --rank N; a host store has none
  uint64_t incarnation = 1;  // --incarnation N, from 1
  int lifeline_fd = -1;      // --lifeline-fd N; -1: none (started by hand)
  // Of an actor alone:
  int death_page_fd = -1;  // --death-page-fd N; -1: none
  // Of the host store alone:
  bool create = false;               // --create: it makes new segments
  bool all_older_reaped = false;     // --all-older-reaped: no older incarnation of any rank lives
  std::vector<uint32_t> rehearsals;  // --rehearsal INDEX, into JobPlan::rehearsals; those not done
  LogLevel log_level = LogLevel::kInfo;  // --log-level debug|info|warn|error

  bool operator==(const ChildArgs&) const = default;
};

// What a program says about itself in --help.
struct ChildProgram {
  std::string name;  // "optlease-gpu-actor"
  std::string description;
  bool has_rank = true;  // false: the host store, which takes no --rank but the flags of a store
};

// argv[0] = `executable`, then only what differs from the defaults, and always --job.
std::vector<std::string> to_argv(const std::string& executable, const ChildProgram& program,
                                 const ChildArgs& args);

// Either args, or the text to print and the code to end with: --help (kOk, to stdout) or wrong
// usage (kUsage, to stderr).
struct ChildArgsOutcome {
  std::optional<ChildArgs> args;
  ExitCode exit_code = ExitCode::kOk;
  std::string text;
};
ChildArgsOutcome parse_child_args(const ChildProgram& program, int argc, const char* const* argv);

}  // namespace optlease
