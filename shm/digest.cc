#include "shm/digest.h"

#include <cinttypes>
#include <cstring>
#include <memory>

#include <xxhash.h>

namespace optlease {
namespace {

// A streaming XXH3-128.
class Hasher {
 public:
  Hasher() : state_(XXH3_createState()) {
    OPTLEASE_CHECK(state_ != nullptr, "no memory for a hash state");
    XXH3_128bits_reset(state_.get());
  }
  void bytes(const void* data, size_t size) { XXH3_128bits_update(state_.get(), data, size); }
  void number(uint64_t value) { bytes(&value, sizeof value); }
  void text(const std::string& value) {
    number(value.size());
    bytes(value.data(), value.size());
  }
  std::string hex() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    return format("%016" PRIx64 "%016" PRIx64, static_cast<uint64_t>(hash.high64),
                  static_cast<uint64_t>(hash.low64));
  }

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

// Versions over a range of elements, equal neighbours merged: chunk borders leave no trace.
class VersionRuns {
 public:
  explicit VersionRuns(Hasher* into) : into_(into) {}
  void add(Step version, uint64_t count) {
    if (count_ != 0 && version != version_) flush();
    version_ = version;
    count_ += count;
  }
  void flush() {
    if (count_ == 0) return;
    into_->number(static_cast<uint64_t>(version_));
    into_->number(count_);
    count_ = 0;
  }

 private:
  Hasher* into_;
  Step version_ = kNoStep;
  uint64_t count_ = 0;
};

class Digester {
 public:
  Digester(const ControlView& view, std::span<const ArenaView> arenas)
      : view_(view), arenas_(arenas), ranks_(view.header().world_size) {}

  Result<StateDigest> run() {
    StateDigest digest;
    digest.step_committed = view_.step_committed();
    Hasher job;
    job.number(view_.header().space_count);
    for (uint32_t s = 0; s < view_.header().space_count; ++s) {
      SpaceDigest& space = digest.spaces.emplace_back();
      OPTLEASE_TRY(digest_space(s, &space));
      job.text(space.digest);
    }
    digest.state_digest = job.hex();
    for (const RankPart& rank : ranks_) digest.ranks.push_back(rank.hasher.hex());
    return digest;
  }

 private:
  Status digest_space(uint32_t s, SpaceDigest* space) {
    space->name = view_.spaces()[s].name;
    Hasher hasher;
    hasher.text(space->name);
    hasher.number(view_.tensors(s).size());
    for (const TensorRecord& tensor : view_.tensors(s)) {
      TensorDigest& digest = space->tensors.emplace_back();
      OPTLEASE_TRY(digest_tensor(s, tensor, &digest));
      hasher.text(digest.digest);
    }
    space->digest = hasher.hex();
    return Status::ok();
  }

  Status digest_tensor(uint32_t s, const TensorRecord& tensor, TensorDigest* digest) {
    digest->name = tensor.name;
    Hasher whole;
    whole.text(digest->name);
    whole.number(tensor.dim_count);
    for (uint32_t d = 0; d < tensor.dim_count; ++d) whole.number(tensor.shape[d]);
    for (uint32_t array = 0; array < kAdamArrayCount; ++array) {
      Hasher elements;
      VersionRuns versions(&whole);
      const ElementRange range{tensor.flat_offset, tensor.flat_offset + tensor.elements};
      OPTLEASE_TRY(read_elements(view_, arenas_, s, array, range, [&](const ElementRun& run) {
        elements.bytes(run.data, run.count * sizeof(float));
        if (array == 0) versions.add(run.version, run.count);
        add_to_rank(run);
        return Status::ok();
      }));
      versions.flush();
      digest->arrays[array] = elements.hex();
      whole.text(kAdamArrayNames[array]);
      whole.text(digest->arrays[array]);
    }
    digest->digest = whole.hex();
    return Status::ok();
  }

  // A rank's part comes in the order of spaces, tensors, arrays and elements. Each stretch without
  // a gap and of one version starts with its place, so chunk borders leave no trace here either.
  void add_to_rank(const ElementRun& run) {
    RankPart& rank = ranks_[run.rank.value];
    if (run.space != rank.space || run.array != rank.array ||
        run.first_element != rank.next_element || run.version != rank.version) {
      rank.hasher.number(run.space);
      rank.hasher.number(run.array);
      rank.hasher.number(run.first_element);
      rank.hasher.number(static_cast<uint64_t>(run.version));
    }
    rank.hasher.bytes(run.data, run.count * sizeof(float));
    rank.space = run.space;
    rank.array = run.array;
    rank.next_element = run.first_element + run.count;
    rank.version = run.version;
  }

  struct RankPart {
    Hasher hasher;
    uint32_t space = UINT32_MAX;
    uint32_t array = UINT32_MAX;
    uint64_t next_element = 0;
    Step version = kNoStep;
  };

  const ControlView& view_;
  std::span<const ArenaView> arenas_;
  std::vector<RankPart> ranks_;
};

}  // namespace

Result<StateDigest> digest_state(const ControlView& view, std::span<const ArenaView> arenas,
                                 ChecksumWords checksum) {
  for (uint32_t r = 0; r < view.header().world_size; ++r) {
    for (uint32_t c = 0; c < view.chunks(Rank(r)).size(); ++c) {
      OPTLEASE_TRY(verify_chunk(view, arenas, Rank(r), ChunkIndex(c), checksum));
    }
  }
  return Digester(view, arenas).run();
}

}  // namespace optlease
