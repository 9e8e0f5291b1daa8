// Ranks of the NCCL collectives on the fake GPU: what its tests begin with.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "actors/gpu_actor/nccl_collectives.h"
#include "tests/gpu_actor/fake_gpu.h"
#include "tests/gpu_actor/group_data.h"
#include "tests/tensor_files/craft.h"

namespace optlease {

inline ShardMap map_of(const std::vector<uint32_t>& members, const std::vector<uint64_t>& sizes) {
  ShardMap map;
  uint64_t at = 0;
  for (size_t i = 0; i < members.size(); ++i) {
    map.members.emplace_back(members[i]);
    map.ranges.push_back({at, at + sizes[i]});
    at += sizes[i];
  }
  return map;
}

inline std::unique_ptr<Collectives> make_group(const TempFolder& folder, uint32_t rank,
                                               uint64_t scratch = 64u << 10) {
  NcclOptions options;
  options.group_directory = folder / "group";
  options.device = static_cast<int>(rank);
  options.scratch_bytes_max = scratch;
  return std::move(make_nccl_collectives(options)).value();
}

// One step of `dtype` gives the reference's bits.
inline void expect_step(Collectives* group, const ShardMap& map, Step step, uint32_t rank,
                        const std::vector<uint8_t>& needs, DType dtype) {
  EXPECT_EQ(reduce_and_compare(group, map, step, rank, needs, dtype), "")
      << "rank " << rank << " step " << step << " " << name_of(dtype);
  EXPECT_EQ(gather_and_compare(group, map, step, rank, needs, dtype), "")
      << "rank " << rank << " step " << step << " " << name_of(dtype);
}

}  // namespace optlease
