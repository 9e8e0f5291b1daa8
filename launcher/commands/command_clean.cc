// optlease clean
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "launcher/commands/commands.h"
#include "launcher/job_claim.h"
#include "launcher/memory_contract.h"

namespace optlease {
namespace {

// `job` null: every job's leftovers. An empty name is no name: it is refused like any bad one.
ExitCode clean_command(const CleanOptions& given, const std::string* job) {
  CleanOptions options = given;
  if (job != nullptr) {
    auto name = job_named(*job);
    if (!name) return complain("clean", name.status());
    options.only_job = name.value();
    // Who names a job means it, kept or damaged.
    options.include_kept = true;
    options.include_damaged = true;
  }
  options.answers = [](const std::string& name) {
    const auto run = RunDirectory::of(name);
    return run && job_answers(run.value());
  };
  auto report = clean_leftovers(leftover_places(), options);
  if (!report) return complain("clean", report.status());
  if (job != nullptr && report.value().removed.empty() && report.value().kept.empty()) {
    return complain("clean",
                    "there is nothing of a job " + options.only_job + ": no segment " +
                        segment_prefix() + options.only_job + ".* in /dev/shm and no directory " +
                        run_root() + "/" + options.only_job + "; `optlease status` lists the jobs",
                    ExitCode::kStateAbsent);
  }
  const char* verb = options.dry_run ? "would remove" : "removed";
  for (const CleanedItem& item : report.value().removed) {
    std::printf("%s %s (%s)\n", verb, item.path.c_str(), bytes_text(item.bytes).c_str());
  }
  for (const std::string& kept : report.value().kept) std::printf("left %s\n", kept.c_str());
  std::printf("%s %s in %zu items\n", verb, bytes_text(report.value().bytes).c_str(),
              report.value().removed.size());
  return ExitCode::kOk;
}

}  // namespace

void add_clean_command(CLI::App& app, Command* chosen) {
  auto options = std::make_shared<CleanOptions>();
  auto job = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(
      "clean", "Remove what jobs that no longer run have left: segments and run directories");
  const CLI::Option* named =
      command->add_option("job", *job, "Only this job, its kept state included; none: all jobs");
  command->add_flag("--dry-run", options->dry_run, "Only say what would be removed");
  command->add_flag("--include-kept", options->include_kept,
                    "Also states that were kept on purpose");
  command->callback([=] {
    const bool one = named->count() > 0;
    *chosen = [=] { return clean_command(*options, one ? job.get() : nullptr); };
  });
}

}  // namespace optlease
