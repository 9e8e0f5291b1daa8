#include "tests/simulation/sim_link.h"

#include <algorithm>
#include <utility>

namespace optlease {

uint64_t SimLink::delay_us() {
  Dice& dice = context_.dice;
  const uint64_t kind = dice.below(200);
  if (kind == 0) return dice.spread(20'000, 1'500'000);
  if (kind < 15) return dice.spread(500, 20'000);
  return dice.within(5, 300);
}

void SimLink::send(std::string frame, size_t waiting_max) {
  if (closed_) return;
  if (connected_ != 0) return push_up(std::move(frame));
  if (waiting_.size() < waiting_max) waiting_.push_back(std::move(frame));
}

void SimLink::push_up(std::string frame) {
  const uint64_t number = next_++;
  up_.push_back({number, std::move(frame)});
  up_at_us_ = std::max(up_at_us_, context_.clock.now_us() + delay_us());
  context_.clock.after(up_at_us_ - context_.clock.now_us(), [this, number] {
    if (up_.empty() || up_.front().number != number) return;  // lost
    std::string arrived = std::move(up_.front().frame);
    up_.pop_front();
    at_server_(std::move(arrived));
  });
}

void SimLink::reply(uint64_t server_life, std::string frame) {
  if (closed_ || connected_ != server_life) return;
  const uint64_t number = next_++;
  down_.push_back({number, std::move(frame)});
  down_at_us_ = std::max(down_at_us_, context_.clock.now_us() + delay_us());
  context_.clock.after(down_at_us_ - context_.clock.now_us(), [this, number] {
    if (down_.empty() || down_.front().number != number) return;
    std::string arrived = std::move(down_.front().frame);
    down_.pop_front();
    if (!closed_) at_client_(std::move(arrived));
  });
}

void SimLink::server_up(uint64_t server_life) {
  if (connected_ != 0) server_down();
  server_ = server_life;
  if (closed_) return;
  context_.clock.after(context_.dice.spread(20, 100'000),
                       [this, server_life] { connect(server_life); });
}

void SimLink::connect(uint64_t server_life) {
  if (closed_ || server_ != server_life) return;
  connected_ = server_life;
  for (std::string& frame : std::exchange(waiting_, {})) push_up(std::move(frame));
}

// What the dead one's socket held is lost; what was not handed over yet waits for the next one.
// What it had sent is still read, up to some frame.
void SimLink::server_down() {
  server_ = 0;
  if (connected_ == 0) return;
  connected_ = 0;
  size_t lost = context_.dice.below(up_.size() + 1);
  for (; lost > 0; --lost) up_.pop_front();
  for (InFlight& frame : up_) waiting_.push_back(std::move(frame.frame));
  up_.clear();
  down_.resize(context_.dice.below(down_.size() + 1));
}

// Its socket may still hold what it said last.
void SimLink::close(bool at_once) {
  if (closed_) return;
  closed_ = true;
  waiting_.clear();
  down_.clear();
  up_.resize(context_.dice.below(up_.size() + 1));
  if (!at_once) return;
  for (InFlight& frame : std::exchange(up_, {})) at_server_(std::move(frame.frame));
}

}  // namespace optlease
