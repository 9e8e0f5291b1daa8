// The committed step of a running job, read from its control segment: what the store has told may
// be some milliseconds older. Used by the Supervisor at a death. It maps nothing: whatever somebody
// does to the file, reading it cannot end this process.
#pragma once

#include <optional>
#include <string>

#include "shm/contract/ids.h"
#include "shm/segment.h"

namespace optlease {

class CommittedWord {
 public:
  static Result<CommittedWord> open(const std::string& control_segment);
  // Nothing where the file has become too short.
  std::optional<Step> read() const;

 private:
  explicit CommittedWord(Segment segment) : segment_(std::move(segment)) {}
  Segment segment_;
};

}  // namespace optlease
