#include "actors/runtime/child_args.h"

#include <CLI/CLI.hpp>
#include <map>

#include "shm/contract/limits.h"

namespace optlease {

std::vector<std::string> to_argv(const std::string& executable, const ChildProgram& program,
                                 const ChildArgs& args) {
  const ChildArgs defaults;
  std::vector<std::string> argv{executable, "--job", args.job};
  const auto add = [&argv](const char* option, const std::string& value) {
    argv.emplace_back(option);
    argv.push_back(value);
  };
  if (program.has_rank) add("--rank", std::to_string(args.rank));
  if (args.incarnation != defaults.incarnation) {
    add("--incarnation", std::to_string(args.incarnation));
  }
  if (args.lifeline_fd >= 0) add("--lifeline-fd", std::to_string(args.lifeline_fd));
  if (args.death_page_fd >= 0) add("--death-page-fd", std::to_string(args.death_page_fd));
  if (args.create) argv.emplace_back("--create");
  if (args.all_older_reaped) argv.emplace_back("--all-older-reaped");
  for (const uint32_t index : args.rehearsals) add("--rehearsal", std::to_string(index));
  if (args.log_level != defaults.log_level) add("--log-level", name_of(args.log_level));
  return argv;
}

ChildArgsOutcome parse_child_args(const ChildProgram& program, int argc, const char* const* argv) {
  ChildArgs args;
  std::string log_level = name_of(args.log_level);
  CLI::App app(program.description, program.name);
  app.add_option("--job", args.job, "The job's name; its plan is read from the run directory")
      ->required();
  if (program.has_rank) {
    app.add_option("--rank", args.rank, "Global rank")
        ->required()
        ->check(CLI::Range(0u, kRankCountMax - 1));
  }
  app.add_option("--incarnation", args.incarnation, "Which life of this process it is, from 1")
      ->check(CLI::PositiveNumber);
  app.add_option("--lifeline-fd", args.lifeline_fd, "The launcher's SOCK_SEQPACKET socket")
      ->check(CLI::NonNegativeNumber);
  if (program.has_rank) {
    app.add_option("--death-page-fd", args.death_page_fd, "The launcher's death page, a memfd")
        ->check(CLI::NonNegativeNumber);
  } else {
    app.add_flag("--create", args.create, "Make new state segments");
    app.add_flag("--all-older-reaped", args.all_older_reaped,
                 "No older process of this job lives any more");
  }
  app.add_option("--rehearsal", args.rehearsals,
                 "Index of a rehearsed kill that is not done yet; may be repeated")
      ->expected(1)
      ->take_all();
  app.add_option("--log-level", log_level, "debug, info, warn or error")
      ->check(CLI::IsMember({"debug", "info", "warn", "error"}));
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    return {std::nullopt, ExitCode::kOk, app.help()};
  } catch (const CLI::Error& error) {
    return {std::nullopt, ExitCode::kUsage,
            program.name + ": " + error.what() + "; see " + program.name + " --help\n"};
  }
  parse(log_level, &args.log_level);  // one of the four: checked above
  return {std::move(args), ExitCode::kOk, {}};
}

}  // namespace optlease
