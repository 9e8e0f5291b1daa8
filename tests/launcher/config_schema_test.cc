#include "launcher/config_schema.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "actors/runtime/job_plan.h"
#include "launcher/config_value.h"

namespace optlease {
namespace {

TEST(ConfigSchema, NamesEachKeyOnceInASectionThatExists) {
  std::set<std::string> seen;
  for (const KeyRule& rule : schema_keys()) {
    EXPECT_NE(find_section(rule.section), nullptr) << rule.section;
    EXPECT_TRUE(seen.insert(std::string(rule.section) + "." + rule.key).second) << rule.key;
    EXPECT_NE(*rule.help, '\0') << rule.key;
  }
  for (const SectionRule& section : schema_sections()) {
    EXPECT_FALSE(keys_of(section.name).empty()) << section.name;
  }
}

TEST(ConfigSchema, KeepsItsOwnRulesInItsDefaults) {
  for (const KeyRule& rule : schema_keys()) {
    if (rule.fallback == nullptr || *rule.fallback == '\0') continue;
    const ConfigValue value = parse_toml_value(rule.fallback, "default");
    if (rule.type == KeyType::kInteger) {
      EXPECT_EQ(value.kind, ValueKind::kInteger) << rule.key;
    }
    if (rule.type == KeyType::kBool) {
      EXPECT_EQ(value.kind, ValueKind::kBool) << rule.key;
    }
    if (value.is_number()) {
      EXPECT_TRUE(rule.range.contains(value.number)) << rule.key;
    }
    const std::vector<std::string> choices = choices_of(rule);
    if (!choices.empty()) {
      EXPECT_NE(std::find(choices.begin(), choices.end(), value.string), choices.end()) << rule.key;
    }
  }
}

TEST(ConfigSchema, OffersOnlyChoicesThatTheJobPlanCanParse) {
  GradientSource source;
  for (const auto& name : choices_of(*find_key("gradients", "source"))) {
    EXPECT_TRUE(parse(name, &source)) << name;
  }
  RehearsePhase phase;
  const std::vector<std::string> phases = choices_of(*find_key("rehearse", "phase"));
  EXPECT_EQ(phases.size(), 10u);
  for (const auto& name : phases) EXPECT_TRUE(parse(name, &phase)) << name;
  Role role;
  for (const auto& name : choices_of(*find_key("rehearse", "role"))) {
    EXPECT_TRUE(parse(name, &role)) << name;
  }
  InitKind init;
  for (const auto& name : choices_of(*find_key("model.parameters", "init"))) {
    EXPECT_TRUE(parse(name, &init)) << name;
  }
  DType dtype;
  for (const auto& name : choices_of(*find_key("model", "param_dtype"))) {
    EXPECT_TRUE(parse_dtype(name, &dtype)) << name;
  }
}

// The defaults of JobPlan and of the schema are written twice: they must be the same.
TEST(ConfigSchema, HasTheDefaultsOfTheJobPlan) {
  const auto number = [](const char* section, const char* key) {
    return parse_toml_value(find_key(section, key)->fallback, "default").number;
  };
  const RestartPlan restart;
  EXPECT_EQ(number("restart", "intensity"), restart.intensity);
  EXPECT_EQ(number("restart", "period_s") * 1000, static_cast<double>(restart.period_ms));
  EXPECT_EQ(number("restart", "backoff_ms"), static_cast<double>(restart.backoff_ms));
  EXPECT_EQ(number("restart", "backoff_max_ms"), static_cast<double>(restart.backoff_ms_max));
  EXPECT_EQ(number("restart", "start_timeout_s") * 1000,
            static_cast<double>(restart.start_timeout_ms));
  EXPECT_EQ(number("restart", "heartbeat_timeout_s") * 1000,
            static_cast<double>(restart.heartbeat_timeout_ms));
  EXPECT_EQ(number("restart", "lease_ms"), static_cast<double>(restart.lease_ms));
  EXPECT_EQ(number("restart", "quarantine_grace_ms"),
            static_cast<double>(restart.quarantine_grace_ms));
  EXPECT_EQ(number("restart", "stop_timeout_s") * 1000,
            static_cast<double>(restart.stop_timeout_ms));
  EXPECT_EQ(number("telemetry", "interval_ms"), static_cast<double>(TelemetryPlan().interval_ms));
  EXPECT_EQ(number("offload", "staging_buffers"), JobPlan().staging_buffers);
  EXPECT_EQ(number("offload", "prefetch_windows"), SegmentPlan().prefetch_windows);
  EXPECT_EQ(number("offload", "window_chunks"), SegmentPlan().window_chunks);
  EXPECT_EQ(number("model.parameters", "std"), TensorInit().std_dev);
}

TEST(ConfigSchema, FindsTheNameThatWasMeantAndNoOther) {
  const std::vector<std::string> names{"lr", "betas", "weight_decay", "chunk_size_mb"};
  EXPECT_EQ(nearest_name("wieght_decay", names), "weight_decay");
  EXPECT_EQ(nearest_name("Weight-Decay", names), "weight_decay");
  EXPECT_EQ(nearest_name("chunk_size", names), "chunk_size_mb");
  EXPECT_EQ(nearest_name("beta", names), "betas");
  EXPECT_EQ(nearest_name("lrr", names), "lr");
  EXPECT_EQ(nearest_name("momentum", names), "");
  EXPECT_EQ(nearest_name("lr", {}), "");
}

TEST(ConfigSchema, SaysInWordsWhatIsAllowed) {
  EXPECT_EQ(allowed_text(*find_key("optimizer", "eps")), "a number from 1e-45 to 1e+38");
  EXPECT_EQ(allowed_text(*find_key("optimizer", "betas")),
            "an array of two numbers, each of at least 0 and below 1");
  EXPECT_EQ(allowed_text(*find_key("ranks", "world_size")), "an integer from 1 to 1024");
  EXPECT_EQ(allowed_text(*find_key("optimizer", "rule")), "one of \"adamw\", \"adam\"");
  EXPECT_EQ(allowed_text(*find_key("job", "name")), "a string");
}

// The tables of configs/README.md by section: "optimizer" -> its rows.
std::map<std::string, std::vector<std::string>> readme_rows() {
  std::ifstream file(std::string(OPTLEASE_SOURCE_DIR) + "/configs/README.md");
  std::map<std::string, std::vector<std::string>> rows;
  std::string line, section;
  while (std::getline(file, line)) {
    if (line.starts_with("## ")) {
      const size_t begin = line.find_first_not_of("# [");
      section = line[3] == '[' ? line.substr(begin, line.find(']') - begin) : "";
    } else if (line.starts_with("| `") && !section.empty()) {
      rows[section].push_back(line);
    }
  }
  return rows;
}

TEST(ConfigReadme, HasExactlyTheRowsOfTheSchemaInItsOrder) {
  const auto rows = readme_rows();
  for (const auto& [section, found] : rows) {
    EXPECT_NE(find_section(section), nullptr) << "README.md documents [" << section << "]";
  }
  for (const SectionRule& section : schema_sections()) {
    std::vector<std::string> wanted;
    for (const KeyRule* rule : keys_of(section.name)) wanted.push_back(markdown_row(*rule));
    const auto found = rows.find(section.name);
    ASSERT_NE(found, rows.end()) << "configs/README.md has no section [" << section.name << "]";
    EXPECT_EQ(found->second, wanted) << "in section [" << section.name << "]";
  }
}

TEST(ConfigReadme, WritesTheUnitAndTheDefaultOfAKeyInItsRow) {
  EXPECT_EQ(markdown_row(*find_key("restart", "lease_ms")),
            "| `lease_ms` | integer from 10 to 604800000 | ms | `5000` | A lease without a "
            "heartbeat ends after this. |");
  EXPECT_NE(markdown_row(*find_key("job", "name")).find("| required |"), std::string::npos);
  EXPECT_NE(markdown_row(*find_key("model", "elements")).find("| absent |"), std::string::npos);
}

}  // namespace
}  // namespace optlease
