// optlease run, optlease plan
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "launcher/commands/commands.h"
#include "launcher/config_file.h"
#include "launcher/memory_contract.h"
#include "launcher/process.h"
#include "launcher/replay_files.h"
#include "launcher/run_job.h"
#include "launcher/run_plan.h"

namespace optlease {
namespace {

struct PlanFlags {
  std::string config_path;
  std::vector<std::string> overrides;
  bool json = false;
};

ExitCode plan_command(const PlanFlags& flags) {
  auto config = load_config(flags.config_path, flags.overrides);
  if (!config) {
    const bool refused = config.status().code() == StatusCode::kInvalidArgument;
    return complain("plan", config.status().message(),
                    refused ? ExitCode::kBadConfiguration : exit_code_for(config.status()));
  }
  std::vector<std::string> notes;
  auto plan = make_plan(config.value().config, &notes);
  if (!plan) return complain("plan", plan.status().message(), ExitCode::kBadConfiguration);
  const Status replayed = check_replay_files(
      config.value(), next_step(plan.value().segment.job_name, StartMode::kResume));
  if (!replayed.is_ok()) return complain("plan", replayed.message(), ExitCode::kBadConfiguration);
  const Status placed = place_arenas(config.value().config, &plan.value(), &notes);
  if (!placed.is_ok()) return complain("plan", placed.message(), ExitCode::kBadConfiguration);
  auto run = RunDirectory::of(plan.value().segment.job_name);
  if (!run) return complain("plan", run.status());
  const auto directory = own_directory();
  if (!directory) return complain("plan", directory.status());
  const auto processes = make_process_plan(plan.value(), run.value(), directory.value());
  const MemoryNeeds needs = needs_of(plan.value());
  const auto rows =
      memory_rows(needs, read_machine_facts(run.value(), plan.value().segment.world_size));
  if (flags.json) {
    nlohmann::ordered_json out;
    out["plan"] = nlohmann::ordered_json::parse(plan_json(plan.value(), processes, notes));
    out["memory"] = nlohmann::ordered_json::parse(memory_json(needs, rows));
    std::printf("%s\n", out.dump(2).c_str());
  } else {
    std::fputs(plan_text(plan.value(), processes, notes).c_str(), stdout);
    std::fputs(memory_text(needs, rows).c_str(), stdout);
  }
  const Status fits = check(rows);
  return fits.is_ok() ? ExitCode::kOk : complain("plan", fits.message(), ExitCode::kNoResources);
}

}  // namespace

void add_run_command(CLI::App& app, Command* chosen) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = app.add_subcommand("run", "Run a job to its end");
  command->add_option("config", options->config_path, "The job's TOML file")->required();
  command
      ->add_option("--set", options->overrides,
                   "section.key=value: overrides a key of the file; may be repeated")
      ->expected(1)
      ->take_all();
  auto resume = std::make_shared<bool>(false);
  auto fresh = std::make_shared<bool>(false);
  CLI::Option* resume_flag = command->add_flag(
      "--resume", *resume, "Continue the state that an earlier run left in shared memory");
  command->add_flag("--fresh", *fresh, "Discard such a state and start anew")
      ->excludes(resume_flag);
  command->add_option("--report", options->report_path, "Write the report (JSON) to this file")
      ->check(refuse_empty);
  command->add_flag("--json", options->json, "Print the report on stdout, progress on stderr");
  command->add_flag("--quiet", options->quiet, "No progress and no summary: only what went wrong");
  command->callback([=] {
    if (*resume) options->mode = StartMode::kResume;
    if (*fresh) options->mode = StartMode::kFresh;
    *chosen = [options] { return run_job(*options); };
  });
}

void add_plan_command(CLI::App& app, Command* chosen) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* command = app.add_subcommand(
      "plan", "Show what a run would do and what memory it needs; starts nothing");
  command->add_option("config", flags->config_path, "The job's TOML file")->required();
  command->add_option("--set", flags->overrides, "section.key=value; may be repeated")
      ->expected(1)
      ->take_all();
  command->add_flag("--json", flags->json, "One JSON document");
  command->callback([=] { *chosen = [flags] { return plan_command(*flags); }; });
}

}  // namespace optlease
