#include "actors/gpu_actor/rank_buffers.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "actors/device_memory/device_room.h"
#include "actors/runtime/clock.h"
#include "shm/kill_point.h"

namespace optlease {
namespace {

// For collectives' buffers, kernels' stacks and what the driver takes beside allocations.
constexpr uint64_t kHeadroomBytes = 256ull << 20;
constexpr uint64_t kRoomTimeoutMsMax = 5000;
constexpr int kRoomRetryMs = 20;

// Maps the buffer where the vault has it; NotFound where it has not.
Result<MappedDeviceBuffer> find(const DeviceMemory& memory, const std::string& vault,
                                const WantedBuffer& wanted, uint64_t timeout_ms) {
  Result<VaultEntry> found = vault_get(vault, wanted.key, timeout_ms);
  if (!found.is_ok()) return found.status();
  if (found.value().bytes != wanted.bytes) {
    return Status(StatusCode::kCorrupt,
                  format("shared buffer '%s' has %llu bytes, the plan needs "
                         "%llu",
                         wanted.key.c_str(), static_cast<unsigned long long>(found.value().bytes),
                         static_cast<unsigned long long>(wanted.bytes)));
  }
  Result<MappedDeviceBuffer> mapped = memory.map(found.value().fd.get(), wanted.bytes);
  KILL_POINT("actor.buffer_mapped");
  if (mapped.is_ok()) return mapped;
  return Status(mapped.status().code(),
                "shared buffer '" + wanted.key + "': " + mapped.status().message());
}

// Finds the buffer in the vault, or makes it and puts it there. Another incarnation of this rank is
// never alive, but its put may have been the last thing it did.
Result<MappedDeviceBuffer> find_or_make(const DeviceMemory& memory, const std::string& vault,
                                        const WantedBuffer& wanted, uint64_t timeout_ms) {
  const Deadline deadline = Deadline::after_ms(static_cast<int64_t>(timeout_ms));
  while (true) {
    const auto left = static_cast<uint64_t>(deadline.remaining_ms());
    Result<MappedDeviceBuffer> found = find(memory, vault, wanted, left);
    if (found.is_ok() || found.status().code() != StatusCode::kNotFound) return found;
    Result<UniqueFd> made = memory.create(wanted.key, wanted.bytes);
    if (!made.is_ok()) return made.status();
    Result<MappedDeviceBuffer> mapped = memory.map(made.value().get(), wanted.bytes);
    if (!mapped.is_ok()) return mapped;
    if (wanted.prepare) OPTLEASE_TRY(wanted.prepare(mapped.value().data()));
    KILL_POINT("actor.buffer_made");
    const Status put = vault_put(vault, wanted.key, wanted.bytes, made.value().get(), left);
    KILL_POINT("actor.buffer_passed");
    if (put.is_ok()) return mapped;
    if (put.code() != StatusCode::kAlreadyExists || deadline.passed()) return put;
  }
}

// Maps what the vault has; the rest stays in *missing.
Status find_all(const DeviceMemory& memory, const RankBuffersSetup& setup,
                std::vector<WantedBuffer> wanted, std::vector<WantedBuffer>* missing) {
  for (WantedBuffer& each : wanted) {
    if (each.bytes == 0) continue;
    Result<MappedDeviceBuffer> found = find(memory, setup.vault_socket, each, setup.timeout_ms);
    if (found.is_ok()) {
      *each.into = std::move(found).value();
    } else if (found.status().code() == StatusCode::kNotFound) {
      missing->push_back(std::move(each));
    } else {
      return found.status();
    }
  }
  return Status::ok();
}

// Waits a little for the room: users of an earlier launcher's buffers may still be dying.
Status wait_for_room(const DeviceMemory& memory, const std::vector<WantedBuffer>& missing,
                     uint64_t timeout_ms) {
  std::vector<RoomRow> rows;
  rows.reserve(missing.size());
  for (const WantedBuffer& each : missing) {
    rows.push_back({each.words, memory.allocation_bytes(each.bytes)});
  }
  const Deadline deadline =
      Deadline::after_ms(static_cast<int64_t>(std::min(timeout_ms, kRoomTimeoutMsMax)));
  while (true) {
    const Result<DeviceRoom> room = memory.room();
    if (!room.is_ok()) return room.status();
    if (room.value().total_bytes == UINT64_MAX) return Status::ok();  // not a device of its own
    std::vector<RoomRow> all = rows;
    all.push_back({"headroom for collectives and kernels", kHeadroomBytes});
    Status fits = check_room(all, room.value(), memory.place());
    if (fits.is_ok() || deadline.passed()) return fits;
    std::this_thread::sleep_for(std::chrono::milliseconds(deadline.remaining_ms(kRoomRetryMs)));
  }
}

// Makes what is missing, all or nothing as far as the device's room can tell.
Status make_all(const DeviceMemory& memory, const RankBuffersSetup& setup,
                const std::vector<WantedBuffer>& missing) {
  if (missing.empty()) return Status::ok();
  OPTLEASE_TRY(wait_for_room(memory, missing, setup.timeout_ms));
  for (const WantedBuffer& each : missing) {
    Result<MappedDeviceBuffer> made =
        find_or_make(memory, setup.vault_socket, each, setup.timeout_ms);
    if (!made.is_ok()) return made.status();
    *each.into = std::move(made).value();
  }
  return Status::ok();
}

// An actor that died while it made the segment leaves one that is too short. Its bytes mean
// something only while a step is open, and a step opens only after the whole segment was written:
// so a segment of another size that no open step needs is made again.
Result<Segment> open_gradient_segment(const std::string& name, uint64_t bytes, bool step_is_open) {
  const bool exists = Segment::exists(name);
  if (!exists && !step_is_open) return Segment::create(name, bytes);
  if (!exists) {
    return Status(StatusCode::kCorrupt,
                  "gradient segment " + name +
                      " is gone, and with it the summed gradients that the open step needs: "
                      "somebody removed it; start again with --fresh (model.source takes exported "
                      "weights)");
  }
  Result<Segment> opened = Segment::open(name, Segment::Access::kReadWrite);
  const bool whole = opened.is_ok() && opened.value().bytes() == bytes;
  if (whole || (!opened.is_ok() && opened.status().code() != StatusCode::kCorrupt)) return opened;
  if (step_is_open) {
    return Status(
        StatusCode::kCorrupt,
        format("gradient segment %s does not have the %llu bytes that the open step needs; "
               "if the job ran on another device, resume it there, else start again with --fresh "
               "(model.source takes exported weights)",
               name.c_str(), static_cast<unsigned long long>(bytes)));
  }
  Segment::unlink(name);
  return Segment::create(name, bytes);
}

Status lost_shards(const RankBuffersSetup& setup, Step saved, const std::string& why) {
  const std::string found =
      saved == kNoStep ? why : format("those of step %lld are", static_cast<long long>(saved));
  return {StatusCode::kCorrupt,
          format("rank %u: the summed gradients of open step %lld are lost: they lay in the "
                 "device's memory and every process that held it ended before they were saved "
                 "(in %s %s). Start again with --fresh (model.source takes exported weights); "
                 "gradients.durable = true saves them at every step",
                 setup.rank.value, static_cast<long long>(setup.open_step),
                 setup.gradient_segment.c_str(), found.c_str())};
}

}  // namespace

ShardHome shard_home_of(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kCpu:
      return ShardHome::kSegment;
    case DeviceKind::kCuda:
      return ShardHome::kVault;
  }
  return ShardHome::kVault;
}

