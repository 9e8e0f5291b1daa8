// A rank around a StepMachine whose chunks the test moves: for tests of the actor's decisions.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "actors/gpu_actor/step_machine.h"

namespace optlease {

using Kind = NextAction::Kind;

// A rank of `chunk_count` chunks whose versions and published steps the test moves.
class MachineTest : public testing::Test {
 protected:
  void make(bool own_gradients, int64_t steps = 10) {
    ChunkFacts facts;
    facts.behind = [this](Step step) {
      return where([&](size_t c) { return versions[c] < step; });
    };
    facts.unpublished = [this](Step step) {
      return where([&](size_t c) { return published[c] != step; });
    };
    facts.skipped = [this](Step step) { return step == skipped_step; };
    facts.sums_are_sound = [this](Step step) { return step != unchecked_step; };
    machine = std::make_unique<StepMachine>(steps, own_gradients, std::move(facts));
  }
  template <class Wanted>
  std::vector<uint32_t> where(Wanted wanted) {
    std::vector<uint32_t> chunks;
    for (uint32_t c = 0; c < versions.size(); ++c) {
      if (wanted(c)) chunks.push_back(c);
    }
    return chunks;
  }
  // The actions of one turn; time moves by a second so that repeats are due.
  std::vector<NextAction> turn() { return machine->next(now_ms += 1000); }
  static const NextAction* find(const std::vector<NextAction>& actions, Kind kind) {
    for (const NextAction& action : actions) {
      if (action.kind == kind) return &action;
    }
    return nullptr;
  }
  void finish_run(Step step) {
    for (auto& version : versions) version = std::max(version, step);
    std::fill(published.begin(), published.end(), step);
    machine->on_run_over();
  }
  GoOrder order(bool gather, Step step) { return {gather, machine->group_epoch(), step, {1, 1}}; }
  // Attached at committed step `c` with everything published, in group 7.
  void settle(Step c) {
    std::fill(versions.begin(), versions.end(), c);
    std::fill(published.begin(), published.end(), c);
    machine->on_welcome(c, kNoStep);
    machine->on_group_formed(7);
    machine->on_order(order(true, c));
    ASSERT_NE(find(turn(), Kind::kRunCollective), nullptr);
    machine->on_gathered(7, c);
    ASSERT_EQ(machine->published(), c);
  }

  std::vector<Step> versions = {kNoStep, kNoStep, kNoStep};
  std::vector<Step> published = {kNoStep, kNoStep, kNoStep};
  Step skipped_step = kNoStep;
  Step unchecked_step = kNoStep;  // whose sums another incarnation left
  uint64_t now_ms = 0;
  std::unique_ptr<StepMachine> machine;
};

}  // namespace optlease
