// One tensor of a space as a safetensors file holds it: whole, as the shard that the rank group
// has, or as the larger tensor that it is a shard of; in any dtype that can be converted. Used by
// gradient_source.cc and initial_state.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "actors/tensor_files/safetensors.h"
#include "shm/contract/dtype.h"
#include "shm/contract/geometry.h"
#include "shm/contract/status.h"

namespace optlease {

// Elements held beside the destination while they are converted.
inline constexpr uint64_t kImportPieceElements = 64u << 10;

// Why `stored` cannot fill `wanted`, in words that follow its name; or an empty string.
std::string why_unusable(const FileTensor& stored, const TensorSpec& wanted);

// Reads elements [first, first + count) of the stored tensor, in the file's dtype.
using ReadElements = std::function<Status(uint64_t first, uint64_t count, void* out)>;

// Elements [first, first + count) of `wanted`, as `to`, at `out`.
// REQUIRES: why_unusable(stored, wanted) is empty; the range lies inside `wanted`.
Status import_elements(const TensorSpec& wanted, const FileTensor& stored, const ReadElements& read,
                       uint64_t first, uint64_t count, DType to, void* out);

// Calls visit(tensor index, first element within the tensor, count, offset within `range`) for each
// tensor of `space` that has elements in `range`, ascending.
Status for_each_tensor_in(const SpaceSpec& space, ElementRange range,
                          const std::function<Status(size_t, uint64_t, uint64_t, uint64_t)>& visit);

}  // namespace optlease
