// Says where a job stands while nothing of it moves: which trainer has not asked for the step,
// which actors are in which phase, which collective does not end. It decides nothing: a step may
// take as long as its trainers need. Pure: the store's facts and the time come in, words go out,
// for the progress lines and for the report.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "launcher/supervisor_core.h"

namespace optlease {

struct Stall {
  Step step = kNoStep;  // that did not come to its end
  uint64_t lasted_ms = 0;
  bool over = false;  // the job moved on
  std::string text;   // where it stood when it was last looked at
};

class StallWatch {
 public:
  // How a process stands now, in words ("process 12 (python) is stopped ..."); empty: there is
  // none.
  using Standing = std::function<std::string(Seat seat)>;

  // A job in which nothing moves for `patience_ms`, and for four times as long as it ever did
  // before it moved on, but no longer than ten times `patience_ms`, is said to stand.
  StallWatch(uint64_t patience_ms, bool has_trainers);

  // To be called about once a second with the store's last answer. Words for people, at most one a
  // doubling of the time that it takes. A gap between two looks (a suspended launcher) is nobody's.
  std::optional<std::string> look(const StoreFacts& facts, uint64_t now_ms,
                                  const Standing& standing);
  // The last kStallsMax; the one under way is the last.
  std::vector<Stall> stalls() const { return stalls_; }

 private:
  struct Place {
    Step committed = kNoStep;
    Step open = kNoStep;
    uint64_t commits = 0;
    std::vector<uint64_t> lives;
    bool operator==(const Place&) const = default;
  };
  static Place place_of(const StoreFacts& facts);
  std::string where_it_stands(const StoreFacts& facts, const Standing& standing) const;

  uint64_t patience_ms_;
  bool has_trainers_;
  Place place_;
  uint64_t since_ms_ = 0;
  uint64_t looked_ms_ = 0;
  uint64_t longest_ms_ = 0;  // that it stood and moved on
  uint64_t say_at_ms_ = 0;   // after so long; 0: not decided yet
  bool is_stalled_ = false;  // the last of stalls_ is under way
  std::vector<Stall> stalls_;
};
inline constexpr size_t kStallsMax = 100;

}  // namespace optlease
