// The examples of docs/CLIENT.md, compiled from the page, against a fake job.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>

#include "tests/client/fake_job.h"

namespace optlease {
namespace {

std::string run_program(const std::string& program, int* exit_status) {
  FILE* pipe = ::popen((program + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return "popen failed";
  std::string text;
  char part[512];
  while (const size_t got = std::fread(part, 1, sizeof part, pipe)) text.append(part, got);
  *exit_status = ::pclose(pipe);
  return text;
}

std::string run_example(int* exit_status) { return run_program(OPTLEASE_EXAMPLE, exit_status); }

// Plain gradient descent with rate 1/2: each step halves every parameter.
void halve(const StepRequestBody&, const std::vector<FakeSpace>& spaces) {
  auto* params = static_cast<float*>(spaces[0].params);
  const auto* grads = static_cast<const float*>(spaces[0].grads);
  for (uint64_t i = 0; i < spaces[0].elements; ++i) params[i] -= 0.5f * grads[i];
}

TEST(ClientExample, TrainsThroughCrashesAndCountsItsSteps) {
  JobPlan plan = three_space_plan("example");
  plan.steps = 6;
  FakeJob job(plan, 0, halve);
  ::setenv("OPTLEASE_JOB", "example", 1);
  ::setenv("OPTLEASE_RANK", "0", 1);
  auto* params = static_cast<float*>(job.spaces()[0].params);
  for (int i = 0; i < 17; ++i) params[i] = 64.0f;
  job.crash_on_step(true, 100);
  int exit_status = -1;
  EXPECT_EQ(run_example(&exit_status), "done at step 6, 6 steps seen\n");
  EXPECT_EQ(exit_status, 0);
  EXPECT_EQ(job.seen().steps_applied, 6u);  // and what its thread wrote is now to be read here
  for (int i = 0; i < 17; ++i) EXPECT_EQ(params[i], 1.0f);
  EXPECT_EQ(job.seen().step.keep_blob, 0u);
}

TEST(ClientExample, FindsItsRankUnderEachStarter) {
  FakeJob job(three_space_plan("rank"), 1, halve);
  ::setenv("OPTLEASE_JOB", "rank", 1);
  ::unsetenv("OPTLEASE_RANK");
  int exit_status = -1;
  EXPECT_NE(run_program(OPTLEASE_RANK_EXAMPLE, &exit_status).find("set OPTLEASE_RANK"),
            std::string::npos);
  EXPECT_NE(exit_status, 0);
  for (const char* name : {"OPTLEASE_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "RANK"}) {
    EXPECT_EQ(run_program("env " + std::string(name) + "=1 " + OPTLEASE_RANK_EXAMPLE, &exit_status),
              "rank 1 of 2\n")
        << name;
    EXPECT_EQ(exit_status, 0);
  }
}

TEST(ClientExample, SaysThatNoJobRuns) {
  ::setenv("OPTLEASE_JOB", "not-there", 1);
  ::setenv("OPTLEASE_RANK", "0", 1);
  int exit_status = 0;
  const std::string text = run_example(&exit_status);
  EXPECT_NE(exit_status, 0);
  EXPECT_NE(text.find("attach: job 'not-there' is not running"), std::string::npos) << text;
}

}  // namespace
}  // namespace optlease
