// optlease compare
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "launcher/commands/commands.h"
#include "launcher/compare_reports.h"
#include "launcher/files.h"

namespace optlease {
namespace {

constexpr uint64_t kReportBytesMax = 1ull << 28;

ExitCode compare_command(const std::string& first, const std::string& second) {
  auto a = read_whole_file(first, kReportBytesMax);
  if (!a) return complain("compare", a.status().message(), ExitCode::kIo);
  auto b = read_whole_file(second, kReportBytesMax);
  if (!b) return complain("compare", b.status().message(), ExitCode::kIo);
  auto comparison = compare_reports(first, a.value(), second, b.value());
  if (!comparison) return complain("compare", comparison.status().message(), ExitCode::kUsage);
  std::fputs(comparison.value().text.c_str(), stdout);
  const bool good = comparison.value().same_state && comparison.value().both_passed;
  return good ? ExitCode::kOk : ExitCode::kInternal;
}

}  // namespace

void add_compare_command(CLI::App& app, Command* chosen) {
  auto first = std::make_shared<std::string>();
  auto second = std::make_shared<std::string>();
  CLI::App* command = app.add_subcommand(
      "compare", "Show two run reports side by side; 0 where both passed with the same state");
  command->add_option("first", *first, "A report of `optlease run --report`")->required();
  command->add_option("second", *second, "Another")->required();
  command->callback([=] { *chosen = [=] { return compare_command(*first, *second); }; });
}

}  // namespace optlease
