// Whole jobs in one process: the real launcher's core, host store, actors' cores and trainers on a
// simulated node whose processes die, stand still and come back, with what must always hold looked
// at after every event (sim_ledger.h). docs/TESTING.md, "The simulation".
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "actors/runtime/log.h"
#include "tests/simulation/sim_world.h"
#include "tests/support/test_seed.h"

namespace optlease {
namespace {

constexpr uint64_t kEvents = 1'200'000;  // of the default run

uint64_t g_seed = 0;  // of the world that runs
const SimWorld* g_world = nullptr;

// A check of the product that failed ends the program: whose world it was is said first.
void on_abort(int signal) {
  std::signal(signal, SIG_DFL);
  std::fprintf(stderr, "aborted: OPTLEASE_TEST_SEED=%llu, event %llu\n",
               static_cast<unsigned long long>(g_seed),
               static_cast<unsigned long long>(g_world == nullptr ? 0 : g_world->events()));
}

struct Totals {
  uint64_t worlds = 0, events = 0, messages = 0, deaths = 0, flips = 0, opened = 0;
  double virtual_seconds = 0;
};

uint64_t wanted(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  if (text == nullptr) return otherwise;
  char* end = nullptr;
  const uint64_t number = std::strtoull(text, &end, 10);
  OPTLEASE_CHECK(end != text && *end == '\0', "%s is no number: '%s'", name, text);
  return number;
}

void run_world(uint64_t seed, bool faults, Totals* totals) {
  g_seed = seed;
  SimWorld world(draw_options(seed, faults), wanted("OPTLEASE_SIM_TRACE", 0) != 0);
  g_world = &world;
  const std::string broken = world.run();
  g_world = nullptr;
  EXPECT_EQ(broken, "") << "found with OPTLEASE_TEST_SEED=" << seed;
  ++totals->worlds;
  totals->events += world.events();
  totals->messages += world.messages();
  totals->deaths += world.deaths();
  totals->flips += world.ledger().flips();
  totals->opened += world.ledger().steps_opened();
  totals->virtual_seconds += static_cast<double>(world.virtual_us()) * 1e-6;
}

void print(const Totals& totals, double seconds) {
  std::printf(
      "%llu worlds, %llu events (%llu messages of the store), %llu deaths, %llu commit words, %llu "
      "steps opened, %.0f s of virtual time in %.1f s: %.1f million events a minute\n",
      static_cast<unsigned long long>(totals.worlds),
      static_cast<unsigned long long>(totals.events),
      static_cast<unsigned long long>(totals.messages),
      static_cast<unsigned long long>(totals.deaths), static_cast<unsigned long long>(totals.flips),
      static_cast<unsigned long long>(totals.opened), totals.virtual_seconds, seconds,
      static_cast<double>(totals.events) / seconds * 60e-6);
}

class Simulation : public testing::Test {
 protected:
  void SetUp() override {
    init_logging("simulation", LogLevel::kError);
    std::signal(SIGABRT, on_abort);
    std::signal(SIGSEGV, on_abort);
    std::signal(SIGPIPE, SIG_IGN);  // a reader that leaves must not leave segments behind
  }
};

TEST_F(Simulation, OfANodeWhereNothingGoesWrongEndsWithTheResidentRunsState) {
  Totals totals;
  const uint64_t first = test_seed();
  for (uint64_t seed = first; seed < first + 20 && !HasFailure(); ++seed) {
    run_world(seed, /*faults=*/false, &totals);
  }
  EXPECT_EQ(totals.worlds, 20u);
  EXPECT_GT(totals.opened, 20u) << "too few steps to mean anything";
}

TEST_F(Simulation, OfANodeWhoseProcessesDieAtAnyEventBreaksNoRule) {
  Totals totals;
  const auto begun = std::chrono::steady_clock::now();
  const uint64_t events = wanted("OPTLEASE_SIM_EVENTS", kEvents);
  uint64_t seed = test_seed();
  for (; totals.events < events && !HasFailure(); ++seed) run_world(seed, true, &totals);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begun;
  print(totals, taken.count());
  EXPECT_GT(totals.deaths, totals.events / 5000) << "too little died to mean anything";
}

}  // namespace
}  // namespace optlease
