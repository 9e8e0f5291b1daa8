#include "shm/sums_hasher.h"

#include <xxhash.h>

#include "shm/contract/status.h"

namespace optlease {

struct SumsHasher::State {
  XXH3_state_t* xxh3 = XXH3_createState();
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { XXH3_freeState(xxh3); }
};

SumsHasher::SumsHasher() : state_(std::make_unique<State>()) {
  OPTLEASE_CHECK(state_->xxh3 != nullptr, "no memory for a hash state");
  XXH3_64bits_reset(state_->xxh3);
}

SumsHasher::~SumsHasher() = default;

void SumsHasher::add(const void* data, uint64_t bytes) {
  if (bytes > 0) XXH3_64bits_update(state_->xxh3, data, bytes);
}

uint64_t SumsHasher::digest() const { return XXH3_64bits_digest(state_->xxh3); }

}  // namespace optlease
