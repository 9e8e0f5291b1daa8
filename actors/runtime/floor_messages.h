// What `optlease bench` and its floor processes say to each other, one datagram a message: the
// launcher's setup, then any number of orders, each answered by one reply. Pure; the sockets are
// the two programs'. JSON, so that a process started by hand can be read.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "shm/contract/status.h"

namespace optlease {

enum class FloorDirection : uint32_t { kIn = 0, kOut = 1, kBoth = 2 };
const char* name_of(FloorDirection direction);

// Both directions have `copies` copies of `copy_bytes` each a round, each from or to a slot of its
// own: 2 x copies x slot_bytes of shared memory.
struct FloorSetup {
  std::string device = "cpu";
  uint32_t rank = 0;
  uint64_t copy_bytes = 0;
  uint64_t slot_bytes = 0;  // copy_bytes in whole pages
  uint32_t copies = 0;

  uint64_t round_bytes() const { return copy_bytes * copies; }  // a direction
  uint64_t memory_bytes() const { return 2 * slot_bytes * copies; }
};

struct FloorOrder {
  FloorDirection direction = FloorDirection::kBoth;
  uint64_t measure_ms = 0;  // rounds are begun for so long; one at least
};

// The answer to setup (ready to be measured) and to orders. A failure ends the process with the
// exit code; its words are in `failure`.
struct FloorReply {
  std::string failure;
  int exit_code = 0;
  uint64_t rounds = 0;
  double round_seconds = 0;  // median
  double best_round_seconds = 0;
  uint64_t bounced_bytes = 0;  // of all rounds: copies of memory that was not pinned
  uint64_t pinned_ms = 0;      // of setup: until copies were as fast as they get
};

// Null, or the broken rule in words.
std::string why_invalid(const FloorSetup& setup);

std::string to_json(const FloorSetup& setup);
std::string to_json(const FloorOrder& order);
std::string to_json(const FloorReply& reply);
Result<FloorSetup> floor_setup_from(std::string_view datagram);
Result<FloorOrder> floor_order_from(std::string_view datagram);
Result<FloorReply> floor_reply_from(std::string_view datagram);

// What either side sends at most.
inline constexpr size_t kFloorDatagramBytesMax = 8192;
// Rounds that one order may take, whatever its time.
inline constexpr uint64_t kFloorRoundsMax = 1'000'000;

}  // namespace optlease
