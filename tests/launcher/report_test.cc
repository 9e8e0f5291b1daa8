#include "launcher/report.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <nlohmann/json.hpp>

namespace optlease {
namespace {

using nlohmann::json;

RunReport good() {
  RunReport report;
  report.job = "j";
  report.device = "cpu";
  report.world_size = 1;
  report.ending = Ending::kCompleted;
  report.exit_code = ExitCode::kOk;
  report.steps_wanted = 5;
  report.steps_committed = 5;
  report.planned_memory_bytes = 1000;
  report.planned_shm_bytes = 500;
  report.real_shm_bytes = 500;
  report.state_digest = "abc";
  report.run_directory_removed = true;
  RankReport rank;
  rank.telemetry_heard = true;
  rank.staging_known = true;
  rank.bytes_h2d = 700;
  rank.bytes_d2h = 300;
  rank.staging_peak_bytes = 10;
  rank.staging_budget_bytes = 10;
  report.ranks = {rank};
  return report;
}

bool check_of(const RunReport& report, const std::string& name) {
  for (const ReportCheck& check : checks_of(report)) {
    if (check.name == name) return check.passed.value_or(false);
  }
  ADD_FAILURE() << "no check " << name;
  return false;
}

DeathRecord death(DeathCause cause, std::optional<ExitInfo> exit) {
  DeathRecord out;
  out.seat = {Role::kGpuActor, 0};
  out.cause = cause;
  out.exit = exit;
  out.restart_ms = 20;
  out.recovery_ms = 300;
  out.reap_ms = 250;
  out.sign = DeathSign::kDeathPage;
  return out;
}

TEST(Report, AGoodRunPasses) {
  const json out = json::parse(to_json(good()));
  EXPECT_EQ(out["status"], "passed");
  for (const char* key :
       {"job", "ranks", "world_size", "device", "steps_committed", "steps_skipped", "loss_curve",
        "step_seconds", "restarts", "restarts_by_role", "restarts_by_cause", "traffic",
        "peak_staging_bytes", "memory", "state_digest", "segments", "clean_up", "rehearsals",
        "checks"}) {
    EXPECT_TRUE(out.contains(key)) << key;
  }
}

TEST(Report, AMisplacedArenaIsSaidWithNumbersAndFailsNothing) {
  RunReport report = good();
  EXPECT_TRUE(json::parse(to_json(report))["ranks"][0]["numa"].is_null());
  RankReport& rank = report.ranks[0];
  rank.numa_node = 1;
  rank.numa_pages = 64;
  rank.numa_text = "all 64 sampled pages are on NUMA node 1";
  EXPECT_EQ(summary_text(report).find("NUMA"), std::string::npos);
  rank.numa_pages_elsewhere = 5;
  rank.numa_text = "5 of 64 sampled pages are not on NUMA node 1";
  EXPECT_NE(summary_text(report).find("warning: the arena of rank 0: 5 of 64"), std::string::npos);
  const json out = json::parse(to_json(report));
  EXPECT_EQ(out["status"], "passed");
  EXPECT_EQ(out["ranks"][0]["numa"]["node"], 1);
  EXPECT_EQ(out["ranks"][0]["numa"]["pages_elsewhere"], 5);
}

TEST(Report, EveryCheckCanFail) {
  const auto spoiled = [](auto spoil) {
    RunReport report = good();
    spoil(report);
    return report;
  };
  EXPECT_FALSE(check_of(spoiled([](auto& r) { r.exit_code = ExitCode::kCrashLoop; }), "exit_zero"));
  EXPECT_FALSE(check_of(spoiled([](auto& r) { r.steps_committed = 4; }), "all_steps_committed"));
  EXPECT_FALSE(check_of(spoiled([](auto& r) { r.state_digest = ""; }), "digest_computed"));
  EXPECT_FALSE(check_of(spoiled([](auto& r) { r.ranks[0].staging_peak_bytes = 11; }),
                        "staging_within_budget"));
  EXPECT_FALSE(
      check_of(spoiled([](auto& r) { r.ranks[0].pin_refused_bytes = 1; }), "host_memory_pinned"));
  EXPECT_FALSE(
      check_of(spoiled([](auto& r) { r.real_shm_bytes = 501; }), "host_bytes_within_contract"));
  EXPECT_FALSE(
      check_of(spoiled([](auto& r) { r.real_process_bytes = 501; }), "host_bytes_within_contract"));
  EXPECT_FALSE(
      check_of(spoiled([](auto& r) { r.real_buffer_bytes = 501; }), "host_bytes_within_contract"));
  EXPECT_TRUE(check_of(spoiled([](auto& r) { r.real_device_buffer_bytes = 1u << 30; }),
                       "host_bytes_within_contract"))
      << "a GPU's memory is not the host's";
  EXPECT_FALSE(check_of(spoiled([](auto& r) { r.segments_left = {"/x"}; }), "no_segments_left"));
  EXPECT_FALSE(check_of(spoiled([](auto& r) { r.clean_up_error = "no"; }), "no_segments_left"));
  EXPECT_FALSE(
      check_of(spoiled([](auto& r) { r.run_directory_removed = false; }), "run_directory_removed"));
  EXPECT_FALSE(check_of(spoiled([](auto& r) { r.unreaped = {"x"}; }), "no_processes_left"));
  EXPECT_FALSE(check_of(spoiled([](auto& r) { r.rehearsals_wanted = 1; }), "all_rehearsals_done"));
  EXPECT_FALSE(check_of(spoiled([](auto& r) {
                          r.deaths = {death(DeathCause::kOwn, ExitInfo{true, SIGSEGV})};
                        }),
                        "no_unexpected_restarts"));
  EXPECT_FALSE(check_of(spoiled([](auto& r) {
                          r.deaths = {death(DeathCause::kHeartbeat, ExitInfo{true, SIGKILL})};
                        }),
                        "no_unexpected_restarts"));
}

// What a shell and what a reader of the report are told is the same.
TEST(Report, ItPassesWhereTheExitCodeIsZeroAndNowhereElse) {
  const auto settled = [](auto spoil) {
    RunReport report = good();
    spoil(report);
    settle_exit_code(&report);
    const bool passes = json::parse(to_json(report))["status"] == "passed";
    EXPECT_EQ(passes, report.exit_code == ExitCode::kOk) << summary_text(report);
    return report;
  };
  EXPECT_EQ(settled([](auto&) {}).exit_code, ExitCode::kOk);
  const RunReport spent = settled([](auto& r) { r.ranks[0].staging_peak_bytes = 11; });
  EXPECT_EQ(spent.exit_code, ExitCode::kInternal);
  EXPECT_NE(spent.ending_text.find("check failed: staging_within_budget"), std::string::npos)
      << spent.ending_text;
  EXPECT_EQ(settled([](auto& r) { r.segments_left = {"/x"}; }).exit_code, ExitCode::kInternal);
  EXPECT_EQ(settled([](auto& r) { r.rehearsals_wanted = 1; }).exit_code, ExitCode::kInternal);
  EXPECT_EQ(settled([](auto& r) {
              r.exit_code = ExitCode::kCrashLoop;
              r.unreaped = {"x"};
            }).exit_code,
            ExitCode::kCrashLoop)
      << "what ended it says more than a check";
}

TEST(Report, AFailureThatWasSurvivedIsToldAndFailsNothing) {
  RunReport report = good();
  report.deaths = {death(DeathCause::kOwn, ExitInfo{true, SIGSEGV})};
  settle_exit_code(&report);
  EXPECT_EQ(report.exit_code, ExitCode::kOk);
  EXPECT_FALSE(passed(checks_of(report))) << "the bench wants none at all";
  const json out = json::parse(to_json(report));
  EXPECT_EQ(out["status"], "passed");
  for (const json& check : out["checks"]) {
    const bool survived = check["name"] == "no_unexpected_restarts";
    EXPECT_EQ(check["counts"], !survived && check["name"] != "host_memory_pinned") << check;
    EXPECT_EQ(check["passed"], !survived) << check;
  }
  EXPECT_NE(summary_text(report).find("warning: no_unexpected_restarts: 1 processes failed"),
            std::string::npos)
      << summary_text(report);
}

const ReportCheck* find_check(const std::vector<ReportCheck>& checks, const std::string& name) {
  for (const ReportCheck& check : checks) {
    if (check.name == name) return &check;
  }
  return nullptr;
}

TEST(Report, WhatWasNotMeasuredIsNullWithAReasonAndFailsNothing) {
  RunReport report = good();
  report.ranks.push_back(report.ranks[0]);
  report.ranks[0].rank = 3;
  report.ranks[0].staging_known = false;
  const auto checks = checks_of(report);
  const ReportCheck* staging = find_check(checks, "staging_within_budget");
  ASSERT_NE(staging, nullptr);
  EXPECT_FALSE(staging->passed.has_value());
  EXPECT_NE(staging->detail.find("no actor of rank 3"), std::string::npos) << staging->detail;
  EXPECT_STREQ(verdict_of(report), "passed");
  EXPECT_TRUE(passed(checks));
  const json out = json::parse(to_json(report));
  for (const json& check : out["checks"]) {
    EXPECT_EQ(check["passed"].is_null(), check["name"] == "staging_within_budget") << check;
  }
  report.ranks[1].staging_peak_bytes = 11;
  EXPECT_STREQ(verdict_of(report), "failed") << "a breach counts beside what is not known";
}

TEST(Report, ARefusedRunPassesNoCheckThatNobodyMade) {
  RunReport report;
  report.exit_code = ExitCode::kBadConfiguration;
  const json out = json::parse(to_json(report));
  EXPECT_EQ(out["status"], "refused");
  ASSERT_EQ(out["checks"].size(), 1u) << out["checks"].dump(1);
  EXPECT_EQ(out["checks"][0]["name"], "exit_zero");
  EXPECT_EQ(out["checks"][0]["passed"], false);
}

TEST(Report, ARunDirectoryThatIsToStayIsNoFailure) {
  RunReport report = good();
  report.run_directory_removed.reset();
  report.run_directory_text = "kept for its logs: /run/j";
  const auto checks = checks_of(report);
  const ReportCheck* check = find_check(checks, "run_directory_removed");
  ASSERT_NE(check, nullptr);
  EXPECT_EQ(check->passed, true);
  EXPECT_EQ(check->detail, "kept for its logs: /run/j");
}

TEST(Report, SumsWhatAllRanksMoved) {
  RunReport report = good();
  report.ranks.push_back(report.ranks[0]);
  report.ranks[1].bytes_h2d = 1000;
  json out = json::parse(to_json(report));
  EXPECT_EQ(out["traffic"]["bytes_h2d"], 1700);
  EXPECT_EQ(out["traffic"]["bytes_d2h"], 600);
  EXPECT_EQ(out["traffic"]["bytes_are_exact"], true);
  EXPECT_NE(summary_text(report).find("copied 1.66 KiB to devices, 600 B back"), std::string::npos)
      << summary_text(report);
  report.ranks[1].bytes_are_exact = false;
  out = json::parse(to_json(report));
  EXPECT_EQ(out["traffic"]["bytes_are_exact"], false);
  EXPECT_EQ(out["ranks"][0]["bytes_are_exact"], true);
}

TEST(Report, CountsAsRestartsOnlyDeathsThatANewProcessFollowed) {
  RunReport report = good();
  EXPECT_NE(summary_text(report).find("0 restarts\n"), std::string::npos);
  report.deaths = {death(DeathCause::kOwn, ExitInfo{true, SIGKILL})};
  report.deaths[0].restart_ms.reset();
  json out = json::parse(to_json(report));
  EXPECT_EQ(out["restarts_by_role"]["gpu_actor"], 0);
  EXPECT_EQ(out["restarts_by_cause"]["crash"], 0);
  EXPECT_NE(summary_text(report).find("0 restarts of 1 death\n"), std::string::npos)
      << summary_text(report);
  report.deaths.push_back(death(DeathCause::kRehearsal, ExitInfo{true, SIGKILL}));
  report.deaths.push_back(death(DeathCause::kHeartbeat, ExitInfo{true, SIGKILL}));
  out = json::parse(to_json(report));
  EXPECT_EQ(out["restarts_by_cause"], json({{"crash", 0},
                                            {"rehearsal", 1},
                                            {"requested", 0},
                                            {"heartbeat_timeout", 1},
                                            {"start_timeout", 0}}));
  EXPECT_NE(summary_text(report).find("2 restarts of 3 deaths\n"), std::string::npos);
}

TEST(Report, NamesWhereAConfiguredKillStruck) {
  RunReport report = good();
  report.deaths = {death(DeathCause::kRehearsal, ExitInfo{true, SIGKILL}),
                   death(DeathCause::kOwn, ExitInfo{true, SIGKILL})};
  report.deaths[0].step_committed = 24;
  report.deaths[0].rehearsal = Rehearsal{Role::kGpuActor, 0, 25, RehearsePhase::kCopyOut, 1};
  const json out = json::parse(to_json(report));
  EXPECT_EQ(out["restarts"][0]["step_committed"], 24);
  EXPECT_EQ(out["restarts"][0]["rehearsal"],
            json({{"step", 25}, {"phase", "copy_out"}, {"at_rank", 1}}));
  EXPECT_TRUE(out["restarts"][1]["rehearsal"].is_null());
}

TEST(Report, SaysOfHowManyStepsItsPercentilesAre) {
  RunReport report = good();
  report.step_seconds = StepSeconds{1, 2, 3, 4, 77};
  EXPECT_EQ(json::parse(to_json(report))["step_seconds"]["steps_measured"], 77);
}

TEST(Report, WantedKillsAndKillsFromOutsideAreNoFailure) {
  RunReport report = good();
  report.deaths = {death(DeathCause::kRehearsal, ExitInfo{true, SIGKILL}),
                   death(DeathCause::kRequested, ExitInfo{true, SIGKILL}),
                   death(DeathCause::kOwn, ExitInfo{true, SIGKILL})};
  EXPECT_TRUE(passed(checks_of(report)));
  const json out = json::parse(to_json(report));
  EXPECT_EQ(out["restarts"].size(), 3u);
  EXPECT_EQ(out["restarts_by_role"]["gpu_actor"], 3);
  EXPECT_DOUBLE_EQ(out["restarts"][0]["recovery_seconds"].get<double>(), 0.3);
  EXPECT_EQ(out["restarts"][0]["cause"], "rehearsal");
  EXPECT_EQ(out["restarts"][0]["seen_by"], "death_page");
  EXPECT_DOUBLE_EQ(out["restarts"][0]["reap_seconds"].get<double>(), 0.25);
}

TEST(Report, TheVerdictTellsAWishFromAFailureAndFromARefusal) {
  RunReport report = good();
  EXPECT_STREQ(verdict_of(report), "passed");
  report.ending = Ending::kStopped;
  report.exit_code = ExitCode::kInterrupted;
  report.steps_committed = 3;
  report.rehearsals_wanted = 1;
  EXPECT_STREQ(verdict_of(report), "stopped");
  EXPECT_EQ(summary_text(report).find("check failed"), std::string::npos);
  EXPECT_NE(summary_text(report).find("the state was removed"), std::string::npos);
  report.unreaped = {"gpu_actor 0"};
  EXPECT_STREQ(verdict_of(report), "failed") << "stopped, but not well";
  report.unreaped.clear();
  report.exit_code = ExitCode::kCorruptState;
  EXPECT_STREQ(verdict_of(report), "failed");
  report.ending = Ending::kNone;
  report.exit_code = ExitCode::kAlreadyRunning;
  EXPECT_STREQ(verdict_of(report), "refused");
}

TEST(Report, TheLastLineOfProgressNamesTheLastCommittedStepAndItsTime) {
  RunReport report = good();
  report.steps_wanted = 9;
  report.steps_committed = 7;
  report.last_step_seconds = 0.0125;
  EXPECT_EQ(last_step_text(report), "ended at step 7 of 9, the last one committed, in 0.0125 s");
  report.last_step_seconds.reset();
  report.step_seconds = StepSeconds{0.5, 1, 2, 3, 9};
  EXPECT_EQ(last_step_text(report), "ended at step 7 of 9, the last one committed")
      << "a median is no time of the last step";
  report.steps_committed = kNoStep;
  EXPECT_EQ(last_step_text(report), "");
}

TEST(Report, AKeptStateIsNoLeftover) {
  RunReport report = good();
  report.state_kept = true;
  report.segments_left = {"/optlease.0.j.ctl"};
  EXPECT_TRUE(check_of(report, "no_segments_left"));
}

TEST(Report, TrainersMayEndEarly) {
  RunReport report = good();
  report.has_trainers = true;
  report.steps_committed = 3;
  EXPECT_TRUE(check_of(report, "all_steps_committed"));
  report.ending = Ending::kStopped;
  EXPECT_FALSE(check_of(report, "all_steps_committed"));
}

TEST(LossCurve, TheLastLineOfAStepWinsAndRanksAreAveraged) {
  const auto curve =
      loss_curve_of({"{\"step\":1,\"loss\":4}\n{\"step\":2,\"loss\":9}\n"
                     "{\"step\":2,\"loss\":3}\n{\"step\":3,\"lo",
                     "{\"step\":1,\"loss\":2.0}\nnoise\n[1]\n{\"step\":\"x\"}\n"});
  ASSERT_EQ(curve.size(), 2u);
  EXPECT_EQ(curve[0].step, 1);
  EXPECT_DOUBLE_EQ(curve[0].loss, 3.0);
  EXPECT_EQ(curve[0].ranks, 2u);
  EXPECT_DOUBLE_EQ(curve[1].loss, 3.0);
  EXPECT_EQ(curve[1].ranks, 1u);
}

TEST(Report, NumbersThatAreNoneBecomeNull) {
  RunReport report = good();
  report.ranks[0].grad_norm = std::nan("");
  report.loss_curve = {{1, std::nan(""), 1}};
  const json out = json::parse(to_json(report));
  EXPECT_TRUE(out["ranks"][0]["grad_norm"].is_null());
  EXPECT_TRUE(out["loss_curve"][0]["loss"].is_null());
}

}  // namespace
}  // namespace optlease
