#include "launcher/config_file.h"

#include <gtest/gtest.h>

#include "launcher/config_schema.h"
#include "tests/launcher/config_fixture.h"

namespace optlease {
namespace {

TEST(ConfigFile, FillsInTheDefaultsOfEveryKeyThatIsNotGiven) {
  const Parsed parsed = parse_whole("");
  ASSERT_TRUE(parsed.ok) << parsed.text;
  const Config& config = parsed.config;
  EXPECT_EQ(config.job_name, "a");
  EXPECT_EQ(config.steps, 10);
  EXPECT_FALSE(config.keep_state);
  EXPECT_EQ(config.device, "cpu");
  ASSERT_EQ(config.spaces.size(), 1u);
  EXPECT_EQ(config.spaces[0].name, "dense");
  EXPECT_EQ(config.spaces[0].ranks, (std::vector<Rank>{Rank(0), Rank(1)}));
  EXPECT_EQ(config.spaces[0].weight_decay, 0.01);
  ASSERT_EQ(config.parameters.size(), 1u);
  EXPECT_EQ(config.parameters[0].name, "flat");
  EXPECT_EQ(config.parameters[0].shape, std::vector<uint64_t>{1000});
  EXPECT_EQ(config.parameters[0].space, "dense");
  EXPECT_EQ(config.optimizer.rule, static_cast<uint32_t>(Rule::kAdamW));
  EXPECT_EQ(config.optimizer.lr, 0.001);
  EXPECT_EQ(config.optimizer.beta1, 0.9);
  EXPECT_EQ(config.optimizer.beta2, 0.999);
  EXPECT_EQ(config.optimizer.eps, 1e-8);
  EXPECT_EQ(config.chunk_size_bytes, 64u << 20);
  EXPECT_EQ(config.gradients.collective_timeout_ms, 30000u);
  EXPECT_TRUE(config.gradients.average);
  EXPECT_EQ(config.restart.stop_timeout_ms, 10000u);
}

const char* const kAllKeys = R"([job]
name = "all-keys"
steps = 7
keep_state = true
[ranks]
world_size = 3
device = "cpu"
[model]
seed = 5
param_dtype = "bf16"
grad_dtype = "F16"
parameters = [ { name = "w", shape = [2, 3], space = "e", init = "normal", std = 0.5 },
               { name = "b", shape = [], space = "d", init = "ones" } ]
[[spaces]]
name = "d"
[[spaces]]
name = "e"
ranks = [0, 2]
param_dtype = "F32"
grad_dtype = "F32"
lr_scale = 0.25
weight_decay = 0
[optimizer]
rule = "adam"
lr = 1
betas = [0, 0.5]
eps = 1e-6
weight_decay = 0.2
max_norm = 2.5
[offload]
chunk_size_mb = 0.25
staging_buffers = 2
window_chunks = 4
prefetch_windows = 1
fraction = 1
[gradients]
source = "trainer"
seed = 8
average = false
collective_timeout_s = 1.5
[trainer]
command = ["python", "{config_dir}/train.py", "{rank}"]
attach_timeout_s = 2
environment = { A = "1" }
[restart]
intensity = 3
period_s = 4
backoff_ms = 5
backoff_max_ms = 6
start_timeout_s = 7
heartbeat_timeout_s = 0.5
lease_ms = 900
quarantine_grace_ms = 10
stop_timeout_s = 11
[telemetry]
interval_ms = 50
step_log = true
[[rehearse]]
role = "trainer"
rank = 2
step = 7
phase = "update"
at_rank = 0
)";

TEST(ConfigFile, TakesEveryKeyOfTheModelThatIsGiven) {
  const Parsed parsed = parse_text(kAllKeys);
  ASSERT_TRUE(parsed.ok) << parsed.text;
  const Config& c = parsed.config;
  EXPECT_TRUE(c.keep_state);
  EXPECT_EQ(c.model_seed, 5u);
  EXPECT_EQ(c.spaces[0].param_dtype, DType::kBF16);
  EXPECT_EQ(c.spaces[0].grad_dtype, DType::kF16);
  EXPECT_EQ(c.spaces[0].weight_decay, 0.2);
  EXPECT_EQ(c.spaces[1].param_dtype, DType::kF32);
  EXPECT_EQ(c.spaces[1].ranks, (std::vector<Rank>{Rank(0), Rank(2)}));
  EXPECT_EQ(c.spaces[1].lr_scale, 0.25);
  EXPECT_EQ(c.spaces[1].weight_decay, 0.0);
  EXPECT_EQ(c.parameters[0].space, "e");
  EXPECT_EQ(c.parameters[0].init.std_dev, 0.5);
  EXPECT_EQ(c.parameters[1].init.kind, InitKind::kOnes);
  EXPECT_TRUE(c.parameters[1].shape.empty());
}

TEST(ConfigFile, TakesEveryKeyOfTheRunThatIsGiven) {
  const Parsed parsed = parse_text(kAllKeys);
  ASSERT_TRUE(parsed.ok) << parsed.text;
  const Config& c = parsed.config;
  EXPECT_EQ(c.optimizer.rule, static_cast<uint32_t>(Rule::kAdam));
  EXPECT_EQ(c.optimizer.lr, 1.0);
  EXPECT_EQ(c.optimizer.beta2, 0.5);
  EXPECT_EQ(c.gradients.max_norm, 2.5);
  EXPECT_EQ(c.chunk_size_bytes, 256u << 10);
  EXPECT_EQ(c.staging_buffers, 2u);
  EXPECT_EQ(c.window_chunks, 4u);
  EXPECT_EQ(c.prefetch_windows, 1u);
  EXPECT_FALSE(c.gradients.average);
  EXPECT_EQ(c.gradients.collective_timeout_ms, 1500u);
  EXPECT_EQ(c.trainer.command[1], "/jobs/train.py");
  EXPECT_EQ(c.trainer.command[2], "{rank}");
  EXPECT_EQ(c.trainer.environment, std::vector<std::string>{"A=1"});
  EXPECT_EQ(c.trainer.attach_timeout_ms, 2000u);
  EXPECT_EQ(c.restart.intensity, 3u);
  EXPECT_EQ(c.restart.period_ms, 4000u);
  EXPECT_EQ(c.restart.backoff_ms, 5u);
  EXPECT_EQ(c.restart.backoff_ms_max, 6u);
  EXPECT_EQ(c.restart.start_timeout_ms, 7000u);
  EXPECT_EQ(c.restart.heartbeat_timeout_ms, 500u);
  EXPECT_EQ(c.restart.lease_ms, 900u);
  EXPECT_EQ(c.restart.quarantine_grace_ms, 10u);
  EXPECT_EQ(c.restart.stop_timeout_ms, 11000u);
  EXPECT_EQ(c.telemetry.interval_ms, 50u);
  EXPECT_TRUE(c.telemetry.step_log);
  ASSERT_EQ(c.rehearsals.size(), 1u);
  EXPECT_EQ(c.rehearsals[0].role, Role::kTrainer);
  EXPECT_EQ(c.rehearsals[0].rank, 2u);
  EXPECT_EQ(c.rehearsals[0].at_rank, 0u);
  EXPECT_EQ(c.rehearsals[0].phase, RehearsePhase::kUpdate);
}

// A value of the wrong type and, where the rule bounds it, one out of bounds: [key, value] pairs.
std::vector<std::string> wrong_values(const KeyRule& rule) {
  const auto beyond = [&](bool above) {
    return std::to_string(static_cast<long long>(above ? rule.range.max + 1 : rule.range.min - 1));
  };
  const bool has_min = rule.range.min > -1e300, has_max = rule.range.max < 1e300;
  std::vector<std::string> numbers;
  if (has_min) numbers.push_back(beyond(false));
  if (has_max) numbers.push_back(beyond(true));
  std::vector<std::string> wrong{"1979-05-27"};
  switch (rule.type) {
    case KeyType::kString:
    case KeyType::kDType:
      wrong.push_back("3");
      if (*rule.choices != '\0') wrong.push_back("\"no such choice\"");
      break;
    case KeyType::kInteger:
      wrong.insert(wrong.end(), {"1.5", "\"1\"", "true"});
      wrong.insert(wrong.end(), numbers.begin(), numbers.end());
      break;
    case KeyType::kNumber:
      wrong.insert(wrong.end(), {"\"1\"", "nan", "inf", "[1]", "1e-400", "0.01e-400"});
      if (rule.range.parts > 0) wrong.insert(wrong.end(), {"1e-300", "1e-9"});
      wrong.insert(wrong.end(), numbers.begin(), numbers.end());
      break;
    case KeyType::kBool:
      wrong.insert(wrong.end(), {"1", "\"true\""});
      break;
    case KeyType::kStrings:
      wrong.insert(wrong.end(), {"\"a\"", "[1]"});
      break;
    case KeyType::kStringTable:
      wrong.insert(wrong.end(), {"[\"A=1\"]", "{ A = 1 }"});
      break;
    case KeyType::kIntegers:
      wrong.insert(wrong.end(), {"4", "[1.5]"});
      for (const std::string& number : numbers) wrong.push_back("[" + number + "]");
      break;
    case KeyType::kNumberPair:
      wrong.insert(wrong.end(), {"0.9", "[0.9]", "[0.9, 1]", "[0.9, 1e-400]"});
      break;
    case KeyType::kRanks:
      wrong.insert(wrong.end(), {"0", "\"some\"", "[-1]", "[\"0\"]"});
      break;
    case KeyType::kNuma:
      wrong.insert(wrong.end(), {"0", "\"some\"", "[-2]", "[1023]", "[\"0\"]"});
      break;
    case KeyType::kTables:
      wrong.insert(wrong.end(), {"4.5", "{ name = \"w\" }", "[4]"});
      break;
  }
  return wrong;
}

// The key alone in a table of its section, on line 1 or 2; column 1 + "key = ".
std::string with_value(const KeyRule& rule, const std::string& value) {
  const SectionRule& section = *find_section(rule.section);
  const std::string header = section.is_array ? "[[" + std::string(section.name) + "]]"
                                              : "[" + std::string(section.name) + "]";
  return header + "\n" + rule.key + " = " + value + "\n";
}

TEST(ConfigFile, RefusesWrongValuesOfEveryKeyAtTheirPlace) {
  for (const KeyRule& rule : schema_keys()) {
    for (const std::string& value : wrong_values(rule)) {
      const Parsed parsed = parse_text(with_value(rule, value));
      const std::string key = rule.key;
      bool found = false;
      for (const ConfigError& error : parsed.errors) {
        const std::string place = "job.toml:2:" + std::to_string(key.size() + 4);
        const bool inside = value[0] == '[' || value[0] == '{';
        const bool at_value =
            inside ? error.place.starts_with("job.toml:2:") : error.place == place;
        found |= at_value && error.key.find(key) != std::string::npos &&
                 error.text.find("allowed: ") != std::string::npos &&
                 error.text.find("found ") != std::string::npos;
      }
      EXPECT_TRUE(found) << rule.section << "." << key << " = " << value << "\n" << parsed.text;
    }
  }
}

TEST(ConfigFile, ReportsEveryRequiredKeyThatIsMissing) {
  const Parsed parsed = parse_text("[job]\n[model]\nelements = 4\n");
  ASSERT_EQ(parsed.errors.size(), 3u) << parsed.text;
  EXPECT_EQ(text_of({parsed.errors[0]}), "job.toml:1:1: job.name: missing; required: a string");
  EXPECT_EQ(parsed.errors[1].key, "job.steps");
  EXPECT_EQ(text_of({parsed.errors[2]}),
            "job.toml:1:1: ranks.world_size: missing; required: an integer from 1 to 1024");
}

TEST(ConfigFile, ReportsAllErrorsOfAFileAtOnceInItsOrder) {
  const Parsed parsed = parse_text(
      "[job]\nname = \"a\"\nsteps = \"ten\"\n[ranks]\nworld_size = 0\n[model]\nelements = 4\n"
      "[optimizer]\nlearning_rate = 1\nrule = \"adamW\"\n[ofload]\nchunk_size_mb = 1\n");
  ASSERT_EQ(parsed.errors.size(), 5u) << parsed.text;
  EXPECT_EQ(parsed.errors[0].place, "job.toml:3:9");
  EXPECT_EQ(parsed.errors[1].place, "job.toml:5:14");
  EXPECT_EQ(parsed.errors[2].place, "job.toml:9:1");
  EXPECT_EQ(parsed.errors[3].place, "job.toml:10:8");
  EXPECT_NE(parsed.errors[3].text.find("did you mean 'adamw'?"), std::string::npos) << parsed.text;
  EXPECT_EQ(parsed.errors[4].place, "job.toml:11:2");
  EXPECT_NE(parsed.errors[4].text.find("did you mean 'offload'?"), std::string::npos);
}

TEST(ConfigFile, HintsAtTheKeyThatATypoMeant) {
  const Parsed parsed = parse_whole("[optimizer]\nwieght_decay = 0.1\n");
  ASSERT_EQ(parsed.errors.size(), 1u) << parsed.text;
  EXPECT_EQ(parsed.text,
            "job.toml:10:1: optimizer.wieght_decay: unknown key; did you mean 'weight_decay'? "
            "Allowed in [optimizer]: rule, main, lr, betas, eps, weight_decay, max_norm");
}

TEST(ConfigFile, HintsAtTheSectionThatAMisplacedKeyBelongsTo) {
  const Parsed section = parse_whole("[optimizer]\nchunk_size_mb = 1\n");
  EXPECT_NE(section.text.find("did you mean offload.chunk_size_mb?"), std::string::npos);
  const Parsed top = parse_text("lr = 1\n" + kWholeJob);
  EXPECT_NE(top.text.find("job.toml:1:1: lr: unknown section; did you mean optimizer.lr?"),
            std::string::npos)
      << top.text;
}

TEST(ConfigFile, PrefersAHintWithinTheSectionAndGivesNoneWhereNoNameIsNear) {
  const Parsed parsed = parse_text("job = { step = 4 }\n[ranks]\ntotal = 2\n");
  ASSERT_GE(parsed.errors.size(), 4u) << parsed.text;
  EXPECT_EQ(text_of({parsed.errors[0]}),
            "job.toml:1:9: job.step: unknown key; did you mean 'steps'? Allowed in [job]: name, "
            "steps, keep_state");
  EXPECT_EQ(text_of({parsed.errors[3]}),
            "job.toml:3:1: ranks.total: unknown key. Allowed in [ranks]: world_size, device, numa");
}

TEST(ConfigFile, RefusesSectionsOfTheWrongForm) {
  EXPECT_EQ(parse_text("optimizer = 3\n" + kWholeJob).errors[0].text,
            "found the integer 3, allowed: a table, under [optimizer]");
  const Parsed table = parse_whole("[spaces]\nname = \"dense\"\n");
  ASSERT_EQ(table.errors.size(), 1u) << table.text;
  EXPECT_EQ(table.text,
            "job.toml:9:1: spaces: found a table, allowed: tables, each under [[spaces]]");
}

TEST(ConfigFile, SaysWhereATextIsNoToml) {
  const Parsed parsed = parse_text("[job]\nname = \"a\nsteps = 1\n");
  ASSERT_EQ(parsed.errors.size(), 1u);
  EXPECT_TRUE(parsed.errors[0].place.starts_with("job.toml:2:")) << parsed.text;
  EXPECT_NE(parsed.text.find("this is no TOML"), std::string::npos);
}

// Deep enough to end the process, were it parsed: tables are taken down by recursion.
TEST(ConfigFile, RefusesKeysOfVeryManyParts) {
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += "a.";
  for (const std::string& text : {deep + "b = 1", "[" + deep + "b]", "x = {" + deep + "b = 1}"}) {
    const Parsed parsed = parse_text("# first\n" + text + "\n");
    ASSERT_EQ(parsed.errors.size(), 1u);
    EXPECT_EQ(parsed.errors[0].place, "job.toml:2:1");
  }
  EXPECT_FALSE(parse_whole("", {deep + "b=1"}).ok);
  EXPECT_FALSE(parse_whole("", {"trainer.environment={" + deep + "b=1}"}).ok);
  EXPECT_EQ(
      parse_text("# dots in words " + std::string(200, '"') + "\n").errors[0].text.find("parts"),
      std::string::npos);
}

TEST(ConfigFile, RefusesAKeyThatIsGivenTwice) {
  const Parsed parsed = parse_whole("[optimizer]\nlr = 1\nlr = 2\n");
  ASSERT_FALSE(parsed.ok);
  EXPECT_TRUE(parsed.errors[0].place.starts_with("job.toml:11:")) << parsed.text;
}

TEST(ConfigOverride, ReplacesAddsAndParsesValues) {
  const Parsed parsed = parse_whole(
      "[optimizer]\nlr = 1\n",
      {"optimizer.lr=0.5", "optimizer.betas=[0.5, 0.75]", "job.name=other", "job.keep_state=true",
       "offload.chunk_size_mb=0.25", "rehearse=[{role=\"gpu_actor\", step=3}]"});
  ASSERT_TRUE(parsed.ok) << parsed.text;
  EXPECT_EQ(parsed.config.optimizer.lr, 0.5);
  EXPECT_EQ(parsed.config.optimizer.beta2, 0.75);
  EXPECT_EQ(parsed.config.job_name, "other");
  EXPECT_TRUE(parsed.config.keep_state);
  EXPECT_EQ(parsed.config.chunk_size_bytes, 256u << 10);
  EXPECT_EQ(parsed.config.rehearsals.size(), 1u);
}

TEST(ConfigOverride, RepairsAValueBeforeItIsChecked) {
  EXPECT_FALSE(parse_whole("[optimizer]\nlr = -1\n").ok);
  EXPECT_TRUE(parse_whole("[optimizer]\nlr = -1\n", {"optimizer.lr=1"}).ok);
}

TEST(ConfigOverride, LetsTheLastOfTwoWin) {
  EXPECT_EQ(parse_whole("", {"optimizer.lr=1", "optimizer.lr=2"}).config.optimizer.lr, 2.0);
}

TEST(ConfigOverride, ReachesElementsOfArrays) {
  const std::string spaces = "[[spaces]]\nname = \"dense\"\n";
  EXPECT_EQ(parse_whole(spaces, {"spaces.0.lr_scale=0.5"}).config.spaces[0].lr_scale, 0.5);
  const Parsed beyond = parse_whole(spaces, {"spaces.1.lr_scale=0.5"});
  ASSERT_EQ(beyond.errors.size(), 1u);
  EXPECT_EQ(beyond.errors[0].place, "--set spaces.1.lr_scale=0.5");
}

TEST(ConfigOverride, TakesABareWordAsAString) {
  const Parsed parsed = parse_whole(
      "", {"gradients.source=replay", "gradients.replay_path=g/{rank}.{step}.safetensors"});
  ASSERT_TRUE(parsed.ok) << parsed.text;
  EXPECT_EQ(parsed.config.gradients.replay_path, "/jobs/g/{rank}.{step}.safetensors");
}

TEST(ConfigOverride, IsNamedByTheErrorsThatItCauses) {
  const Parsed typo = parse_whole("", {"optimizer.lrr=1"});
  EXPECT_TRUE(
      typo.text.starts_with("--set optimizer.lrr=1: optimizer.lrr: unknown key; did you "
                            "mean 'lr'?"))
      << typo.text;
  EXPECT_EQ(parse_whole("[optimizer]\nlr = 1\n", {"optimizer.lr=fast"}).text,
            "--set optimizer.lr=fast: optimizer.lr: found the string \"fast\", allowed: a number "
            "from 0 to 1e+38");
}

TEST(ConfigOverride, RefusesWhatIsNoAssignment) {
  for (const char* text : {"optimizer.lr", "=3", "optimizer..lr=3", "optimizer.lr=",
                           "optimizer.betas=[0.9,", "job.name=\"a", "job.name.x=1"}) {
    const Parsed parsed = parse_whole("", {text});
    ASSERT_FALSE(parsed.ok) << text;
    EXPECT_EQ(parsed.errors[0].place, "--set " + std::string(text));
  }
}

TEST(ConfigOverride, CannotSmuggleInASecondKey) {
  EXPECT_FALSE(parse_whole("", {"optimizer.lr=1\nw = 2"}).ok);
}

TEST(LoadConfig, SaysWhichFileIsNotThere) {
  const Result<LoadedConfig> loaded = load_config("/no/such/job.toml");
  ASSERT_FALSE(loaded.is_ok());
  EXPECT_EQ(loaded.status().code(), StatusCode::kIo);
  EXPECT_NE(loaded.status().message().find("/no/such/job.toml"), std::string::npos);
  EXPECT_EQ(load_config("/").status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace optlease
