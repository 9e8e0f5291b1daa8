// What every part of a simulated node shares: its options, clock and dice, the plan of its
// segments, and the first rule that was found broken.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "shm/chunk_store.h"
#include "tests/simulation/sim_clock.h"
#include "tests/simulation/sim_options.h"

namespace optlease {

struct SimContext {
  explicit SimContext(const SimOptions& drawn)
      : options(drawn), plan(segment_plan_of(drawn)), dice(drawn.seed) {
    for (uint32_t r = 0; r < options.ranks; ++r) arenas.push_back(arena_of(plan, Rank{r}));
  }

  // The first one counts: what follows may be its consequence.
  void fail(const std::string& what) {
    if (!failure.empty()) return;
    failure =
        format("event %llu, %llu.%03llu ms: ", static_cast<unsigned long long>(clock.events()),
               static_cast<unsigned long long>(clock.now_ms()),
               static_cast<unsigned long long>(clock.now_us() % 1000)) +
        what;
  }

  // Constant after construction.
  SimOptions options;
  SegmentPlan plan;
  std::vector<ArenaSpec> arenas;  // by rank
  SegmentNames names;
  bool traced = false;  // every message and death on stdout
  // Change.
  SimClock clock;
  Dice dice;
  std::string failure;
};

// A line of the trace. Its cost is a branch where nobody reads it.
#define SIM_TRACE(context, ...)                                                               \
  do {                                                                                        \
    if ((context).traced) [[unlikely]]                                                        \
      std::printf("%llu us: %s\n", static_cast<unsigned long long>((context).clock.now_us()), \
                  format(__VA_ARGS__).c_str());                                               \
  } while (false)

}  // namespace optlease
