// The digest of a rank's summed gradients: made of them, and compared with what is on record.
#include <algorithm>

#include "actors/gpu_actor/rank_buffers.h"

namespace optlease {
namespace {

// Read between two turns of the actor's loop: some milliseconds.
constexpr uint64_t kPieceBytes = 16ull << 20;

}  // namespace

// In the order of spaces. Host memory is read where it lies.
Result<bool> RankBuffers::read_some(ShardsReading* reading) const {
  const auto left = [&] {
    return spaces_[reading->space].shard.size() * sizeof(float) - reading->at;
  };
  while (reading->space < spaces_.size() && left() == 0) {
    ++reading->space;
    reading->at = 0;
  }
  if (reading->space == spaces_.size()) return true;
  const auto* from =
      reinterpret_cast<const char*>(spaces_[reading->space].grad_shard) + reading->at;
  const uint64_t bytes = std::min<uint64_t>(kPieceBytes, left());
  if (saved_) {
    reading->piece.resize(kPieceBytes);
    OPTLEASE_TRY(memory_.copy_to_host(reading->piece.data(), from, bytes));
    from = reading->piece.data();
  }
  reading->hasher.add(from, bytes);
  reading->at += bytes;
  return false;
}

Result<uint64_t> RankBuffers::digest_of_shards() const {
  ShardsReading reading;
  Result<bool> over = false;
  while (over.is_ok() && !over.value()) over = read_some(&reading);
  if (!over.is_ok()) return over.status();
  return reading.hasher.digest();
}

Status RankBuffers::check_sums(const SumsDigest& recorded) const {
  SumsCheck check(recorded);
  Result<bool> over = false;
  while (over.is_ok() && !over.value()) over = check_sums_some(&check);
  return over.status();
}

Result<bool> RankBuffers::check_sums_some(SumsCheck* check) const {
  if (check->recorded.kind == static_cast<uint32_t>(SumsDigestKind::kNone)) return true;
  const Result<bool> over = read_some(&check->reading);
  if (!over.is_ok() || !over.value()) return over;
  const uint64_t found = check->reading.hasher.digest();
  if (found == check->recorded.digest) return true;
  const std::string where = segment_
                                ? "gradient segment " + Segment::path_of(segment_->name())
                                : format("the memory of device %s:%d",
                                         name_of(memory_.place().kind), memory_.place().ordinal);
  return Status(
      StatusCode::kCorrupt,
      format("rank %u: the summed gradients of open step %lld in %s are not those that this "
             "rank reduced: their XXH3-64 is %016llx, the step's record says %016llx; bits of "
             "them changed since, or they are another step's. None of it was applied by this "
             "incarnation; start again with --fresh (model.source takes exported weights), "
             "and have this machine's memory tested",
             rank_.value, static_cast<long long>(check->recorded.step), where.c_str(),
             static_cast<unsigned long long>(found),
             static_cast<unsigned long long>(check->recorded.digest)));
}

}  // namespace optlease
