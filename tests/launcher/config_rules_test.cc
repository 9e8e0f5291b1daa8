// Rules between keys: each has a case that breaks it, at its place.
#include <gtest/gtest.h>

#include "shm/contract/status.h"
#include "tests/launcher/config_fixture.h"

namespace optlease {
namespace {

// One broken rule: text after line 8 of kWholeJob and overrides, the place, key and words expected.
struct Case {
  const char* name;
  const char* added;
  const char* place;
  const char* key;
  const char* words;
};

void expect_refused(const Case& c, const std::vector<std::string>& overrides = {}) {
  const Parsed parsed = parse_whole(c.added, overrides);
  ASSERT_EQ(parsed.errors.size(), 1u) << c.name << "\n" << parsed.text;
  EXPECT_EQ(parsed.errors[0].place, c.place) << c.name;
  EXPECT_EQ(parsed.errors[0].key, c.key) << c.name;
  EXPECT_NE(parsed.errors[0].text.find(c.words), std::string::npos) << c.name << "\n"
                                                                    << parsed.text;
}

TEST(ConfigRules, RefuseWhatASingleKeyCannotShow) {
  const Case cases[] = {
      {"remainders of FP32 parameters", "[optimizer]\nmain = \"bf16+remainder\"\n", "job.toml:10:8",
       "optimizer.main", "set model.param_dtype = \"BF16\""},
      {"remainders of one space's F16 parameters",
       "[optimizer]\nmain = \"bf16+remainder\"\n[[spaces]]\nname = \"dense\"\n"
       "param_dtype = \"F16\"\n",
       "job.toml:13:15", "spaces.0.param_dtype", "are F16; set it to \"BF16\""},
      {"path without replay", "replay_path = \"g.{step}\"\n", "job.toml:9:15",
       "gradients.replay_path", "replay_path belongs to \"replay\""},
      {"nonfinite step past the end", "nonfinite_steps = [11]\n", "job.toml:9:19",
       "gradients.nonfinite_steps", "found step 11, but job.steps is 10"},
      {"command without its source", "[trainer]\ncommand = [\"x\"]\n", "job.toml:10:11",
       "trainer.command", "this trainer would never be asked"},
      {"environment without command", "[trainer]\nenvironment = { A = \"1\" }\n", "job.toml:10:15",
       "trainer.environment", "there is no trainer.command"},
      {"backoff", "[restart]\nbackoff_ms = 3000\n", "job.toml:10:14", "restart.backoff_ms",
       "backoff_ms is 3000, but backoff_max_ms is 2000"},
      {"longest backoff", "[restart]\nbackoff_max_ms = 1\n", "job.toml:10:18",
       "restart.backoff_max_ms", "backoff_ms is 20, but backoff_max_ms is 1"},
      {"rehearsal's rank", "[[rehearse]]\nrole = \"gpu_actor\"\nrank = 2\nstep = 1\nat_rank = 0\n",
       "job.toml:11:8", "rehearse.0.rank", "found rank 2, but ranks.world_size is 2"},
      {"rehearsal's at_rank", "[[rehearse]]\nrole = \"host_store\"\nstep = 1\nat_rank = 9\n",
       "job.toml:12:11", "rehearse.0.at_rank", "found rank 9, but ranks.world_size is 2"},
      {"rehearsal's step", "[[rehearse]]\nrole = \"host_store\"\nstep = 11\n", "job.toml:11:8",
       "rehearse.0.step", "found step 11, but job.steps is 10"},
      {"rehearsal without trainer", "[[rehearse]]\nrole = \"trainer\"\nstep = 1\n", "job.toml:10:8",
       "rehearse.0.role", "there is no trainer.command"},
      {"space's name", "[[spaces]]\nname = \"a b\"\n", "job.toml:10:8", "spaces.0.name",
       "allowed: 1 to 63 letters, digits, '_' and '-'"},
      {"space's rank", "[[spaces]]\nname = \"d\"\nranks = [0, 2]\n", "job.toml:11:9",
       "spaces.0.ranks", "found rank 2, but ranks.world_size is 2: the last rank is 1"},
      {"descending ranks", "[[spaces]]\nname = \"d\"\nranks = [1, 0]\n", "job.toml:11:9",
       "spaces.0.ranks", "found rank 0 after rank 1, allowed: ascending, each once"},
      {"no ranks", "[[spaces]]\nname = \"d\"\nranks = []\n", "job.toml:11:9", "spaces.0.ranks",
       "found no rank"},
      {"scale of nothing", "[[spaces]]\nname = \"d\"\nlr_scale = 2\n[optimizer]\nlr = 0\n",
       "job.toml:11:12", "spaces.0.lr_scale", "optimizer.lr is 0, which no scale changes"},
      {"scale that overflows",
       "[[spaces]]\nname = \"d\"\nlr_scale = 1e30\n[optimizer]\nlr = 1e30\n", "job.toml:11:12",
       "spaces.0.lr_scale", "is above 1e+38"},
      {"denormal eps", "[optimizer]\neps = 1e-50\n", "job.toml:10:7", "optimizer.eps",
       "from 1e-45 to 1e+38"},
      {"rank in no space", "[[spaces]]\nname = \"d\"\nranks = [1]\n", "job.toml:9:1", "spaces",
       "rank 0 is in no space"},
      {"empty space", "[[spaces]]\nname = \"d\"\n[[spaces]]\nname = \"e\"\n", "job.toml:12:8",
       "spaces.1.name", "no parameter is in space 'e'"},
  };
  for (const Case& c : cases) expect_refused(c);
}

TEST(ConfigRules, RefuseNumaNodesThatAreNotOneARank) {
  const Parsed parsed = parse_whole("", {"ranks.numa=[0,1,0]"});
  ASSERT_EQ(parsed.errors.size(), 1u) << parsed.text;
  EXPECT_EQ(parsed.errors[0].key, "ranks.numa");
  EXPECT_NE(parsed.errors[0].text.find("found 3 nodes, allowed: one for each of the 2 ranks"),
            std::string::npos)
      << parsed.text;
  EXPECT_TRUE(parse_whole("", {}).config.numa_auto);
  EXPECT_FALSE(parse_whole("", {"ranks.numa=off"}).config.numa_auto);
  const Parsed named = parse_whole("", {"ranks.numa=[1,-1]"});
  EXPECT_FALSE(named.config.numa_auto);
  EXPECT_EQ(named.config.numa_nodes, (std::vector<int64_t>{1, -1}));
}

TEST(ConfigRules, RefuseTwoSpacesOfOneName) {
  const Parsed parsed = parse_whole("[[spaces]]\nname = \"d\"\n[[spaces]]\nname = \"d\"\n");
  ASSERT_EQ(parsed.errors.size(), 1u) << parsed.text;
  EXPECT_EQ(parsed.text, "job.toml:12:8: spaces.1.name: there is a space 'd' already");
}

TEST(ConfigRules, RefuseJobNamesThatNameNoDirectory) {
  for (const char* name :
       {"", "a/b", "-a", "a b", "a234567890123456789012345678901234567890123456789"}) {
    const Parsed parsed = parse_whole("", {"job.name=\"" + std::string(name) + "\""});
    ASSERT_EQ(parsed.errors.size(), 1u) << name;
    EXPECT_EQ(parsed.errors[0].key, "job.name") << name;
    EXPECT_TRUE(parsed.errors[0].place.starts_with("--set job.name=")) << parsed.text;
  }
}

TEST(ConfigRules, RefuseTheCudaDeviceInWordsWhereItIsNotBuiltIn) {
  const Parsed parsed = parse_whole("", {"ranks.device=cuda"});
  EXPECT_EQ(parsed.ok, cuda_is_built_in());
  if (!parsed.ok) {
    EXPECT_NE(parsed.text.find("this build has no CUDA device"), std::string::npos);
  }
}

TEST(ConfigRules, KeepShardsDurableOnTheCpuAndLeaveTheChoiceOnCuda) {
  EXPECT_TRUE(parse_whole("").config.gradients.durable);
  EXPECT_TRUE(parse_whole("", {"gradients.durable=true"}).ok);
  const Parsed parsed = parse_whole("durable = false\n");
  ASSERT_EQ(parsed.errors.size(), 1u) << parsed.text;
  EXPECT_EQ(parsed.errors[0].key, "gradients.durable");
  EXPECT_EQ(parsed.errors[0].place, "job.toml:9:11");
  // Bound whether or not this build would run it.
  EXPECT_FALSE(parse_whole("", {"ranks.device=cuda"}).config.gradients.durable);
  EXPECT_TRUE(parse_whole("durable = true\n", {"ranks.device=cuda"}).config.gradients.durable);
  EXPECT_EQ(parse_whole("durable = false\n", {"ranks.device=cuda"}).ok, cuda_is_built_in());
}

TEST(ConfigRules, RefuseReplayWithoutPathOrStep) {
  const Parsed none = parse_whole("", {"gradients.source=replay"});
  ASSERT_EQ(none.errors.size(), 1u) << none.text;
  EXPECT_EQ(none.errors[0].place, "job.toml:7:1");
  EXPECT_NE(none.text.find("gradients.replay_path: missing"), std::string::npos);
  const Parsed one = parse_whole("replay_path = \"g\"\n", {"gradients.source=replay"});
  ASSERT_EQ(one.errors.size(), 1u) << one.text;
  EXPECT_EQ(one.errors[0].place, "job.toml:9:15");
  EXPECT_TRUE(parse_whole("replay_path = \"g\"\n", {"gradients.source=replay", "job.steps=1"}).ok);
}

TEST(ConfigRules, RefuseNonfiniteStepsOfGradientsThatAreNotSynthetic) {
  const Parsed parsed = parse_whole("nonfinite_steps = [3]\n", {"gradients.source=trainer"});
  ASSERT_EQ(parsed.errors.size(), 1u) << parsed.text;
  EXPECT_EQ(parsed.errors[0].place, "job.toml:9:19");
}

TEST(ConfigRules, RefuseATrainerWithoutAProgramOrWithABadVariable) {
  const Parsed program = parse_whole("[trainer]\ncommand = [\"\"]\n", {"gradients.source=trainer"});
  EXPECT_EQ(program.text, "job.toml:10:11: trainer.command: the first word, the program, is empty");
  const Parsed variable =
      parse_whole("[trainer]\ncommand = [\"x\"]\nenvironment = { \"A=B\" = \"1\" }\n",
                  {"gradients.source=trainer"});
  ASSERT_EQ(variable.errors.size(), 1u) << variable.text;
  EXPECT_EQ(variable.errors[0].key, "trainer.environment.A=B");
}

// kWholeJob with a tensor table of one line, line 6, in place of model.elements.
Parsed parse_table(const std::string& rows, const std::string& added = "") {
  std::string text = kWholeJob;
  text.replace(text.find("elements = 1000"), 15, "parameters = [ " + rows + " ]");
  return parse_text(text + added);
}

TEST(ConfigRules, RefuseAModelThatIsEmptyOrGivenTwice) {
  const Parsed empty = parse_text("[job]\nname = \"a\"\nsteps = 1\n[ranks]\nworld_size = 1\n");
  ASSERT_EQ(empty.errors.size(), 1u) << empty.text;
  EXPECT_EQ(empty.text,
            "job.toml:1:1: model.parameters: the model is empty: give [[model.parameters]], "
            "model.elements or model.source");
  EXPECT_EQ(parse_table("").errors[0].place, "job.toml:6:14");
  const Parsed twice = parse_whole("[[model.parameters]]\nname = \"w\"\nshape = [1]\n");
  ASSERT_EQ(twice.errors.size(), 1u) << twice.text;
  EXPECT_EQ(twice.errors[0].place, "job.toml:6:12");
  const Parsed source = parse_whole("", {"model.source=m.safetensors"});
  ASSERT_EQ(source.errors.size(), 1u) << source.text;
  EXPECT_EQ(source.errors[0].key, "model.elements");
}

TEST(ConfigRules, RefuseParametersThatCannotBe) {
  const struct {
    const char* row;
    const char* place;
    const char* key;
    const char* words;
  } cases[] = {
      {"{ name = \"\", shape = [1] }", "job.toml:6:25", "model.parameters.0.name",
       "found 0 bytes, allowed: 1 to 191"},
      {"{ name = \"w\", shape = [1,1,1,1,1,1,1,1,1] }", "job.toml:6:38", "model.parameters.0.shape",
       "found 9 dimensions, allowed: at most 8"},
      {"{ name = \"w\", shape = [1048576, 1048576, 1048576] }", "job.toml:6:38",
       "model.parameters.0.shape", "above 2^46"},
      {"{ name = \"w\", shape = [1], space = \"dens\" }", "job.toml:6:51",
       "model.parameters.0.space", "there are: dense; did you mean 'dense'?"},
      {"{ name = \"w\", shape = [1], init = \"ones\", std = 1 }", "job.toml:6:64",
       "model.parameters.0.std", "std belongs to init = \"normal\""},
      {"{ name = \"w\", shape = [1] }, { name = \"w\", shape = [2] }", "job.toml:6:54",
       "model.parameters.1.name", "space 'dense' has a parameter 'w' already"},
  };
  for (const auto& c : cases) {
    const Parsed parsed = parse_table(c.row);
    ASSERT_EQ(parsed.errors.size(), 1u) << c.row << "\n" << parsed.text;
    EXPECT_EQ(parsed.errors[0].place, c.place) << c.row;
    EXPECT_EQ(parsed.errors[0].key, c.key) << c.row;
    EXPECT_NE(parsed.errors[0].text.find(c.words), std::string::npos) << parsed.text;
  }
}

// What only the whole plan shows, at the place of the key that makes it so.
TEST(ConfigRules, RefuseAtItsPlaceWhatNoPlanCanBeMadeOf) {
  const Case cases[] = {
      {"kill in a skipped step",
       "nonfinite_steps = [3]\n[[rehearse]]\nrole = \"host_store\"\nstep = 3\n", "job.toml:12:8",
       "rehearse.0.step", "a skipped one: no window of it reaches copy_out"},
      {"chunks", "[offload]\nchunk_size_mb = 0.0001\n[[spaces]]\nname = \"d\"\n", "job.toml:10:17",
       "offload.chunk_size_mb", "allowed: at most 4194304; raise it"},
  };
  expect_refused(cases[0]);
  expect_refused(cases[1], {"model.elements=10000000000000"});
  const Parsed set =
      parse_whole("", {"model.elements=10000000000000", "offload.chunk_size_mb=0.0001"});
  ASSERT_EQ(set.errors.size(), 1u) << set.text;
  EXPECT_EQ(set.errors[0].place, "--set offload.chunk_size_mb=0.0001");
  const Parsed fallback = parse_whole("", {"model.elements=70000000000000"});
  ASSERT_EQ(fallback.errors.size(), 1u) << "the key's default does it: " << fallback.text;
  EXPECT_EQ(fallback.errors[0].place, "job.toml:1:1");
}

TEST(ConfigRules, AllowInASkippedStepOnlyKillsAtMomentsThatItHas) {
  for (const auto& [phase, ok] : {std::pair{"before_lease", false},
                                  {"copy_in", false},
                                  {"update", false},
                                  {"copy_out", false},
                                  {"before_commit", false},
                                  {"after_commit", false},
                                  {"prepared", true},
                                  {"answered", true},
                                  {"between_steps", true}}) {
    const Parsed parsed = parse_whole(
        "nonfinite_steps = [3]\n[[rehearse]]\nrole = \"gpu_actor\"\nstep = 3\nphase = \"" +
        std::string(phase) + "\"\n");
    EXPECT_EQ(parsed.ok, ok) << phase << parsed.text;
  }
}

TEST(ConfigRules, RefuseAKillAtARankThatStreamsNothing) {
  const std::string kill = "[[rehearse]]\nrole = \"host_store\"\nstep = 2\nat_rank = 1\n";
  const Parsed parsed = parse_whole(kill, {"model.elements=10"});
  ASSERT_EQ(parsed.errors.size(), 1u) << parsed.text;
  EXPECT_EQ(parsed.errors[0].place, "job.toml:12:11");
  EXPECT_EQ(parsed.errors[0].key, "rehearse.0.at_rank");
  EXPECT_TRUE(parse_whole(kill + "phase = \"between_steps\"\n", {"model.elements=10"}).ok);
}

TEST(ConfigRules, RefuseSpacesThatTogetherMakeTooManyGroups) {
  std::string rows, spaces;
  for (int s = 0; s < 9; ++s) {
    const std::string name = "s" + std::to_string(s);
    rows += format("{ name = \"w\", shape = [64], space = \"%s\" }, ", name.c_str());
    spaces += format("[[spaces]]\nname = \"%s\"\nlr_scale = %d\n", name.c_str(), s + 1);
  }
  const Parsed by_scale = parse_table(rows, spaces);
  ASSERT_EQ(by_scale.errors.size(), 1u) << by_scale.text;
  EXPECT_EQ(by_scale.errors[0].place, "job.toml:35:12");  // line 9, three lines a space, its last
  EXPECT_EQ(by_scale.errors[0].key, "spaces.8.lr_scale");
  EXPECT_NE(by_scale.text.find("9 different hyper-parameter groups, allowed: at most 8"),
            std::string::npos);
}

TEST(ConfigRules, RefuseSpacesThatAreEmptyOrTooLarge) {
  const Parsed empty = parse_table("{ name = \"w\", shape = [0, 5] }");
  ASSERT_EQ(empty.errors.size(), 1u) << empty.text;
  EXPECT_EQ(empty.errors[0].place, "job.toml:6:38");
  EXPECT_EQ(empty.errors[0].key, "model.parameters.0.shape");
  const Parsed large =
      parse_table("{ name = \"v\", shape = [1] }, { name = \"w\", shape = [8388608, 8388608] }");
  ASSERT_EQ(large.errors.size(), 1u) << large.text;
  EXPECT_EQ(large.errors[0].place, "job.toml:6:67");
  EXPECT_NE(large.text.find("space 'dense' has more than 2^46 elements"), std::string::npos);
}

TEST(ConfigRules, AllowOneNameInTwoSpaces) {
  const Parsed parsed = parse_table(
      "{ name = \"w\", shape = [1], space = \"a\" }, { name = \"w\", shape = [2], space = \"b\" }",
      "[[spaces]]\nname = \"a\"\nranks = [0]\n[[spaces]]\nname = \"b\"\nranks = [1]\n");
  EXPECT_TRUE(parsed.ok) << parsed.text;
}

TEST(ConfigRules, RefuseFirstValuesBesideASource) {
  std::string text = kWholeJob;
  text.replace(text.find("elements = 1000"), 15,
               "source = \"m\"\nparameters = [{ name = \"w\", shape = [1], init = \"ones\" }]");
  const Parsed parsed = parse_text(text);
  ASSERT_EQ(parsed.errors.size(), 1u) << parsed.text;
  EXPECT_EQ(parsed.errors[0].key, "model.parameters.0.init");
  EXPECT_TRUE(parsed.errors[0].place.starts_with("job.toml:7:")) << parsed.text;
}

TEST(ConfigRules, RefuseSeveralSpacesWhoseSharesOfASourceAreNotSaid) {
  const Parsed parsed = parse_text(
      "[job]\nname = \"a\"\nsteps = 1\n[ranks]\nworld_size = 1\n[model]\nsource = \"m\"\n"
      "[[spaces]]\nname = \"x\"\n[[spaces]]\nname = \"y\"\n");
  ASSERT_EQ(parsed.errors.size(), 2u) << parsed.text;
  EXPECT_EQ(parsed.errors[0].place, "job.toml:9:8");
  EXPECT_EQ(parsed.errors[1].place, "job.toml:11:8");
}

TEST(ConfigRules, ReportRulesOfOtherSectionsBesideWrongValues) {
  const Parsed parsed = parse_whole("[restart]\nbackoff_ms = 3000\n[optimizer]\nlr = \"x\"\n");
  EXPECT_EQ(parsed.errors.size(), 2u) << parsed.text;
}

TEST(ConfigRules, TakePathsRelativeToTheFile) {
  std::string text = kWholeJob;
  text.replace(text.find("elements = 1000"), 15, "source = \"../models/m\"");
  EXPECT_EQ(parse_text(text).config.model_source, "/models/m");
  EXPECT_EQ(parse_text(text, {"model.source=/x/m"}).config.model_source, "/x/m");
}

TEST(ConfigRules, AnIntegerForTheParametersIsAPlainShape) {
  std::string job = kWholeJob;
  job.replace(job.find("elements"), std::string("elements").size(), "parameters");
  for (const Parsed& parsed : {parse_text(job), parse_whole("", {"model.parameters=1000"}),
                               parse_text(job, {"model.elements=1000"})}) {
    ASSERT_TRUE(parsed.ok) << parsed.text;
    ASSERT_EQ(parsed.config.parameters.size(), 1u);
    EXPECT_EQ(parsed.config.parameters[0].shape, std::vector<uint64_t>{1000});
  }
  job.replace(job.find("parameters"), 0, "elements = 5\n");
  EXPECT_NE(parse_text(job).text.find("found the integer 1000"), std::string::npos);
}

TEST(ConfigRules, ANumberThatIsTooSmallToBeWhatItSaysIsRefusedAndZeroIsNot) {
  const Parsed tiny = parse_whole("[optimizer]\n# \u00e9\nlr = 1e-400\n");
  EXPECT_EQ(tiny.text.find("job.toml:11:6: optimizer.lr: found a number other than 0 that is too "
                           "small to be told from 0, allowed: "),
            0u)
      << tiny.text;
  const Parsed inner = parse_whole("[optimizer]\nlr = 0.0e-9\nbetas = [0.0, 1_0e-400]\n");
  EXPECT_EQ(inner.errors.size(), 1u) << inner.text;
  EXPECT_NE(inner.text.find("optimizer.betas: found a number other than 0"), std::string::npos)
      << inner.text;
  const Parsed wide = parse_whole(
      "", {"model.parameters=[{ name = \"\u00e9\u00e9\", shape = [0, 4], std = 1e-400 }]"});
  EXPECT_NE(wide.text.find("std: found a number other than 0"), std::string::npos) << wide.text;
  const Parsed set = parse_whole("", {"optimizer.eps=1e-400"});
  EXPECT_NE(set.text.find("--set optimizer.eps=1e-400: optimizer.eps: found a number other than 0"),
            std::string::npos)
      << set.text;
  const Parsed chunk = parse_whole("[offload]\nchunk_size_mb = 1e-300\n");
  EXPECT_NE(chunk.text.find("job.toml:10:17: offload.chunk_size_mb: found the number 1e-300, which "
                            "is kept as 0; the least above 0 is 9.53674e-07"),
            std::string::npos)
      << chunk.text;
  for (const char* key : {"offload.in_flight_mb", "offload.fraction", "restart.period_s"}) {
    EXPECT_NE(parse_whole("", {std::string(key) + "=1e-300"}).text.find("which is kept as 0"),
              std::string::npos)
        << key;
  }
  for (const char* zero :
       {"optimizer.lr=0.0", "optimizer.lr=-0.0", "optimizer.lr=0", "optimizer.lr=0.000e-400",
        "optimizer.lr=1e-300", "offload.chunk_size_mb=0.0", "offload.chunk_size_mb=0",
        "offload.in_flight_mb=0", "restart.period_s=0.001"}) {
    EXPECT_TRUE(parse_whole("", {zero}).ok) << zero << "\n" << parse_whole("", {zero}).text;
  }
}

// What reads them afterwards would end there, and use another name.
TEST(ConfigRules, AZeroByteIsAllowedInNoStringAndNoKey) {
  const std::string added =
      "[trainer]\ncommand = [\"a\", \"b\\u0000c\"]\n"
      "environment = { FOO = \"y\\u0000z\", \"B\\u0000C\" = \"x\" }\n";
  const std::string text = parse_whole(added).text;
  EXPECT_NE(text.find("job.toml:10:17: trainer.command: found a string with a zero byte"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("trainer.environment.FOO: found a string with"), std::string::npos) << text;
  EXPECT_NE(text.find("trainer.environment.B: found a key with"), std::string::npos) << text;
  EXPECT_FALSE(parse_whole("", {"model.source=\"m\\u0000x\""}).ok);
}

// The plan is JSON: its strings are UTF-8.
TEST(ConfigRules, AFolderWithoutUtf8IsRefusedWhereItIsPutIn) {
  const auto is_refused = [](const std::string& folder, const std::string& word) {
    Parsed parsed;
    const std::string set = "trainer.command=[\"" + word + "\"]";
    parse_config(kWholeJob, "job.toml", folder, {set}, &parsed.config, &parsed.errors);
    return text_of(parsed.errors).find("a name that is no UTF-8") != std::string::npos;
  };
  for (const char* folder : {"/j\xff", "/j\xc3", "/j\xed\xa0\x80", "/j\xc0\xaf"}) {
    EXPECT_TRUE(is_refused(folder, "{config_dir}/t")) << folder;
    EXPECT_FALSE(is_refused(folder, "t")) << folder;
  }
  EXPECT_FALSE(is_refused("/j\xc3\xa9\xf0\x9f\x98\x80", "{config_dir}/t"));
}

}  // namespace
}  // namespace optlease
