// A job's segments in /dev/shm, damaged as the input says, and the judgement of everybody who finds
// them: the launcher before a start (look_at_state), the store that recovers them (ChunkStore,
// StoreService), an actor that attaches (ChunkWindow, resident and saved shards).
//
// It asserts: looking changes nothing, and neither does a recovery that is refused; the launcher
// calls whole what the store recovers, and nothing else; whoever was let in can reach the last byte
// of every slot; a store that started has sound leases.
#pragma once

#include "tests/fuzz/fuzz.h"

namespace optlease::fuzz {

void try_job_files(Input input);
// The whole segments of sample_plan(sample), as try_job_files() takes them.
std::string job_files_seed(uint32_t sample);

}  // namespace optlease::fuzz
