// The figures of each step, measured around the pipeline's runs and appended to the rank's step log
// (actors/runtime/step_figures.h). Used by the actor where telemetry.step_log is on; one thread. A
// log that cannot be written is a warning: no step waits for it or fails because of it.
#pragma once

#include <optional>

#include "actors/gpu_actor/device.h"
#include "actors/gpu_actor/window_pipeline.h"
#include "actors/runtime/step_figures.h"
#include "shm/shared_buffer.h"

namespace optlease {

class StepLog {
 public:
  // Appends to `path`. What `device` has in use now is its level before the job.
  static Result<StepLog> open(const std::string& path, uint64_t incarnation, const Device& device);

  // What parameters, gradients and shards took of the device's memory.
  void set_buffer_bytes(uint64_t bytes) { figures_.device_buffer_bytes = bytes; }
  // Looks how much of the device's memory is in use.
  void look_at_memory(const Device& device);
  // A prefetch begins: what it copies counts for the run that goes on with it.
  void read_ahead_begins(const Device& device) { read_ahead_ = device.counters(); }
  // A run of `step` is about to begin. Of a step that took several (it was cut off and taken up
  // again) the last one counts.
  void run_begins(Step step, const Device& device, const WindowPipeline& pipeline);
  bool run_in_hand() const { return running_; }
  void run_over(const Device& device, const WindowPipeline& pipeline);
  // The gather of the step in hand ended so long after the run's last window was computed.
  void gathered(double exposed_seconds) { figures_.gather_exposed_seconds = exposed_seconds; }
  // `step` is committed and its parameters are out: its line is written. A step without a run
  // (skipped) has zeros.
  void step_over(Step step, double step_seconds);

 private:
  struct Marks {
    DeviceCounters device;
    PipelineCounters pipeline;
    double cpu_seconds = 0;
    uint64_t begun_us = 0;
  };
  StepLog(UniqueFd file, uint64_t incarnation) : file_(std::move(file)) {
    figures_.incarnation = incarnation;
  }

  UniqueFd file_;
  bool running_ = false;
  bool warned_ = false;
  Step measured_ = kNoStep;  // the step that figures_ is about
  Marks marks_;
  DeviceCounters read_ahead_;  // before the last prefetch
  StepFigures figures_;
};

}  // namespace optlease
