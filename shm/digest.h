// One name for a job's whole state: XXH3-128 over logical elements, so that two jobs with the same
// values at the same versions have the same digest, whatever their world, chunk or window size.
// Used by the launcher (`optlease digest`, the report) and the tests. Streams:
// its memory does not grow with the state. The store must hold still meanwhile (element_reader.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shm/element_reader.h"

namespace optlease {

// All digests are 32 lower-case hexadecimal digits.
struct TensorDigest {
  std::string name;
  std::string arrays[kAdamArrayCount];  // over the elements alone, in the order of kAdamArrayNames
  std::string digest;                   // name, shape, versions and arrays
};

struct SpaceDigest {
  std::string name;
  std::vector<TensorDigest> tensors;
  std::string digest;
};

struct StateDigest {
  Step step_committed = kNoStep;
  std::vector<SpaceDigest> spaces;
  std::vector<std::string> ranks;  // over each rank's shards; differs with the world size
  std::string state_digest;        // of the job: names, shapes, versions and elements
};

// Where `checksum` is not null every committed chunk is checked first; Corrupt names the place.
// NotFound where a chunk was never written.
Result<StateDigest> digest_state(const ControlView& view, std::span<const ArenaView> arenas,
                                 ChecksumWords checksum);

}  // namespace optlease
