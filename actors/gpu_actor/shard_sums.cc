#include "actors/gpu_actor/shard_sums.h"

#include <algorithm>

namespace optlease {
namespace {

// Enqueued at once: some tens of milliseconds of one core, or some hundred microseconds of a GPU.
constexpr uint64_t kPieceElements = 4ull << 20;
constexpr int kPiecesAtOnce = 16;

}  // namespace

SumsDigest ShardSums::digest() const {
  uint64_t total = 0;
  for (const uint64_t sum : of_chunk) total += sum;
  return make_sums_digest(step, total);
}

SumsCheck::SumsCheck(Device& device, Rank rank, const SumsDigest& recorded,
                     std::vector<GradRange> chunks, std::string place)
    : device_(device),
      rank_(rank),
      recorded_(recorded),
      chunks_(std::move(chunks)),
      place_(std::move(place)),
      sums_(chunks_.size()) {}

Result<bool> SumsCheck::advance() {
  if (under_way_ && !device_.reached(done_)) {
    const Status failure = device_.failure();
    if (!failure.is_ok()) return failure;
    return false;
  }
  under_way_ = false;
  if (chunk_ < chunks_.size()) {
    enqueue();
    return false;
  }
  const Status same = compare();
  if (!same.is_ok()) return same;
  return true;
}

void SumsCheck::enqueue() {
  for (int piece = 0; piece < kPiecesAtOnce && chunk_ < chunks_.size(); ++piece) {
    const GradRange& chunk = chunks_[chunk_];
    const uint64_t count = std::min(kPieceElements, chunk.elements - at_);
    device_.sum_gradient(chunk.at + at_, count, chunk.first_word + at_, &sums_[chunk_]);
    at_ += count;
    if (at_ < chunk.elements) continue;
    ++chunk_;
    at_ = 0;
  }
  done_ = device_.signal(StreamKind::kCompute);
  under_way_ = true;
}

ShardSums SumsCheck::sums() const {
  ShardSums found{recorded_.step, {}};
  for (const ChunkSums& chunk : sums_) found.of_chunk.push_back(chunk.grad);
  return found;
}

Status SumsCheck::compare() const {
  const uint64_t found = sums().digest().digest;
  if (found == recorded_.digest) return Status::ok();
  return {StatusCode::kCorrupt,
          format("rank %u: the summed gradients of open step %lld in %s are not those that this "
                 "rank reduced: they sum to %016llx, the step's record says %016llx; bits of them "
                 "changed since, or they are another step's. None of it was applied by this "
                 "incarnation; start again with --fresh (model.source takes exported weights), and "
                 "have this machine's memory tested",
                 rank_.value, static_cast<long long>(recorded_.step), place_.c_str(),
                 static_cast<unsigned long long>(found),
                 static_cast<unsigned long long>(recorded_.digest))};
}

}  // namespace optlease
