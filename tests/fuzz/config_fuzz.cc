// Job files: any text, with any --set overrides, through the real loader.
//
// It may assume nothing of the text. It asserts: a file is taken or every error of it says where
// and what; no depth of tables, arrays and keys ends the process; what was taken is within the
// limits of the contract, makes a plan, and that plan is the one that every process of the job
// reads from the run directory.
#include <filesystem>
#include <fstream>
#include <iterator>

#include "launcher/config_file.h"
#include "launcher/config_schema.h"
#include "launcher/run_plan.h"
#include "launcher/toml_depth.h"
#include "tests/fuzz/fuzz.h"

namespace optlease::fuzz {
namespace {

constexpr uint8_t kOverridesMax = 3;
constexpr uint64_t kChunksMax = 4096;  // more take longer to list than the file to read

void check_errors(const std::vector<ConfigError>& errors) {
  for (const ConfigError& error : errors) {
    OPTLEASE_CHECK(!error.place.empty() && !error.text.empty(), "an error without place or words");
  }
  OPTLEASE_CHECK(errors.empty() == text_of(errors).empty(), "errors without text");
}

bool has_few_chunks(const SegmentPlan& plan) {
  uint64_t chunks = 0;
  for (const SpaceSpec& space : plan.spaces) {
    if (space.chunk_elements == 0) return true;
    chunks += space.elements / space.chunk_elements + space.members.size();
  }
  return chunks <= kChunksMax;
}

void check_limits(const Config& config) {
  OPTLEASE_CHECK(config.world_size - 1 < kRankCountMax, "%u ranks", config.world_size);
  OPTLEASE_CHECK(config.window_chunks - 1 < kWindowChunksMax, "%u chunks", config.window_chunks);
  OPTLEASE_CHECK(config.steps >= 0, "%lld steps", static_cast<long long>(config.steps));
  OPTLEASE_CHECK(why_invalid_job_name(config.job_name).empty(), "a job's name");
  OPTLEASE_CHECK(!config.spaces.empty() && config.spaces.size() <= kSpaceCountMax, "spaces");
  OPTLEASE_CHECK(why_invalid(config.optimizer) == nullptr, "%s", why_invalid(config.optimizer));
}

void check_plan(const Config& config) {
  const Result<JobPlan> plan = make_plan(config);
  OPTLEASE_CHECK(plan.is_ok(), "the loader took it: %s", plan.status().text().c_str());
  OPTLEASE_CHECK(why_invalid(plan.value().segment).empty(), "the plan is invalid");
  const std::string json = to_json(plan.value());
  const Result<JobPlan> again = job_plan_from_json(json);
  OPTLEASE_CHECK(again.is_ok(), "no process reads it: %s", again.status().text().c_str());
  OPTLEASE_CHECK(to_json(again.value()) == json, "another plan is read than was written");
  if (!has_few_chunks(plan.value().segment)) return;
  std::vector<std::string> notes;
  OPTLEASE_CHECK(make_plan(config, &notes).is_ok(), "notes");
}

std::string file_seed(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  // Not every build has the other device.
  const std::string set = "ranks.device=cpu";
  return Output().byte(1).byte(static_cast<uint32_t>(set.size())).bytes(set).bytes(text).text();
}

}  // namespace
}  // namespace optlease::fuzz

std::vector<std::string> fuzz_seeds() {
  using namespace optlease::fuzz;
  std::vector<std::string> seeds;
  for (const auto& entry : std::filesystem::directory_iterator(OPTLEASE_SOURCE_DIR "/configs")) {
    if (entry.path().extension() == ".toml") seeds.push_back(file_seed(entry.path()));
  }
  return seeds;
}

std::vector<std::string> fuzz_words() {
  std::vector<std::string> words = {"[[",   "]]",  "\"\"\"",           "'''",
                                    "1e-3", "inf", "1979-05-27T07:32Z"};
  for (const auto& section : optlease::schema_sections()) {
    words.push_back(optlease::format(section.is_array ? "[[%s]]" : "[%s]", section.name));
  }
  for (const auto& key : optlease::schema_keys()) {
    words.emplace_back(key.key);
    for (const std::string& choice : optlease::choices_of(key)) words.push_back('"' + choice + '"');
  }
  return words;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace optlease;
  using namespace optlease::fuzz;
  Input input(data, size);
  std::vector<std::string> overrides;
  const uint8_t count = input.byte() % (kOverridesMax + 1);
  for (uint8_t i = 0; i < count; ++i) {
    overrides.emplace_back(input.take_bytes(input.byte() % 64));
  }
  Config config;
  std::vector<ConfigError> errors;
  const bool is_taken =
      parse_config(std::string(input.rest()), "job.toml", "/jobs", overrides, &config, &errors);
  OPTLEASE_CHECK(is_taken == errors.empty(), "%zu errors, and taken: %d", errors.size(), is_taken);
  check_errors(errors);
  if (!is_taken) return 0;
  taken();
  check_limits(config);
  // Weights from a file bring their shapes; here there is no file.
  if (config.model_source.empty()) check_plan(config);
  return 0;
}
