// Time and chance of a simulated node: a queue of events in the order of their virtual time, and a
// seeded source of numbers. Both depend on nothing else, so that a seed repeats a run.
#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <queue>
#include <random>
#include <utility>
#include <vector>

namespace optlease {

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}

  uint64_t below(uint64_t bound) { return random_() % bound; }
  uint64_t within(uint64_t least, uint64_t most) { return least + below(most - least + 1); }
  bool one_in(uint64_t n) { return below(n) == 0; }
  // Each power of two between the two is as likely as any other. REQUIRES: least > 0.
  uint64_t spread(uint64_t least, uint64_t most) {
    const double share = static_cast<double>(below(1u << 20)) / (1u << 20);
    const double ratio = static_cast<double>(most) / static_cast<double>(least);
    return static_cast<uint64_t>(static_cast<double>(least) * std::pow(ratio, share));
  }

 private:
  std::mt19937_64 random_;
};

class SimClock {
 public:
  // A clock that starts at 0 would hide what takes 0 for "never".
  static constexpr uint64_t kStartUs = 1'000'000;

  uint64_t now_us() const { return now_us_; }
  uint64_t now_ms() const { return now_us_ / 1000; }
  uint64_t events() const { return events_; }

  void after(uint64_t delay_us, std::function<void()> what) {
    queue_.push({now_us_ + delay_us, next_++, std::move(what)});
  }
  // The next event; of those of one time the one that was asked for first. False: there is none.
  bool run_one() {
    if (queue_.empty()) return false;
    // The queue gives nothing away but copies; its order does not depend on what is moved out.
    const std::function<void()> what = std::move(const_cast<Event&>(queue_.top()).what);
    now_us_ = queue_.top().at_us;
    queue_.pop();
    ++events_;
    what();
    return true;
  }

 private:
  struct Event {
    uint64_t at_us;
    uint64_t number;
    std::function<void()> what;
    bool operator<(const Event& other) const {
      return std::pair(at_us, number) > std::pair(other.at_us, other.number);
    }
  };
  std::priority_queue<Event> queue_;
  uint64_t now_us_ = kStartUs;
  uint64_t next_ = 0;
  uint64_t events_ = 0;
};

}  // namespace optlease
