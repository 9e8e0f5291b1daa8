#include "actors/gpu_actor/step_log.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "actors/runtime/clock.h"
#include "actors/runtime/log.h"
#include "shm/eintr.h"

namespace optlease {
namespace {

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

double own_cpu_seconds() {
  rusage usage{};
  if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
  return seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
}

double seconds_between(uint64_t begin_us, uint64_t end_us) {
  return end_us > begin_us ? static_cast<double>(end_us - begin_us) * 1e-6 : 0;
}

}  // namespace

Result<StepLog> StepLog::open(const std::string& path, uint64_t incarnation, const Device& device) {
  // O_NONBLOCK: a pipe in its place is an error, not a wait for somebody who reads it.
  UniqueFd file(retry_eintr([&] {
    return ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
                  0600);
  }));
  if (!file) {
    return Status(StatusCode::kIo, format("the step log %s cannot be opened: %s", path.c_str(),
                                          std::strerror(errno)));
  }
  StepLog log(std::move(file), incarnation);
  log.look_at_memory(device);
  log.figures_.device_bytes_before = log.figures_.device_bytes;
  return log;
}

void StepLog::look_at_memory(const Device& device) {
  figures_.device_bytes = device.memory_use().used_bytes;
  figures_.device_bytes_peak = std::max(figures_.device_bytes_peak, figures_.device_bytes);
  figures_.staging_bytes = device.staging_bytes();
}

void StepLog::run_begins(Step step, const Device& device, const WindowPipeline& pipeline) {
  running_ = true;
  measured_ = step;
  const bool goes_on = pipeline.prefetching() == step;
  const DeviceCounters now = device.counters();
  figures_.read_ahead_bytes = goes_on ? now.bytes_in - read_ahead_.bytes_in : 0;
  marks_ = {goes_on ? read_ahead_ : now, pipeline.counters(), own_cpu_seconds(),
            static_cast<uint64_t>(now_us())};
}

void StepLog::run_over(const Device& device, const WindowPipeline& pipeline) {
  running_ = false;
  const DeviceCounters now = device.counters();
  const RunTimes& times = pipeline.times();
  StepFigures& f = figures_;
  f.stream_begun_us = marks_.begun_us;
  f.stream_ended_us = times.ended_us;
  f.stream_seconds = seconds_between(marks_.begun_us, times.ended_us);
  f.first_window_seconds = seconds_between(marks_.begun_us, times.first_window_us);
  f.bytes_in = now.bytes_in - marks_.device.bytes_in;
  f.bytes_out = now.bytes_out - marks_.device.bytes_out;
  f.bounced_bytes = now.bounced_bytes - marks_.device.bounced_bytes;
  f.kernel_seconds = now.kernel_seconds - marks_.device.kernel_seconds;
  f.in_busy_seconds = times.in_busy_seconds;
  f.out_busy_seconds = times.out_busy_seconds;
  f.in_busy_seconds_after_first = times.in_busy_seconds - times.in_busy_seconds_before;
  f.stall_seconds = pipeline.counters().stall_seconds - marks_.pipeline.stall_seconds;
  f.lease_wait_seconds =
      pipeline.counters().lease_wait_seconds - marks_.pipeline.lease_wait_seconds;
  f.cpu_seconds = own_cpu_seconds() - marks_.cpu_seconds;
}

void StepLog::step_over(Step step, double step_seconds) {
  StepFigures line = figures_;
  if (measured_ != step) {
    line = {};
    line.incarnation = figures_.incarnation;
    line.device_bytes_before = figures_.device_bytes_before;
    line.device_bytes_peak = figures_.device_bytes_peak;
    line.device_bytes = figures_.device_bytes;
    line.device_buffer_bytes = figures_.device_buffer_bytes;
    line.staging_bytes = figures_.staging_bytes;
  }
  line.step = step;
  line.step_seconds = step_seconds;
  const std::string text = to_json(line) + "\n";
  const ssize_t written =
      retry_eintr([&] { return ::write(file_.get(), text.data(), text.size()); });
  if (written == static_cast<ssize_t>(text.size()) || warned_) return;
  warned_ = true;
  log_warn("the step log is not whole: %s", written < 0 ? std::strerror(errno) : "short write");
}

}  // namespace optlease
