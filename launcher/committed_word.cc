#include "launcher/committed_word.h"

#include <unistd.h>

#include <cstddef>

#include "shm/contract/segment_layout.h"
#include "shm/eintr.h"

namespace optlease {

Result<CommittedWord> CommittedWord::open(const std::string& control_segment) {
  auto segment = Segment::open(control_segment, Segment::Access::kReadOnly);
  if (!segment) return segment.status();
  segment.value().unmap();
  return CommittedWord(std::move(segment).value());
}

std::optional<Step> CommittedWord::read() const {
  Step step = kNoStep;  // an aligned word of one page: the kernel copies it whole
  const auto got = retry_eintr([&] {
    return pread(segment_.fd(), &step, sizeof step, offsetof(SegmentHeader, step_committed));
  });
  if (got != static_cast<ssize_t>(sizeof step)) return std::nullopt;
  return step;
}

}  // namespace optlease
