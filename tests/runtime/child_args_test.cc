#include "actors/runtime/child_args.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/support/test_seed.h"

namespace optlease {
namespace {

const ChildProgram kActor{"optlease-gpu-actor", "Updates one rank", true};
const ChildProgram kStore{"optlease-host-store", "Owns the state", false};

ChildArgsOutcome parse_words(const ChildProgram& program, const std::vector<std::string>& words) {
  std::vector<const char*> argv;
  for (const std::string& word : words) argv.push_back(word.c_str());
  return parse_child_args(program, static_cast<int>(argv.size()), argv.data());
}

void expect_usage(const ChildProgram& program, std::vector<std::string> words) {
  words.insert(words.begin(), "program");
  const ChildArgsOutcome outcome = parse_words(program, words);
  EXPECT_FALSE(outcome.args.has_value());
  EXPECT_EQ(outcome.exit_code, ExitCode::kUsage);
  EXPECT_NE(outcome.text.find("--help"), std::string::npos) << outcome.text;
}

TEST(ChildArgs, WhatTheLauncherBuildsTheChildReads) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 500; ++round) {
    ChildArgs args;
    args.job = "job-" + std::to_string(random() % 100);
    const ChildProgram& program = random() % 2 == 0 ? kActor : kStore;
    if (program.has_rank) args.rank = static_cast<uint32_t>(random() % 1024);
    if (random() % 2 == 0) args.incarnation = 1 + (random() >> 1);
    if (random() % 2 == 0) args.lifeline_fd = static_cast<int>(random() % 1000);
    if (program.has_rank && random() % 2 == 0) args.death_page_fd = static_cast<int>(random() % 9);
    args.create = !program.has_rank && random() % 2 == 0;
    args.all_older_reaped = !program.has_rank && random() % 2 == 0;
    for (uint64_t i = random() % 4; i > 0; --i) {
      args.rehearsals.push_back(static_cast<uint32_t>(random()));
    }
    args.log_level = static_cast<LogLevel>(random() % 4);
    const ChildArgsOutcome outcome = parse_words(program, to_argv("/bin/x", program, args));
    ASSERT_TRUE(outcome.args.has_value()) << outcome.text;
    ASSERT_EQ(*outcome.args, args);
  }
}

TEST(ChildArgs, DefaultsAreNotSpelledOut) {
  ChildArgs args;
  args.job = "job";
  EXPECT_EQ(to_argv("x", kStore, args), (std::vector<std::string>{"x", "--job", "job"}));
}

TEST(ChildArgs, HelpIsNoError) {
  const ChildArgsOutcome outcome = parse_words(kActor, {"program", "--help"});
  EXPECT_FALSE(outcome.args.has_value());
  EXPECT_EQ(outcome.exit_code, ExitCode::kOk);
  for (const char* part : {"Updates one rank", "--job", "--rank", "--incarnation", "--lifeline-fd",
                           "--rehearsal", "--log-level"}) {
    EXPECT_NE(outcome.text.find(part), std::string::npos) << part;
  }
  const std::string store = parse_words(kStore, {"program", "--help"}).text;
  for (const char* part : {"--create", "--all-older-reaped"}) {
    EXPECT_NE(store.find(part), std::string::npos) << part;
    EXPECT_EQ(outcome.text.find(part), std::string::npos) << part << " is the host store's";
  }
}

TEST(ChildArgs, WrongUsageIsSaidWithTheUsageCode) {
  expect_usage(kActor, {});
  expect_usage(kActor, {"--job", "j"});   // no rank
  expect_usage(kActor, {"--rank", "0"});  // no job
  expect_usage(kActor, {"--job", "j", "--rank", "-1"});
  expect_usage(kActor, {"--job", "j", "--rank", "1024"});
  expect_usage(kActor, {"--job", "j", "--rank", "0", "--incarnation", "0"});
  expect_usage(kActor, {"--job", "j", "--rank", "0", "--log-level", "loud"});
  expect_usage(kActor, {"--job", "j", "--rank", "0", "--rehearsal", "x"});
  expect_usage(kActor, {"--job", "j", "--rank", "0", "--unknown"});
  expect_usage(kActor, {"--job", "j", "--rank", "0", "stray"});
  expect_usage(kStore, {"--job", "j", "--rank", "0"});              // a store has none
  expect_usage(kActor, {"--job", "j", "--rank", "0", "--create"});  // an actor makes no segments
}

TEST(ExitCodes, AreSmallDistinctAndNamed) {
  EXPECT_EQ(all_exit_codes().size(), 19u);
  EXPECT_EQ(all_exit_codes().front(), ExitCode::kOk);
  std::vector<std::string> names;
  for (const ExitCode code : all_exit_codes()) {
    EXPECT_LT(static_cast<int>(code), 64);
    EXPECT_STRNE(meaning_of(code), "?");
    for (const std::string& other : names) EXPECT_NE(other, name_of(code));
    names.emplace_back(name_of(code));
  }
  EXPECT_STREQ(name_of(static_cast<ExitCode>(63)), "?");
}

TEST(ExitCodes, FollowFromAStatus) {
  EXPECT_EQ(exit_code_for(Status::ok()), ExitCode::kOk);
  EXPECT_EQ(exit_code_for(Status(StatusCode::kNoSpace, "")), ExitCode::kNoResources);
  EXPECT_EQ(exit_code_for(Status(StatusCode::kStaleIncarnation, "")), ExitCode::kReplaced);
  EXPECT_EQ(exit_code_for(Status(StatusCode::kCorrupt, "")), ExitCode::kCorruptState);
  for (uint16_t code = 1; code <= static_cast<uint16_t>(StatusCode::kInternal); ++code) {
    EXPECT_NE(exit_code_for(Status(static_cast<StatusCode>(code), "")), ExitCode::kOk);
  }
}

TEST(ExitCodes, ARestartIsTriedOnlyWhereItCanHelp) {
  EXPECT_TRUE(restart_can_help(ExitCode::kInternal));
  EXPECT_TRUE(restart_can_help(ExitCode::kTimeout));
  EXPECT_FALSE(restart_can_help(ExitCode::kReplaced));
  EXPECT_FALSE(restart_can_help(ExitCode::kCorruptState));
  EXPECT_FALSE(restart_can_help(ExitCode::kOk));
}

}  // namespace
}  // namespace optlease
