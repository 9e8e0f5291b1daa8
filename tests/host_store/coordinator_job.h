// A StepCoordinator of two ranks, for tests of its rules.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "actors/host_store/step_coordinator.h"

namespace optlease {

using Kind = StoreAction::Kind;

class StepCoordinatorTest : public testing::Test {
 protected:
  // Two ranks of two chunks, step 0 committed and gathered.
  static CoordinatorFacts facts(Step committed) {
    return {.epoch = StoreEpoch{3},
            .step_committed = committed,
            .ranks = {{.chunk_count = 2}, {.chunk_count = 2}}};
  }
  void start(const CoordinatorFacts& facts) { coordinator_.emplace(facts); }
  void attach_all(Step published) {
    for (uint32_t r = 0; r < 2; ++r) c().on_attached(Rank{r}, published, false);
  }
  void ready_all(Step step) {
    for (uint32_t r = 0; r < 2; ++r) c().on_ready(Rank{r}, step);
  }
  // Every rank ready, the step reduced, every record durable, the step open. The kinds of the end.
  std::vector<Kind> open_step(Step step, bool skipped = false) {
    ready_all(step);
    kinds();
    record_all(step, skipped);
    return kinds();
  }
  void record_all(Step step, bool skipped = false) {
    for (uint32_t r = 0; r < 2; ++r) c().on_record(Rank{r}, step, skipped);
  }
  StepCoordinator& c() { return *coordinator_; }
  // The kinds that advance() returns.
  std::vector<Kind> kinds(uint64_t now_ms = 0) {
    actions_ = c().advance(now_ms);
    std::vector<Kind> out;
    for (const StoreAction& action : actions_) out.push_back(action.kind);
    return out;
  }
  using Kinds = std::vector<Kind>;

  std::optional<StepCoordinator> coordinator_;
  std::vector<StoreAction> actions_;
};

}  // namespace optlease
