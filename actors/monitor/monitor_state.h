// What a monitor knows of a job's actors. Pure: it takes documents and times and holds no socket or
// clock. Used by the renderer and the program.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "actors/runtime/telemetry.h"
#include "shm/contract/status.h"

namespace optlease {

// One rank, as far as its actor has spoken.
struct RankView {
  std::optional<ActorTelemetry> last;  // the newest document of the newest incarnation
  int64_t last_ms = 0;                 // when it came
  uint64_t gaps = 0;                   // published documents that never came
  uint64_t bad_documents = 0;          // unreadable, or of another job or rank
  uint64_t published_incarnation =
      0;  // of the last published document, where gaps are counted from
  uint64_t published_sequence = 0;
};

class MonitorState {
 public:
  MonitorState(std::string job, uint32_t world_size, int64_t steps, uint64_t interval_ms)
      : job_(std::move(job)), steps_(steps), interval_ms_(interval_ms), ranks_(world_size) {}

  enum class Source { kSnapshot, kPublished };
  // Takes one frame that came from the socket of `rank`. Ok: it changed the view. StaleStep: it is
  // no newer than what is known. InvalidArgument and others: it was no document of this actor.
  Status on_frame(uint32_t rank, Source source, const std::string& frame, int64_t now_ms);

  const std::string& job() const { return job_; }
  int64_t steps() const { return steps_; }
  const std::vector<RankView>& ranks() const { return ranks_; }
  uint32_t ranks_heard() const;
  // An actor that has spoken and has been quiet for longer than a slow machine explains.
  bool is_silent(const RankView& rank, int64_t now_ms) const;

 private:
  static void count_gap(RankView& rank, const ActorTelemetry& document);

  std::string job_;
  int64_t steps_;
  uint64_t interval_ms_;
  std::vector<RankView> ranks_;
};

}  // namespace optlease