Result<RankBuffers> RankBuffers::open(const JobPlan& plan, const RankBuffersSetup& setup,
                                      DeviceMemory memory) {
  RankBuffers buffers(std::move(memory));
  buffers.rank_ = setup.rank;
  buffers.list_spaces(plan, setup.rank);
  std::vector<WantedBuffer> missing;
  OPTLEASE_TRY(find_all(buffers.memory_, setup, buffers.trainer_buffers(plan, setup), &missing));
  switch (setup.home) {
    case ShardHome::kSegment:
      OPTLEASE_TRY(make_all(buffers.memory_, setup, missing));
      OPTLEASE_TRY(buffers.open_segment(setup));
      OPTLEASE_TRY(buffers.find_resident(setup, &missing));
      break;
    case ShardHome::kVault:
      OPTLEASE_TRY(buffers.find_shards(plan, setup, &missing));
      OPTLEASE_TRY(buffers.find_resident(setup, &missing));
      OPTLEASE_TRY(make_all(buffers.memory_, setup, missing));
      for (RankSpace& mine : buffers.spaces_) {
        mine.grad_shard = static_cast<float*>(mine.grad_shard_buffer.data());
      }
      break;
  }
  return buffers;
}

void RankBuffers::list_spaces(const JobPlan& plan, Rank rank) {
  uint64_t words = 0;
  for (uint32_t s = 0; s < plan.segment.spaces.size(); ++s) {
    const int member = member_index(plan.segment.spaces[s], rank);
    if (member < 0) continue;
    RankSpace mine;
    mine.space = s;
    mine.member = static_cast<uint32_t>(member);
    mine.shard = shard_range(plan.segment.spaces[s], mine.member);
    mine.first_word = words;
    words += mine.shard.size();
    spaces_.push_back(std::move(mine));
  }
}

