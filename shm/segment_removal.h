// The order in which a job's segments go, so that whoever is killed on the way leaves what the next
// one can tell from a damaged state. Used by the launcher, leftovers and ChunkStore. It takes no
// lock and looks at no arena; names that are somebody else's are the caller's to leave out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace optlease {

// SegmentHeader::state once a removal has begun: what is still there is nobody's state any more. No
// few damaged bits make it of another value, or another value of it.
inline constexpr uint32_t kSegmentRemoving = 0x766f6d65;

// First: says in the control segment that its state is being removed. Does nothing where there is
// none or where it is not sound, which is no state for anybody either way.
// REQUIRES: the job's lock is held and no process of the job lives.
void begin_removal(const std::string& control_name);

// `names` with the control segment (".ctl") last: as long as it is there, it says what the others
// are.
std::vector<std::string> in_removal_order(std::vector<std::string> names);

}  // namespace optlease
