// A seeded model of a job whose processes die at random: whatever happens, the rules that the store
// and the segments rely on hold for every action that the core asks for.
#include <gtest/gtest.h>
#include <signal.h>

#include <map>
#include <random>
#include <set>

#include "launcher/supervisor_core.h"
#include "tests/support/test_seed.h"

namespace optlease {
namespace {

using Kind = Action::Kind;

struct Process {
  bool lifeline_open = true;
};

class Model {
 public:
  explicit Model(uint64_t seed) : random_(seed), core_(options(), now_) {}

  void run(int rounds) {
    for (int i = 0; i < rounds && !testing::Test::HasFatalFailure(); ++i) one_round();
  }
  // Everything dies when it is told to; returns whether the job then ends.
  bool wind_down() {
    core_.stop(Ending::kStopped, "enough", now_);
    for (int i = 0; i < 200 && !core_.finished(); ++i) {
      now_ += 20;
      core_.advance(now_);
      obey();
      for (auto it = living_.begin(); it != living_.end();) {
        core_.reaped(it->first.first, it->first.second, {true, SIGKILL}, false, now_);
        it = living_.erase(it);
      }
      obey();
    }
    return core_.finished();
  }
  size_t spawns() const { return spawns_; }

 private:
  using Key = std::pair<Seat, uint64_t>;

  static CoreOptions options() {
    CoreOptions out;
    out.world_size = 3;
    out.trainers = true;
    out.steps = 1 << 30;
    out.restart.intensity = 1u << 30;
    out.restart.backoff_ms = 5;
    out.restart.backoff_ms_max = 40;
    return out;
  }
  uint64_t below(uint64_t bound) { return random_() % bound; }

  void one_round() {
    now_ += below(15);
    if (!living_.empty() && below(4) == 0) {
      auto victim = std::next(living_.begin(), static_cast<long>(below(living_.size())));
      const Key key = victim->first;
      if (victim->second.lifeline_open && below(3) != 0) {
        victim->second.lifeline_open = false;
        core_.lifeline_closed(key.first, key.second, now_);
      } else {
        living_.erase(victim);
        const bool ended_well = key.first.role == Role::kTrainer && below(8) == 0;
        core_.reaped(key.first, key.second, ended_well ? ExitInfo{false, 0} : ExitInfo{true, 9},
                     false, now_);
      }
    }
    if (below(3) == 0 && lives(Seat{Role::kHostStore, 0})) answer();
    if (below(20) == 0) {
      const Seat seat{below(2) == 0 ? Role::kGpuActor : Role::kHostStore, 0};
      (void)core_.kill_on_purpose(seat, DeathCause::kRehearsal, now_);
    }
    core_.advance(now_);
    obey();
  }

  bool lives(Seat seat) const {
    for (const auto& [key, process] : living_) {
      if (key.first == seat && process.lifeline_open) return true;
    }
    return false;
  }

  void answer() {
    StoreFacts facts;
    facts.body.step_committed = step_++;
    facts.body.step_open = step_;
    for (uint32_t r = 0; r < 3; ++r) {
      RankStatus rank{};
      rank.incarnation = told_started_[r];
      facts.ranks.push_back(rank);
    }
    core_.store_answered(facts, now_);
  }

  void obey() {
    for (const Action& action : core_.take_actions()) {
      const Key key{action.seat, action.life};
      switch (action.kind) {
        case Kind::kSpawn:
          check_spawn(action);
          living_[key] = Process{};
          ++spawns_;
          break;
        case Kind::kTellStarted:
          told_started_[action.seat.rank] = std::max(told_started_[action.seat.rank], action.life);
          break;
        case Kind::kTellReaped:
          EXPECT_FALSE(living_.contains(key)) << "a living process was reported as reaped";
          break;
        case Kind::kKill:
          EXPECT_TRUE(living_.contains(key)) << "a kill of " << text_of(action.seat);
          break;
        case Kind::kTerminate:
        case Kind::kTellLost:
        case Kind::kStopStore:
        case Kind::kNote:
        case Kind::kDied:
        case Kind::kFinish:
          break;
      }
    }
  }

  void check_spawn(const Action& action) {
    EXPECT_GT(action.life, last_life_[action.seat]) << "a life was used twice";
    last_life_[action.seat] = action.life;
    if (action.seat.role == Role::kGpuActor) {
      EXPECT_EQ(told_started_[action.seat.rank], action.life) << "the store was not told first";
    }
    for (const auto& [key, process] : living_) {
      if (key.first != action.seat) continue;
      EXPECT_EQ(action.seat.role, Role::kGpuActor) << "two of " << text_of(action.seat);
      EXPECT_FALSE(process.lifeline_open) << "two living of " << text_of(action.seat);
    }
  }

  std::mt19937_64 random_;
  uint64_t now_ = 1;
  SupervisorCore core_;
  std::map<Key, Process> living_;
  std::map<uint32_t, uint64_t> told_started_;
  std::map<Seat, uint64_t> last_life_;
  Step step_ = 0;
  size_t spawns_ = 0;
};

TEST(SupervisorModel, KeepsItsRulesUnderRandomDeaths) {
  const std::optional<uint64_t> wanted = given_test_seed();
  const uint64_t first = wanted.value_or(1);
  const uint64_t last = wanted.value_or(40);
  size_t spawns = 0;
  for (uint64_t seed = first; seed <= last; ++seed) {
    SCOPED_TRACE("OPTLEASE_TEST_SEED=" + std::to_string(seed));
    Model model(seed);
    model.run(3000);
    EXPECT_TRUE(model.wind_down());
    spawns += model.spawns();
  }
  EXPECT_GT(spawns, 100 * (last - first + 1)) << "the model killed too little to mean anything";
}

}  // namespace
}  // namespace optlease
