// The checks that make a control segment safe to read: every index and range of every table, before
// anybody follows one. Used by ControlView (any reader) and ChunkStore::recover (a stopped job, of
// which more must hold). Reads only.
#pragma once

#include <cstdint>

#include "shm/contract/status.h"
#include "shm/control_view.h"

namespace optlease {

// The header alone: WrongVersion for another format, Corrupt for a broken rule or a segment whose
// creation was never finished.
Status check_control_header(const void* data, uint64_t bytes);

// Every table. REQUIRES: check_control_header passed; nothing else about `view`.
Status check_control_tables(const ControlView& view);

// What also holds while no store runs: no slot is committed twice, and every chunk is at
// step_committed or one past it. (A live store may flip words between two reads.)
Status check_control_at_rest(const ControlView& view);

}  // namespace optlease
