#include "actors/gpu_actor/tensor_import.h"

#include <algorithm>
#include <vector>

#include "kernels/reduce_cpu.h"

namespace optlease {
namespace {

std::string text_of(const std::vector<uint64_t>& shape) {
  std::string text = "[";
  for (const uint64_t dim : shape) {
    if (text.size() > 1) text += ", ";
    text += std::to_string(dim);
  }
  return text + "]";
}

// Consecutive elements of a shard that are consecutive in the larger tensor as well.
struct Run {
  uint64_t global_first = 0;
  uint64_t count = 0;
};

// The run that starts at element `first` of the shard and has at most `count_max` elements.
Run run_at(const TensorSpec& shard, uint64_t first, uint64_t count_max) {
  // Dimensions from `inner` on are whole: their elements are consecutive, and so are as many rows
  // of the dimension before them as the shard has.
  size_t inner = shard.shape.size();
  uint64_t row = 1;
  while (inner > 0 && shard.shape[inner - 1] == shard.global_shape[inner - 1]) {
    row *= shard.shape[inner - 1];
    --inner;
  }
  const uint64_t stretch = inner > 0 ? row * shard.shape[inner - 1] : row;
  Run run;
  run.count = std::min(count_max, stretch - first % stretch);
  uint64_t rest = first;
  uint64_t global_stride = 1;
  for (size_t dim = shard.shape.size(); dim-- > 0;) {
    const uint64_t at = rest % shard.shape[dim];
    rest /= shard.shape[dim];
    run.global_first += (shard.global_offset[dim] + at) * global_stride;
    global_stride *= shard.global_shape[dim];
  }
  return run;
}

Status read_stored(const TensorSpec& wanted, const FileTensor& stored, uint32_t element_bytes,
                   const ReadElements& read, uint64_t first, uint64_t count, void* out) {
  if (stored.shape == wanted.shape) return read(first, count, out);
  auto* to = static_cast<std::byte*>(out);
  for (uint64_t done = 0; done < count;) {
    const Run run = run_at(wanted, first + done, count - done);
    OPTLEASE_TRY(read(run.global_first, run.count, to + done * element_bytes));
    done += run.count;
  }
  return Status::ok();
}

}  // namespace

std::string why_unusable(const FileTensor& stored, const TensorSpec& wanted) {
  DType dtype;
  if (!parse_dtype(stored.dtype, &dtype))
    return "is " + stored.dtype + "; only F32, BF16 and F16 can be converted";
  if (stored.shape == wanted.shape) return "";
  if (wanted.global_shape.empty())
    return "has shape " + text_of(stored.shape) + "; the job's is " + text_of(wanted.shape);
  if (stored.shape != wanted.global_shape)
    return "has shape " + text_of(stored.shape) + "; the job's is " + text_of(wanted.shape) +
           ", a shard of " + text_of(wanted.global_shape);
  if (wanted.shape.size() != wanted.global_shape.size() ||
      wanted.global_offset.size() != wanted.global_shape.size())
    return "is a shard of another number of dimensions";
  for (size_t dim = 0; dim < wanted.shape.size(); ++dim)
    if (wanted.shape[dim] > wanted.global_shape[dim] ||
        wanted.global_offset[dim] > wanted.global_shape[dim] - wanted.shape[dim])
      return "has shape " + text_of(stored.shape) + "; the job's shard " + text_of(wanted.shape) +
             " at " + text_of(wanted.global_offset) + " passes it";
  return "";
}

Status import_elements(const TensorSpec& wanted, const FileTensor& stored, const ReadElements& read,
                       uint64_t first, uint64_t count, DType to, void* out) {
  DType from;
  const bool is_known = parse_dtype(stored.dtype, &from);
  OPTLEASE_CHECK(is_known && first + count <= wanted.elements, "%s: %llu at %llu of %llu",
                 stored.dtype.c_str(), static_cast<unsigned long long>(count),
                 static_cast<unsigned long long>(first),
                 static_cast<unsigned long long>(wanted.elements));
  if (from == to) return read_stored(wanted, stored, bytes_of(from), read, first, count, out);

  const uint64_t piece_max = std::min(count, kImportPieceElements);
  std::vector<std::byte> raw(piece_max * bytes_of(from));
  std::vector<float> wide(to == DType::kF32 ? 0 : piece_max);
  auto* target = static_cast<std::byte*>(out);
  for (uint64_t done = 0; done < count;) {
    const uint64_t piece = std::min(piece_max, count - done);
    OPTLEASE_TRY(
        read_stored(wanted, stored, bytes_of(from), read, first + done, piece, raw.data()));
    std::byte* at = target + done * bytes_of(to);
    float* as_f32 = to == DType::kF32 ? reinterpret_cast<float*>(at) : wide.data();
    convert_to_f32(as_f32, raw.data(), from, piece);
    if (to != DType::kF32) convert_from_f32(at, as_f32, to, piece);
    done += piece;
  }
  return Status::ok();
}

Status for_each_tensor_in(
    const SpaceSpec& space, ElementRange range,
    const std::function<Status(size_t, uint64_t, uint64_t, uint64_t)>& visit) {
  OPTLEASE_CHECK(range.begin <= range.end && range.end <= space.elements,
                 "[%llu, %llu) of space '%s' with %llu elements",
                 static_cast<unsigned long long>(range.begin),
                 static_cast<unsigned long long>(range.end), space.name.c_str(),
                 static_cast<unsigned long long>(space.elements));
  const auto first = std::partition_point(
      space.tensors.begin(), space.tensors.end(), [&range](const TensorSpec& tensor) {
        return tensor.flat_offset + tensor.elements <= range.begin;
      });
  for (auto tensor = first; tensor != space.tensors.end(); ++tensor) {
    const uint64_t begin = std::max(range.begin, tensor->flat_offset);
    const uint64_t end = std::min(range.end, tensor->flat_offset + tensor->elements);
    if (tensor->flat_offset >= range.end) break;
    if (begin < end)
      OPTLEASE_TRY(visit(static_cast<size_t>(tensor - space.tensors.begin()),
                         begin - tensor->flat_offset, end - begin, begin - range.begin));
  }
  return Status::ok();
}

}  // namespace optlease