std::vector<WantedBuffer> RankBuffers::trainer_buffers(const JobPlan& plan,
                                                       const RankBuffersSetup& setup) {
  std::vector<WantedBuffer> wanted;
  for (RankSpace& mine : spaces_) {
    const SpaceSpec& space = plan.segment.spaces[mine.space];
    wanted.push_back({vault_key("param", setup.rank.value, space.name),
                      "parameters of space " + space.name,
                      space.elements * bytes_of(space.param_dtype), &mine.params, nullptr});
    wanted.push_back({vault_key("grad", setup.rank.value, space.name),
                      "gradients of space " + space.name,
                      space.elements * bytes_of(space.grad_dtype), &mine.grads, nullptr});
  }
  return wanted;
}

std::vector<uint64_t> RankBuffers::shard_bytes() const {
  std::vector<uint64_t> bytes;
  for (const RankSpace& mine : spaces_) bytes.push_back(mine.shard.size() * sizeof(float));
  return bytes;
}

Status RankBuffers::open_segment(const RankBuffersSetup& setup) {
  uint64_t bytes = 0;
  for (const RankSpace& mine : spaces_) bytes += array_stride_bytes(mine.shard.size());
  if (bytes == 0) return Status::ok();
  Result<Segment> segment =
      open_gradient_segment(setup.gradient_segment, bytes, setup.open_step != kNoStep);
  if (!segment.is_ok()) return segment.status();
  segment_.emplace(std::move(segment).value());
  char* at = static_cast<char*>(segment_->data());
  for (RankSpace& mine : spaces_) {
    if (mine.shard.size() == 0) continue;
    mine.grad_shard = reinterpret_cast<float*>(at);
    at += array_stride_bytes(mine.shard.size());
  }
  return Status::ok();
}

// Before anything is made: what actors of an earlier launcher hold must be given back first.
Status RankBuffers::find_shards(const JobPlan& plan, const RankBuffersSetup& setup,
                                std::vector<WantedBuffer>* missing) {
  const std::vector<uint64_t> bytes = shard_bytes();
  if (std::all_of(bytes.begin(), bytes.end(), [](uint64_t each) { return each == 0; })) {
    return Status::ok();
  }
  const bool is_needed = setup.open_step != kNoStep;
  SavedShards::Owner owner;
  std::memcpy(owner.job_id, setup.job_id, sizeof owner.job_id);
  owner.rank = setup.rank;
  Result<SavedShards> saved = SavedShards::open(setup.gradient_segment, owner, bytes, is_needed);
  if (!saved.is_ok()) return saved.status();
  saved_.emplace(std::move(saved).value());
  std::vector<WantedBuffer> wanted;
  for (size_t i = 0; i < spaces_.size(); ++i) {
    const std::string& name = plan.segment.spaces[spaces_[i].space].name;
    WantedBuffer shard{vault_key("grad_shard", setup.rank.value, name),
                       "gradient shard of space " + name, bytes[i], &spaces_[i].grad_shard_buffer,
                       nullptr};
    // Before it can be found: a later incarnation would take zeros for the sums.
    if (is_needed) {
      shard.prepare = [this, i](void* device) { return saved_->restore(i, device, memory_); };
    }
    wanted.push_back(std::move(shard));
  }
  const size_t others = missing->size();
  OPTLEASE_TRY(find_all(memory_, setup, std::move(wanted), missing));
  // Where a shard is not there, no actor under this launcher came this far, and one of an earlier
  // launcher may still live.
  if (missing->size() == others) return saved_->say_alive(setup.timeout_ms);
  OPTLEASE_TRY(saved_->wait_until_alone(setup.timeout_ms));
  std::string why;
  const Step step = saved_->step(&why);
  if (!is_needed) {
    saved_->discard();
    return Status::ok();
  }
  if (step != setup.open_step) return lost_shards(setup, step, why);
  return saved_->check_digest();
}

