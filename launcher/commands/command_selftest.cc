// optlease selftest
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "launcher/commands/commands.h"
#include "launcher/golden_files.h"

namespace optlease {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kIsaElements = 1 << 16;
constexpr uint64_t kIsaSeed = 1;

Json result_json(const GoldenResult& golden) {
  const SelftestResult& result = golden.result;
  return {{"name", result.file},         {"passed", result.passed},
          {"skipped", golden.skipped},   {"detail", result.detail},
          {"compared", result.compared}, {"worst_ratio", result.worst_ratio}};
}

void print_result(const GoldenResult& golden) {
  const SelftestResult& result = golden.result;
  const char* word = golden.skipped ? "skipped" : result.passed ? "passed" : "FAILED";
  std::printf("%-8s %-28s %10llu values, worst error %.3f of its tolerance%s%s\n", word,
              result.file.c_str(), static_cast<unsigned long long>(result.compared),
              result.worst_ratio, result.detail.empty() ? "" : "; ", result.detail.c_str());
}

ExitCode selftest_command(const std::vector<std::string>& paths, bool as_json) {
  std::vector<GoldenResult> results = {{check_instruction_sets(kIsaElements, kIsaSeed), false}};
  auto files = golden_files(paths);
  if (!files) {
    return complain("selftest", files.status().message(), exit_code_for_file(files.status()));
  }
  for (const std::string& file : files.value()) results.push_back(run_golden_file(file));
  uint32_t failed = 0;
  uint32_t skipped = 0;
  Json list = Json::array();
  for (const GoldenResult& golden : results) {
    skipped += golden.skipped ? 1 : 0;
    failed += !golden.skipped && !golden.result.passed ? 1 : 0;
    if (as_json) {
      list.push_back(result_json(golden));
    } else {
      print_result(golden);
    }
  }
  if (as_json) {
    const Json out = {{"status", failed == 0 ? "passed" : "failed"},
                      {"failed", failed},
                      {"skipped", skipped},
                      {"results", list}};
    std::printf("%s\n", out.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
  } else {
    std::printf("%zu checks, %u failed, %u skipped\n", results.size(), failed, skipped);
  }
  return failed == 0 ? ExitCode::kOk : ExitCode::kInternal;
}

}  // namespace

void add_selftest_command(CLI::App& app, Command* chosen) {
  auto paths = std::make_shared<std::vector<std::string>>();
  auto as_json = std::make_shared<bool>(false);
  CLI::App* command = app.add_subcommand(
      "selftest", "Compare the CPU kernels with reference vectors and with each other");
  command
      ->add_option("--golden", *paths,
                   "Files of reference vectors, or directories of them; may be repeated")
      ->expected(1, 1 << 16)
      ->take_all();
  command->add_flag("--json", *as_json, "One JSON document");
  command->callback([=] { *chosen = [=] { return selftest_command(*paths, *as_json); }; });
}

}  // namespace optlease
