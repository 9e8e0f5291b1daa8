#include "actors/gpu_actor/saved_shards.h"

#include <sys/file.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "actors/runtime/clock.h"
#include "kernels/checksum.h"
#include "shm/contract/geometry.h"

namespace optlease {
namespace {

constexpr int kLockRetryMs = 5;

uint64_t data_bytes_of(const std::vector<uint64_t>& shard_bytes) {
  uint64_t bytes = 0;
  for (const uint64_t shard : shard_bytes) bytes += array_stride_bytes(shard / sizeof(float));
  return bytes;
}

// The lock goes with the process, however it ends. Shared: "I live". Exclusive: "I alone live".
Status lock(const Segment& segment, int operation, uint64_t timeout_ms) {
  const Deadline deadline = Deadline::after_ms(static_cast<int64_t>(timeout_ms));
  while (::flock(segment.fd(), operation | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) {
      return {StatusCode::kIo,
              format("flock of %s: %s", segment.name().c_str(), std::strerror(errno))};
    }
    if (deadline.passed()) {
      return {StatusCode::kTimeout,
              format("gradient segment %s is still open in an actor of an earlier run after %llu "
                     "ms; end that process (fuser %s names it)",
                     segment.name().c_str(), static_cast<unsigned long long>(timeout_ms),
                     Segment::path_of(segment.name()).c_str())};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(deadline.remaining_ms(kLockRetryMs)));
  }
  return Status::ok();
}

}  // namespace

SavedShards::SavedShards(Segment segment, const Owner& owner, std::vector<uint64_t> shard_bytes)
    : segment_(std::move(segment)), owner_(owner), shard_bytes_(std::move(shard_bytes)) {
  uint64_t offset = 0;
  for (const uint64_t bytes : shard_bytes_) {
    offsets_.push_back(offset);
    offset += array_stride_bytes(bytes / sizeof(float));
  }
}

Result<SavedShards> SavedShards::open(const std::string& name, const Owner& owner,
                                      std::vector<uint64_t> shard_bytes, bool step_is_open) {
  const uint64_t bytes = kSavedShardsOffset + data_bytes_of(shard_bytes);
  if (Segment::exists(name)) {
    Result<Segment> opened = Segment::open(name, Segment::Access::kReadWrite);
    const bool whole = opened.is_ok() && opened.value().bytes() == bytes;
    if (whole) return SavedShards(std::move(opened).value(), owner, std::move(shard_bytes));
    if (!opened.is_ok() && opened.status().code() != StatusCode::kCorrupt) return opened.status();
    if (step_is_open) {
      return Status(StatusCode::kCorrupt,
                    format("gradient segment %s has not the %llu bytes in which this device's "
                           "shards of the open step are saved; if the job ran on another device, "
                           "resume it there, else start again with --fresh (model.source takes "
                           "exported weights)",
                           name.c_str(), static_cast<unsigned long long>(bytes)));
    }
    Segment::unlink(name);
  }
  Result<Segment> made = Segment::create(name, bytes);
  if (!made.is_ok()) return made.status();
  return SavedShards(std::move(made).value(), owner, std::move(shard_bytes));
}

Status SavedShards::say_alive(uint64_t timeout_ms) { return lock(segment_, LOCK_SH, timeout_ms); }

Status SavedShards::wait_until_alone(uint64_t timeout_ms) {
  OPTLEASE_TRY(lock(segment_, LOCK_EX, timeout_ms));
  return lock(segment_, LOCK_SH, timeout_ms);
}

Step SavedShards::step(std::string* why) const {
  SavedShardsHeader copy;
  std::memcpy(&copy, header(), sizeof copy);
  const char* broken = why_invalid(copy, segment_.bytes());
  if (broken == nullptr && copy.rank != owner_.rank.value) broken = "it is another rank's";
  if (broken == nullptr && std::memcmp(copy.job_id, owner_.job_id, sizeof copy.job_id) != 0) {
    broken = "it is another job's";
  }
  if (broken == nullptr) return copy.step;
  if (why != nullptr) *why = broken;
  return kNoStep;
}

void SavedShards::discard() {
  std::atomic_ref<uint64_t>(header()->checksum).store(0, std::memory_order_seq_cst);
}

Status SavedShards::save(Step step, std::span<const float* const> shards,
                         const DeviceMemory& memory) {
  OPTLEASE_CHECK(shards.size() == shard_bytes_.size(), "%zu shards of %zu", shards.size(),
                 shard_bytes_.size());
  SavedShardsHeader next{};
  next.magic = kSavedShardsMagic;
  next.version = kSegmentVersion;
  next.rank = owner_.rank.value;
  std::memcpy(next.job_id, owner_.job_id, sizeof next.job_id);
  next.step = step;
  next.data_bytes = segment_.bytes() - kSavedShardsOffset;
  // Whoever is killed in between leaves a header whose checksum does not hold.
  discard();
  for (size_t i = 0; i < shards.size(); ++i) {
    OPTLEASE_TRY(memory.copy_to_host(data() + offsets_[i], shards[i], shard_bytes_[i]));
  }
  next.digest = digest_of_data();
  const uint64_t checksum = checksum_of(next);
  std::memcpy(header(), &next, offsetof(SavedShardsHeader, checksum));
  std::atomic_ref<uint64_t>(header()->checksum).store(checksum, std::memory_order_release);
  return Status::ok();
}

uint64_t SavedShards::digest_of_data() const {
  uint64_t sum = 0;
  uint64_t first_word = 0;
  for (size_t i = 0; i < shard_bytes_.size(); ++i) {
    const uint64_t words = shard_bytes_[i] / sizeof(float);
    sum += checksum_words(data() + offsets_[i], words, first_word);
    first_word += words;
  }
  return sum;
}

Status SavedShards::check_digest() const {
  const uint64_t found = digest_of_data();
  if (found == digest()) return Status::ok();
  return {StatusCode::kCorrupt,
          format("rank %u: the summed gradients of step %lld in %s are not those that were saved "
                 "there: they sum to %016llx, saved with %016llx; bits of them changed "
                 "since. Nothing was made of them; start again with --fresh (model.source takes "
                 "exported weights)",
                 owner_.rank.value, static_cast<long long>(header()->step),
                 Segment::path_of(segment_.name()).c_str(), static_cast<unsigned long long>(found),
                 static_cast<unsigned long long>(digest()))};
}

Status SavedShards::restore(size_t index, void* shard, const DeviceMemory& memory) const {
  return memory.copy_to_device(shard, data() + offsets_.at(index), shard_bytes_.at(index));
}

}  // namespace optlease
