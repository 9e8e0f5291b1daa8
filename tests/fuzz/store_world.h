// A store service with two ranks for store_fuzz.cc: the operations that an input spells, honest
// messages made of what the store itself said, and the checks after each.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "actors/host_store/store_service.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/segment_image.h"

namespace optlease::fuzz {

class StoreWorld {
 public:
  // `start`: which state lies in the segments: none yet, a step committed, the next one open.
  explicit StoreWorld(uint8_t start);
  // One operation of the input.
  void step(Input* input);
  // As SIGKILL of the store and a new one that recovers.
  void restart_store();
  bool finished() const { return service_->finished(); }

 private:
  struct Talker {
    std::string peer;
    Rank rank;
    uint64_t incarnation = 0;
  };
  Talker talker(uint32_t number, Input* input) const;
  std::string frame_of(const Talker& from, uint32_t form, Input* input);
  std::string honest(const Talker& from, MessageKind kind, Input* input);
  std::string honest_actor(const Talker& from, MessageKind kind, Input* input);
  std::string honest_commit(const Talker& from, MessageKind kind, Input* input);
  std::string honest_launcher(const Talker& from, MessageKind kind, Input* input);
  std::string honest_tool(const Talker& from, MessageKind kind, Input* input);
  template <class Body>
  std::string say(const Talker& from, MessageKind kind, const Body& body,
                  std::string_view payload = {}) {
    return encode(Speaker{from.rank.value, from.incarnation, service_->store().epoch().value}, kind,
                  ++sequence_, body, payload);
  }
  void hear(const Message& message);
  void settle();
  void check();
  void open();

  struct Grant {
    LeaseGrantBody body{};
    std::vector<GrantEntry> entries;
  };
  const SegmentPlan& plan_;
  SegmentNames names_;
  std::optional<StoreService> service_;
  uint64_t now_ms_ = 1000;
  uint64_t sequence_ = 0;
  uint32_t kills_ = 0;
  uint64_t lives_[2] = {0, 0};  // the newest incarnation of each rank
  Grant grants_[2];             // the last one that each was given
  uint64_t hold_id_ = 0;        // the last one that was granted
  Step committed_ = kNoStep;
  std::vector<Step> versions_;
};

std::vector<std::string> store_seeds();

}  // namespace optlease::fuzz
