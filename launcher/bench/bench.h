// `optlease bench`: what the streamed step reaches of what the link can do, in one run. First the
// floor (bench_floor.h), then a whole job with its store, leases and commits (run_job.h), then the
// floor again. Leaves no state. One call a process.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "actors/runtime/exit_code.h"
#include "actors/runtime/job_plan.h"
#include "launcher/bench/bench_figures.h"
#include "shm/contract/status.h"

namespace optlease {

struct BenchOptions {
  std::string config_path;             // empty: a built-in job of one rank
  std::vector<std::string> overrides;  // "section.key=value"; they come after the four below
  std::optional<uint64_t> parameters;
  std::optional<uint32_t> world_size;
  std::string device;  // empty: the file's; of the built-in job, cuda where there is a GPU
  uint64_t steps = 10;
  uint64_t warm_up = 2;
  uint64_t floor_ms = 500;  // each of three, before and after the job
  bool fresh = false;       // removes what a killed bench has left
  bool json = false;
};

// "4096", "512Mi", "4Gi", "10M": Ki, Mi, Gi, Ti are powers of 1024, K, M, G, T of 1000. Nothing
// where it is none of these, 0 or too large.
std::optional<uint64_t> parse_count(const std::string& text);

// The job that is measured: the file's or the built-in one, with gradients from a seed, no trainer,
// no kills and a name of its own, so that it never touches a job's own state. `has_gpu` decides
// where nobody has said.
Result<JobPlan> bench_plan(const BenchOptions& options, bool has_gpu);

// What one run gave.
struct BenchResult {
  JobPlan plan;
  uint64_t parameters = 0;
  std::vector<RankFloor> before, after;
  BenchFigures figures;
  double job_cpu_seconds = 0;  // of all its processes, start and end included
  std::string state_digest;
};
std::string bench_text(const BenchResult& result);
std::string bench_json(const BenchResult& result);

ExitCode run_bench(const BenchOptions& options);

}  // namespace optlease
