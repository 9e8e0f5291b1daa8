// What every role of gpu_collectives_test needs: its group, steps that compare with the reference,
// and an end that all reach together.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <string>
#include <vector>

#include "actors/gpu_actor/nccl_collectives.h"
#include "tests/gpu/collectives_roles.h"
#include "tests/gpu/gpu_support.h"
#include "tests/gpu/through_the_gpu.h"
#include "tests/gpu_actor/group_data.h"
#include "tests/gpu_actor/rank_processes.h"

namespace optlease {

inline constexpr uint64_t kTimeoutMs = 30000;
inline constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

inline std::unique_ptr<Collectives> make_group(const RankArgs& args,
                                               uint64_t scratch_bytes = 64u << 20) {
  int devices = 0;
  must(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
  NcclOptions options;
  options.group_directory = args.folder + "/group";
  options.device = static_cast<int>(args.rank) % devices;
  options.scratch_bytes_max = scratch_bytes;
  must(cudaSetDevice(options.device), "cudaSetDevice");
  Result<std::unique_ptr<Collectives>> made = make_nccl_collectives(options);
  RANK_REQUIRE(made.is_ok(), "%s", made.status().text().c_str());
  return std::move(made).value();
}

inline void require_connect(Collectives* group, const RankArgs& args, uint64_t epoch,
                            uint32_t world, uint64_t timeout_ms = kTimeoutMs) {
  const Status status = group->connect(epoch, Rank(args.rank), world, timeout_ms);
  RANK_REQUIRE(status.is_ok(), "rank %u: %s", args.rank, status.text().c_str());
}

inline ShardMap map_of(const std::vector<uint64_t>& sizes) {
  ShardMap map;
  uint64_t at = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    map.members.emplace_back(static_cast<uint32_t>(i));
    map.ranges.push_back({at, at + sizes[i]});
    at += sizes[i];
  }
  return map;
}

inline void require_step(Collectives* group, const ShardMap& map, Step step, uint32_t rank,
                         const std::vector<uint8_t>& needs, DType dtype) {
  ThroughTheGpu gpu(group, Rank(rank));
  std::string wrong = reduce_and_compare(&gpu, map, step, rank, needs, dtype);
  RANK_REQUIRE(wrong.empty(), "rank %u, step %lld, %s: %s", rank, static_cast<long long>(step),
               name_of(dtype), wrong.c_str());
  wrong = gather_and_compare(&gpu, map, step, rank, needs, dtype);
  RANK_REQUIRE(wrong.empty(), "rank %u, step %lld, %s: %s", rank, static_cast<long long>(step),
               name_of(dtype), wrong.c_str());
}

// Nobody leaves before all are through.
inline void meet(FileBoard* board, uint32_t rank, uint32_t world) {
  (*board)[kReport + static_cast<int>(rank)] = 1;
  for (uint32_t other = 0; other < world; ++other)
    RANK_REQUIRE(board->await(kReport + static_cast<int>(other), 1), "rank %u", other);
}

}  // namespace optlease
