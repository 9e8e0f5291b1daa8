// The command line of `optlease`: one function a command adds it to the program. Everything that
// includes the argument parser is in this folder and in main.cc.
#pragma once

#include <functional>
#include <string>

#include "actors/runtime/exit_code.h"
#include "actors/wire/endpoints.h"
#include "shm/contract/status.h"
#include "shm/leftovers.h"

namespace CLI {
class App;
}

namespace optlease {

// What the chosen command does once the whole command line is understood.
using Command = std::function<ExitCode()>;

void add_run_command(CLI::App& app, Command* chosen);
void add_plan_command(CLI::App& app, Command* chosen);
void add_status_command(CLI::App& app, Command* chosen);
void add_monitor_command(CLI::App& app, Command* chosen);
void add_restart_command(CLI::App& app, Command* chosen);
void add_stop_command(CLI::App& app, Command* chosen);
void add_clean_command(CLI::App& app, Command* chosen);
void add_digest_command(CLI::App& app, Command* chosen);
void add_export_command(CLI::App& app, Command* chosen);
void add_selftest_command(CLI::App& app, Command* chosen);
void add_compare_command(CLI::App& app, Command* chosen);
void add_bench_command(CLI::App& app, Command* chosen);

// Prints "optlease COMMAND: text" to stderr and returns `code`.
ExitCode complain(const char* command, const std::string& text, ExitCode code);
ExitCode complain(const char* command, const Status& status);

// The job that a user means: a name, or the path of a configuration file (it contains '/' or ends
// in
// ".toml"), whose job.name counts.
Result<std::string> job_named(const std::string& name_or_path);
// The same as a run directory. Where the job lives under another XDG_RUNTIME_DIR this process goes
// there and says so on stderr; where its launcher does not answer there either: Busy, with words
// that name both directories.
Result<RunDirectory> run_of(const char* command, const std::string& name_or_path);
// Where this user's jobs leave things.
LeftoverPlaces leftover_places();
// What a tool that needs a live launcher says: NotFound where the job does not run.
Status check_live(const RunDirectory& run);

// A check for options that name a file: empty where the value is right, else why not.
std::string refuse_empty(const std::string& value);
// The same of one that is a number: NaN lies in every range that the parser checks.
std::string refuse_nan(const std::string& value);

}  // namespace optlease
