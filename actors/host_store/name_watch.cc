#include "actors/host_store/name_watch.h"

#include <utility>

namespace optlease {

Result<NameWatch> NameWatch::over(const SegmentNames& names) {
  NameWatch watch;
  std::vector<std::string> all = names.arenas;
  all.push_back(names.control);
  for (const std::string& name : all) {
    Result<Segment> segment = Segment::open(name, Segment::Access::kReadOnly);
    if (!segment) return segment.status();
    segment.value().unmap();
    if (name == names.control) OPTLEASE_TRY(segment.value().mark_in_use());
    watch.segments_.push_back(std::move(segment).value());
  }
  return watch;
}

std::vector<std::string> NameWatch::lost_now() {
  std::vector<std::string> lost;
  std::erase_if(segments_, [&](const Segment& segment) {
    if (segment.name_still_ours()) return false;
    lost.push_back(Segment::path_of(segment.name()));
    return true;
  });
  return lost;
}

}  // namespace optlease
