#include "actors/gpu_actor/wait_watch.h"

#include <chrono>

namespace optlease {
namespace {

constexpr std::chrono::milliseconds kLookInterval{4};

}  // namespace

WaitWatch::WaitWatch() : thread_([this] { run(); }) {}

WaitWatch::~WaitWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void WaitWatch::arm(std::function<Status()> check, std::function<void()> interrupt) {
  {
    const std::lock_guard lock(mutex_);
    OPTLEASE_CHECK(!armed_, "a wait is armed already");
    check_ = std::move(check);
    interrupt_ = std::move(interrupt);
    reason_ = Status::ok();
    armed_ = true;
  }
  wake_.notify_all();
}

Status WaitWatch::disarm() {
  const std::lock_guard lock(mutex_);
  armed_ = false;
  check_ = nullptr;
  interrupt_ = nullptr;
  return std::move(reason_);
}

void WaitWatch::look_now() {
  {
    const std::lock_guard lock(mutex_);
    look_now_ = true;
  }
  wake_.notify_all();
}

void WaitWatch::run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    if (!armed_ || !reason_.is_ok()) {
      wake_.wait(lock);
      continue;
    }
    // Most waits end before the first look and cost no wake-up of their own.
    wake_.wait_for(lock, kLookInterval, [this] { return stop_ || look_now_; });
    look_now_ = false;
    if (stop_ || !armed_ || !reason_.is_ok()) continue;
    reason_ = check_();
    if (!reason_.is_ok()) interrupt_();
  }
}

}  // namespace optlease
