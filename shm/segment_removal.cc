#include "shm/segment_removal.h"

#include <algorithm>

#include "shm/contract/segment_layout.h"
#include "shm/kill_point.h"
#include "shm/segment.h"

namespace optlease {

void begin_removal(const std::string& control_name) {
  const Result<Segment> control = Segment::open(control_name, Segment::Access::kReadWrite);
  if (!control.is_ok() || control.value().bytes() < sizeof(SegmentHeader)) return;
  auto* header = static_cast<SegmentHeader*>(control.value().data());
  if (why_invalid(*header, control.value().bytes()) != nullptr) return;
  header->state.store(kSegmentRemoving, std::memory_order_release);
  KILL_POINT("removal.begun");
}

std::vector<std::string> in_removal_order(std::vector<std::string> names) {
  std::stable_partition(names.begin(), names.end(),
                        [](const std::string& name) { return !name.ends_with(".ctl"); });
  return names;
}

}  // namespace optlease
