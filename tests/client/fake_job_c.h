/* The fake job of fake_job.h for tests written in C: rank 0 of three_space_plan, whose actor
 * subtracts the gradients of space "dense" from its parameters (times lr, where one is given). */
#ifndef OPTLEASE_TESTS_FAKE_JOB_C_H
#define OPTLEASE_TESTS_FAKE_JOB_C_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct fake_job fake_job;

typedef struct fake_seen {
  uint32_t attaches;
  uint32_t detaches;
  uint32_t step_requests;
  uint32_t steps_applied;
  uint32_t abi_version;
  uint32_t pid;
  int64_t step;
  double lr;
  double grad_scale;
  double max_norm;
  uint32_t keep_blob;
  uint32_t blob_bytes;
  uint32_t prepares;
  int64_t prepared;
} fake_seen;

/* Sets XDG_RUNTIME_DIR, OPTLEASE_JOB and OPTLEASE_RANK for the client. */
fake_job* fake_job_start(const char* job);
void fake_job_stop(fake_job* job);
fake_seen fake_job_seen(const fake_job* job);
void fake_job_crash_on_step(fake_job* job, int after_commit, uint32_t down_ms);
void fake_job_refuse(fake_job* job, int status, const char* text, uint32_t times);
void fake_job_refuse_in_reply(fake_job* job, int status, const char* text, uint32_t times);
void fake_job_skip_next_step(fake_job* job);
void fake_job_set_down(fake_job* job, int down);
void fake_job_set_silent(fake_job* job, int silent);
void fake_job_set_noisy(fake_job* job, int noisy);
void fake_job_set_committed(fake_job* job, int64_t step, const void* blob, size_t bytes);
void fake_job_hide_buffers(fake_job* job, uint32_t after_ms);
void fake_job_remove_run_directory(fake_job* job);
/* The run directory's permission bits. */
void fake_job_set_mode(fake_job* job, unsigned mode);

#ifdef __cplusplus
}
#endif

#endif
