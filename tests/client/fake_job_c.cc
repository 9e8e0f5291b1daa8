#include "tests/client/fake_job_c.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <cmath>

#include "tests/client/fake_job.h"

using optlease::FakeSpace;
using optlease::StatusCode;
using optlease::StepRequestBody;

struct fake_job {
  explicit fake_job(const char* name)
      : impl(optlease::three_space_plan(name), 0, subtract_gradients) {}

  static void subtract_gradients(const StepRequestBody& step,
                                 const std::vector<FakeSpace>& spaces) {
    auto* params = static_cast<float*>(spaces[0].params);
    const auto* grads = static_cast<const float*>(spaces[0].grads);
    const float factor = std::isnan(step.lr) ? 1.0f : static_cast<float>(step.lr);
    for (uint64_t i = 0; i < spaces[0].elements; ++i) params[i] -= factor * grads[i];
  }

  optlease::FakeJob impl;
};

fake_job* fake_job_start(const char* job) {
  ::setenv("OPTLEASE_JOB", job, 1);
  ::setenv("OPTLEASE_RANK", "0", 1);
  auto* started = new fake_job(job);
  const FakeSpace dense = started->impl.spaces()[0];
  for (uint64_t i = 0; i < dense.elements; ++i)
    static_cast<float*>(dense.params)[i] = static_cast<float>(i);
  return started;
}

void fake_job_stop(fake_job* job) { delete job; }

fake_seen fake_job_seen(const fake_job* job) {
  const optlease::FakeSeen seen = job->impl.seen();
  return {seen.attaches,           seen.detaches,      seen.step_requests,  seen.steps_applied,
          seen.attach.abi_version, seen.attach.pid,    seen.step.step,      seen.step.lr,
          seen.step.grad_scale,    seen.step.max_norm, seen.step.keep_blob, seen.step.blob_bytes,
          seen.prepares,           seen.prepared};
}

void fake_job_crash_on_step(fake_job* job, int after_commit, uint32_t down_ms) {
  job->impl.crash_on_step(after_commit != 0, down_ms);
}
void fake_job_refuse(fake_job* job, int status, const char* text, uint32_t times) {
  job->impl.refuse(static_cast<StatusCode>(status), text, times);
}
void fake_job_refuse_in_reply(fake_job* job, int status, const char* text, uint32_t times) {
  job->impl.refuse_in_reply(static_cast<StatusCode>(status), text, times);
}
void fake_job_skip_next_step(fake_job* job) { job->impl.skip_next_step(); }
void fake_job_set_down(fake_job* job, int down) { job->impl.set_down(down != 0); }
void fake_job_set_silent(fake_job* job, int silent) { job->impl.set_silent(silent != 0); }
void fake_job_set_noisy(fake_job* job, int noisy) { job->impl.set_noisy(noisy != 0); }
void fake_job_set_committed(fake_job* job, int64_t step, const void* blob, size_t bytes) {
  job->impl.set_committed(step, std::string(static_cast<const char*>(blob), bytes));
}
void fake_job_hide_buffers(fake_job* job, uint32_t after_ms) { job->impl.hide_buffers(after_ms); }
void fake_job_remove_run_directory(fake_job* job) { job->impl.remove_run_directory(); }
void fake_job_set_mode(fake_job* job, unsigned mode) {
  ::chmod(job->impl.run_directory().c_str(), static_cast<mode_t>(mode));
}