// After the shards: no actor of an earlier launcher writes to the segment any more.
Status RankBuffers::find_resident(const RankBuffersSetup& setup,
                                  std::vector<WantedBuffer>* missing) {
  if (!setup.resident) return Status::ok();
  const ResidentSegment::Shape& shape = *setup.resident;
  const bool in_segment = setup.home == ShardHome::kSegment;
  WantedBuffer wanted{vault_key("resident", setup.rank.value, "state"),
                      "resident part of the state", shape.bytes() - kResidentSlotsOffset, nullptr,
                      nullptr};
  MappedDeviceBuffer mapped;
  wanted.into = &mapped;
  std::vector<WantedBuffer> absent;
  if (!in_segment) OPTLEASE_TRY(find_all(memory_, setup, {wanted}, &absent));
  const bool is_needed = setup.has_state && (in_segment || !absent.empty());
  Result<ResidentArena> arena =
      ResidentArena::open(setup.resident_segment, shape, is_needed, in_segment);
  if (!arena.is_ok()) return arena.status();
  resident_.emplace(std::move(arena).value());
  if (in_segment) return Status::ok();
  if (absent.empty()) {
    *resident_->buffer() = std::move(mapped);
    return Status::ok();
  }
  wanted.into = resident_->buffer();
  if (is_needed) {
    wanted.prepare = [this](void* device) { return resident_->restore(device, memory_); };
  }
  missing->push_back(std::move(wanted));
  return Status::ok();
}

Status RankBuffers::save_shards(Step step) {
  if (!saved_) return Status::ok();
  std::vector<const float*> shards;
  for (const RankSpace& mine : spaces_) shards.push_back(mine.grad_shard);
  return saved_->save(step, shards, memory_);
}

Status RankBuffers::save_shards(const SumsDigest& sums) {
  OPTLEASE_TRY(save_shards(sums.step));
  if (!saved_ || saved_->digest() == sums.digest) return Status::ok();
  return {
      StatusCode::kCorrupt,
      format("rank %u: the summed gradients of step %lld in %s were saved and the copy sums to "
             "%016llx, not %016llx as they did when they were made: memory was altered. Nothing "
             "was made of them; resume the job, and have this machine's memory tested",
             rank_.value, static_cast<long long>(sums.step), place_of_shards().c_str(),
             static_cast<unsigned long long>(saved_->digest()),
             static_cast<unsigned long long>(sums.digest))};
}

std::vector<GradRange> RankBuffers::chunk_gradients(const ArenaSpec& arena) const {
  std::vector<GradRange> ranges;
  auto mine = spaces_.begin();  // both ascend by space
  for (const ChunkSpec& chunk : arena.chunks) {
    while (mine->space != chunk.space) ++mine;
    const uint64_t in_shard = chunk.range.begin - mine->shard.begin;
    ranges.push_back(
        {mine->grad_shard + in_shard, chunk.range.size(), mine->first_word + in_shard});
  }
  return ranges;
}

std::string RankBuffers::place_of_shards() const {
  if (segment_) return "gradient segment " + Segment::path_of(segment_->name());
  return format("the memory of device %s:%d", name_of(memory_.place().kind),
                memory_.place().ordinal);
}

}  // namespace optlease
