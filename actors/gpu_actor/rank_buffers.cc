#include "actors/gpu_actor/rank_buffers.h"

#include "actors/runtime/clock.h"

namespace optlease {
namespace {

// Finds the buffer in the vault, or makes it and puts it there. Another incarnation of this rank is
// never alive, but its put may have been the last thing it did.
Result<MappedBuffer> find_or_make(const std::string& vault, const std::string& key, uint64_t bytes,
                                  uint64_t timeout_ms) {
  if (bytes == 0) return MappedBuffer();
  const Deadline deadline = Deadline::after_ms(static_cast<int64_t>(timeout_ms));
  while (true) {
    const auto left = static_cast<uint64_t>(deadline.remaining_ms());
    Result<VaultEntry> found = vault_get(vault, key, left);
    if (found.is_ok()) {
      if (found.value().bytes != bytes) {
        return Status(StatusCode::kCorrupt,
                      format("shared buffer '%s' has %llu bytes, the plan needs %llu", key.c_str(),
                             static_cast<unsigned long long>(found.value().bytes),
                             static_cast<unsigned long long>(bytes)));
      }
      return MappedBuffer::map(found.value().fd.get(), bytes);
    }
    if (found.status().code() != StatusCode::kNotFound) return found.status();
    Result<UniqueFd> made = create_memfd(key, bytes);
    if (!made.is_ok()) return made.status();
    const Status put = vault_put(vault, key, bytes, made.value().get(), left);
    if (put.is_ok()) return MappedBuffer::map(made.value().get(), bytes);
    if (put.code() != StatusCode::kAlreadyExists || deadline.passed()) return put;
  }
}

// An actor that died while it made the segment leaves one that is too short. Its bytes mean
// something only while a step is open, and a step opens only after the whole segment was written:
// so a segment of another size that no open step needs is made again.
Result<Segment> open_gradient_segment(const std::string& name, uint64_t bytes, bool step_is_open) {
  if (!Segment::exists(name)) return Segment::create(name, bytes);
  Result<Segment> opened = Segment::open(name, Segment::Access::kReadWrite);
  const bool whole = opened.is_ok() && opened.value().bytes() == bytes;
  if (whole || (!opened.is_ok() && opened.status().code() != StatusCode::kCorrupt)) return opened;
  if (step_is_open) {
    return Status(
        StatusCode::kCorrupt,
        format("gradient segment %s does not have the %llu bytes that the open step needs; "
               "start again with --fresh, or from a checkpoint",
               name.c_str(), static_cast<unsigned long long>(bytes)));
  }
  Segment::unlink(name);
  return Segment::create(name, bytes);
}

}  // namespace

Result<RankBuffers> RankBuffers::open(const JobPlan& plan, Rank rank, const RunDirectory& directory,
                                      bool step_is_open, uint64_t timeout_ms) {
  RankBuffers buffers;
  uint64_t shard_bytes = 0;
  std::vector<uint64_t> offsets;
  for (uint32_t s = 0; s < plan.segment.spaces.size(); ++s) {
    const SpaceSpec& space = plan.segment.spaces[s];
    const int member = member_index(space, rank);
    if (member < 0) continue;
    RankSpace mine;
    mine.space = s;
    mine.member = static_cast<uint32_t>(member);
    mine.shard = shard_range(space, mine.member);
    Result<MappedBuffer> params =
        find_or_make(directory.vault_socket(), vault_key("param", rank.value, space.name),
                     space.elements * bytes_of(space.param_dtype), timeout_ms);
    if (!params.is_ok()) return params.status();
    mine.params = std::move(params).value();
    Result<MappedBuffer> grads =
        find_or_make(directory.vault_socket(), vault_key("grad", rank.value, space.name),
                     space.elements * bytes_of(space.grad_dtype), timeout_ms);
    if (!grads.is_ok()) return grads.status();
    mine.grads = std::move(grads).value();
    offsets.push_back(shard_bytes);
    shard_bytes += array_stride_bytes(mine.shard.size());
    buffers.spaces_.push_back(std::move(mine));
  }
  if (shard_bytes == 0) return buffers;
  Result<Segment> segment =
      open_gradient_segment(directory.gradient_segment(rank), shard_bytes, step_is_open);
  if (!segment.is_ok()) return segment.status();
  buffers.segment_.push_back(std::move(segment).value());
  char* base = static_cast<char*>(buffers.segment_.front().data());
  for (size_t i = 0; i < buffers.spaces_.size(); ++i) {
    if (buffers.spaces_[i].shard.size() > 0) {
      buffers.spaces_[i].grad_shard = reinterpret_cast<float*>(base + offsets[i]);
    }
  }
  return buffers;
}

}  // namespace optlease
