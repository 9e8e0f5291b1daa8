/* Steps through the C interface: what is asked, crashes of the actor, refusals, timeouts, blobs. */
#include <math.h>
#include <unistd.h>

#include "actors/client/optlease.h"
#include "tests/client/c_check.h"
#include "tests/client/fake_job_c.h"

static optlease_client* attach(void) {
  optlease_client* client = NULL;
  CHECK_STATUS(optlease_attach(NULL, &client), OPTLEASE_OK);
  return client;
}

static optlease_step_options step_options(void) {
  optlease_step_options options;
  memset(&options, 0, sizeof options);
  options.struct_bytes = sizeof options;
  options.timeout_ms = 20000;
  return options;
}

static void fill_grads(optlease_client* client, float value) {
  float* grads = optlease_grads(client, 0);
  for (int i = 0; i < 17; ++i) grads[i] = value;
}

static int64_t last_step(optlease_client* client) {
  int64_t step = -1;
  CHECK_STATUS(optlease_last_step(client, &step), OPTLEASE_OK);
  return step;
}

static void steps_as_configured_and_as_given(void) {
  fake_job* job = fake_job_start("c-step");
  optlease_client* client = attach();
  const float* params = optlease_params(client, 0);
  optlease_step_result result;
  result.struct_bytes = sizeof result;
  fill_grads(client, 1.0f);
  CHECK_STATUS(optlease_step(client, NULL, &result), OPTLEASE_OK);
  CHECK(result.step == 1 && result.skipped == 0 && result.grad_norm == 2.5);
  CHECK(params[0] == -1.0f && params[16] == 15.0f);
  fake_seen seen = fake_job_seen(job);
  CHECK(seen.step == 1 && isnan(seen.lr) && seen.grad_scale == 1.0 && isnan(seen.max_norm));
  CHECK(seen.keep_blob == 1 && seen.blob_bytes == 0);

  optlease_step_options options = step_options();
  options.given = OPTLEASE_STEP_LR | OPTLEASE_STEP_GRAD_SCALE | OPTLEASE_STEP_MAX_NORM;
  options.lr = 0.5;
  options.grad_scale = 1024.0;
  options.max_norm = 0.0;
  CHECK_STATUS(optlease_step(client, &options, NULL), OPTLEASE_OK);
  CHECK(params[0] == -1.5f);
  seen = fake_job_seen(job);
  CHECK(seen.step == 2 && seen.lr == 0.5 && seen.grad_scale == 1024.0 && seen.max_norm == 0.0);
  CHECK(last_step(client) == 2);

  fake_job_skip_next_step(job);
  CHECK_STATUS(optlease_step(client, NULL, &result), OPTLEASE_OK);
  CHECK(result.step == 3 && result.skipped == 1 && params[0] == -1.5f);
  CHECK_STATUS(optlease_detach(client), OPTLEASE_OK);
  fake_job_stop(job);
}

static void step_survives_a_restart_of_the_actor(void) {
  fake_job* job = fake_job_start("c-crash");
  optlease_client* client = attach();
  const float* params = optlease_params(client, 0);
  fill_grads(client, 1.0f);
  fake_job_crash_on_step(job, 0, 300);
  CHECK_STATUS(optlease_step(client, NULL, NULL), OPTLEASE_OK);
  CHECK(params[3] == 2.0f && last_step(client) == 1);
  fake_job_crash_on_step(job, 1, 300);
  CHECK_STATUS(optlease_step(client, NULL, NULL), OPTLEASE_OK);
  CHECK(params[3] == 1.0f && last_step(client) == 2); /* applied once, though asked for twice */
  const fake_seen seen = fake_job_seen(job);
  CHECK(seen.steps_applied == 2 && seen.step_requests >= 4);
  CHECK_STATUS(optlease_detach(client), OPTLEASE_OK);
  fake_job_stop(job);
}

static void step_ignores_noise_and_asks_again_while_busy(void) {
  fake_job* job = fake_job_start("c-noise");
  fake_job_set_noisy(job, 1);
  optlease_client* client = attach();
  CHECK(last_step(client) == 0);
  fake_job_refuse(job, OPTLEASE_BUSY, "not yet", 1);
  fake_job_refuse_in_reply(job, OPTLEASE_BUSY, "not yet", 1);
  CHECK_STATUS(optlease_step(client, NULL, NULL), OPTLEASE_OK);
  CHECK(last_step(client) == 1 && fake_job_seen(job).step_requests >= 3);
  CHECK_STATUS(optlease_detach(client), OPTLEASE_OK);
  fake_job_stop(job);
}

static void refused_step_is_told_in_words_and_can_be_tried_again(void) {
  fake_job* job = fake_job_start("c-refused");
  optlease_client* client = attach();
  fake_job_refuse_in_reply(job, OPTLEASE_CORRUPT, "chunk 7 does not hold", 1);
  CHECK_STATUS(optlease_step(client, NULL, NULL), OPTLEASE_CORRUPT);
  CHECK_SAYS(optlease_last_error(client), "step 1: rank 0's actor refused StepRequest");
  CHECK_SAYS(optlease_last_error(client), "chunk 7 does not hold");
  CHECK(strcmp(optlease_last_error(client), optlease_last_error(NULL)) == 0);
  fake_job_refuse(job, OPTLEASE_STALE_STEP, "the step is another", 1);
  CHECK_STATUS(optlease_step(client, NULL, NULL), OPTLEASE_STALE_STEP);
  CHECK(last_step(client) == 0);
  CHECK_STATUS(optlease_step(client, NULL, NULL), OPTLEASE_OK);
  CHECK(last_step(client) == 1);
  CHECK_STATUS(optlease_detach(client), OPTLEASE_OK);
  fake_job_stop(job);
}

static void step_after_a_timeout_goes_on_waiting_for_the_same_one(void) {
  fake_job* job = fake_job_start("c-timeout");
  optlease_client* client = attach();
  optlease_step_options options = step_options();
  options.timeout_ms = 300;
  options.blob = "first";
  options.blob_bytes = 5;
  fake_job_set_silent(job, 1);
  CHECK_STATUS(optlease_step(client, &options, NULL), OPTLEASE_TIMEOUT);
  CHECK_SAYS(optlease_last_error(client),
             "step 1: rank 0's actor of job 'c-timeout' did not answer");
  fake_job_set_down(job, 1);
  usleep(50000);
  CHECK_STATUS(optlease_step(client, &options, NULL), OPTLEASE_TIMEOUT);
  CHECK(last_step(client) == 0);
  fake_job_set_silent(job, 0);
  fake_job_set_down(job, 0);
  options.timeout_ms = 20000;
  options.blob = "second";
  options.blob_bytes = 6;
  CHECK_STATUS(optlease_step(client, &options, NULL), OPTLEASE_OK);
  CHECK(last_step(client) == 1 && fake_job_seen(job).steps_applied == 1);
  char blob[16];
  size_t bytes = sizeof blob;
  CHECK_STATUS(optlease_user_blob(client, blob, &bytes), OPTLEASE_OK);
  CHECK(bytes == 5 && memcmp(blob, "first", 5) == 0);
  CHECK_STATUS(optlease_detach(client), OPTLEASE_OK);
  fake_job_stop(job);
}

static void step_tells_that_the_job_has_ended(void) {
  fake_job* job = fake_job_start("c-ended");
  optlease_client* client = attach();
  fake_job_set_silent(job, 1);
  fake_job_remove_run_directory(job);
  CHECK_STATUS(optlease_step(client, NULL, NULL), OPTLEASE_PEER_LOST);
  CHECK_SAYS(optlease_last_error(client), "job 'c-ended' has ended");
  CHECK_STATUS(optlease_detach(client), OPTLEASE_OK);
  fake_job_stop(job);
}

static void refuses_numbers_that_break_a_rule(void) {
  fake_job* job = fake_job_start("c-numbers");
  optlease_client* client = attach();
  optlease_step_options options = step_options();
  options.given = OPTLEASE_STEP_LR;
  options.lr = -1.0;
  CHECK_STATUS(optlease_step(client, &options, NULL), OPTLEASE_INVALID_ARGUMENT);
  CHECK_SAYS(optlease_last_error(client), "lr is -1");
  options.lr = NAN;
  CHECK_STATUS(optlease_step(client, &options, NULL), OPTLEASE_INVALID_ARGUMENT);
  options.given = OPTLEASE_STEP_GRAD_SCALE;
  options.grad_scale = 0.0;
  CHECK_STATUS(optlease_step(client, &options, NULL), OPTLEASE_INVALID_ARGUMENT);
  options.given = OPTLEASE_STEP_MAX_NORM;
  options.max_norm = INFINITY;
  CHECK_STATUS(optlease_step(client, &options, NULL), OPTLEASE_INVALID_ARGUMENT);
  options.given = 1u << 30;
  CHECK_STATUS(optlease_step(client, &options, NULL), OPTLEASE_UNSUPPORTED);
  options = step_options();
  options.blob_bytes = 1;
  CHECK_STATUS(optlease_step(client, &options, NULL), OPTLEASE_INVALID_ARGUMENT);
  options.struct_bytes = 8;
  CHECK_STATUS(optlease_step(client, &options, NULL), OPTLEASE_INVALID_ARGUMENT);
  CHECK(fake_job_seen(job).step_requests == 0 && last_step(client) == 0);
  CHECK_STATUS(optlease_detach(client), OPTLEASE_OK);
  fake_job_stop(job);
}

static void blobs_go_in_and_come_out_whole(void) {
  fake_job* job = fake_job_start("c-blob");
  optlease_client* client = attach();
  size_t bytes = 99;
  CHECK_STATUS(optlease_user_blob(client, NULL, &bytes), OPTLEASE_OK);
  CHECK(bytes == 0);

  const size_t max = OPTLEASE_USER_BLOB_BYTES_MAX;
  unsigned char* blob = malloc(max + 1);
  unsigned char* back = malloc(max + 1);
  CHECK(blob != NULL && back != NULL);
  for (size_t i = 0; i <= max; ++i) blob[i] = (unsigned char)(i * 131 + i / 251);
  optlease_step_options options = step_options();
  options.blob = blob;
  options.blob_bytes = max + 1;
  CHECK_STATUS(optlease_step(client, &options, NULL), OPTLEASE_INVALID_ARGUMENT);
  CHECK_SAYS(optlease_last_error(client), "1048577 bytes");
  options.blob_bytes = max;
  CHECK_STATUS(optlease_step(client, &options, NULL), OPTLEASE_OK);
  CHECK_STATUS(optlease_step(client, NULL, NULL), OPTLEASE_OK); /* the blob stays */
  CHECK_STATUS(optlease_detach(client), OPTLEASE_OK);

  client = attach(); /* as a restarted trainer */
  CHECK(last_step(client) == 2);
  bytes = max - 1;
  CHECK_STATUS(optlease_user_blob(client, back, &bytes), OPTLEASE_INVALID_ARGUMENT);
  CHECK(bytes == max);
  bytes = max + 1;
  CHECK_STATUS(optlease_user_blob(client, back, &bytes), OPTLEASE_OK);
  CHECK(bytes == max && memcmp(blob, back, max) == 0);

  options.blob_bytes = 0; /* a blob that is there and empty replaces the old one */
  CHECK_STATUS(optlease_step(client, &options, NULL), OPTLEASE_OK);
  CHECK_STATUS(optlease_user_blob(client, back, &bytes), OPTLEASE_OK);
  CHECK(bytes == 0);
  CHECK_STATUS(optlease_detach(client), OPTLEASE_OK);
  free(blob);
  free(back);
  fake_job_stop(job);
}

static void restarted_trainer_finds_step_and_blob(void) {
  fake_job* job = fake_job_start("c-resume");
  fake_job_set_committed(job, 41, "at 41", 5);
  optlease_client* client = attach();
  CHECK(last_step(client) == 41);
  char blob[5];
  size_t bytes = sizeof blob;
  CHECK_STATUS(optlease_user_blob(client, blob, &bytes), OPTLEASE_OK);
  CHECK(bytes == 5 && memcmp(blob, "at 41", 5) == 0);
  CHECK_STATUS(optlease_step(client, NULL, NULL), OPTLEASE_OK);
  CHECK(fake_job_seen(job).step == 42);
  CHECK_STATUS(optlease_detach(client), OPTLEASE_OK);
  fake_job_stop(job);
}

static void wait_for_prepares(fake_job* job, uint32_t count) {
  for (int i = 0; i < 4000 && fake_job_seen(job).prepares < count; ++i) usleep(5000);
  CHECK(fake_job_seen(job).prepares == count);
}

static void prepare_is_a_hint_that_the_actor_hears(void) {
  fake_job* job = fake_job_start("c-prepare");
  optlease_client* client = attach();
  CHECK_STATUS(optlease_prepare(client, 1), OPTLEASE_OK);
  CHECK_STATUS(optlease_prepare(client, 1), OPTLEASE_OK); /* twice */
  wait_for_prepares(job, 2);
  CHECK(fake_job_seen(job).prepared == 1 && fake_job_seen(job).steps_applied == 0);
  CHECK_STATUS(optlease_step(client, NULL, NULL), OPTLEASE_OK);
  CHECK_STATUS(optlease_step(client, NULL, NULL), OPTLEASE_OK); /* without */
  CHECK_STATUS(optlease_prepare(client, 3), OPTLEASE_OK);
  wait_for_prepares(job, 3);
  CHECK(fake_job_seen(job).prepared == 3 && last_step(client) == 2);
  CHECK_STATUS(optlease_detach(client), OPTLEASE_OK); /* and no step after it */
  fake_job_stop(job);
}

static void prepare_of_what_is_not_next_is_told_in_words(void) {
  CHECK_STATUS(optlease_prepare(NULL, 1), OPTLEASE_INVALID_ARGUMENT);
  CHECK_SAYS(optlease_last_error(NULL), "client is NULL");
  fake_job* job = fake_job_start("c-unprepared");
  optlease_client* client = attach();
  const int64_t wrong[] = {0, -1, 2, INT64_MAX};
  for (int i = 0; i < 4; ++i) {
    CHECK_STATUS(optlease_prepare(client, wrong[i]), OPTLEASE_STALE_STEP);
    CHECK_SAYS(optlease_last_error(client), "cannot be prepared: the next step is 1");
  }
  fake_job_set_silent(job, 1);
  optlease_step_options options = step_options();
  options.timeout_ms = 50;
  CHECK_STATUS(optlease_step(client, &options, NULL), OPTLEASE_TIMEOUT);
  CHECK_STATUS(optlease_prepare(client, 1), OPTLEASE_BUSY);
  CHECK_SAYS(optlease_last_error(client), "step 1 is in flight");
  fake_job_set_silent(job, 0);
  CHECK_STATUS(optlease_step(client, NULL, NULL), OPTLEASE_OK);
  CHECK(last_step(client) == 1 && fake_job_seen(job).prepares == 0);
  CHECK_STATUS(optlease_detach(client), OPTLEASE_OK);
  fake_job_set_committed(job, 50, "", 0); /* the job's last step */
  client = attach();
  CHECK_STATUS(optlease_prepare(client, 51), OPTLEASE_STALE_STEP);
  CHECK_SAYS(optlease_last_error(client), "the job ends with step 50");
  CHECK_STATUS(optlease_detach(client), OPTLEASE_OK);
  fake_job_stop(job);
}

static void prepare_waits_for_no_actor(void) {
  fake_job* job = fake_job_start("c-prepare-down");
  optlease_client* client = attach();
  fake_job_set_down(job, 1);
  usleep(50000);
  for (int i = 0; i < 50; ++i) CHECK_STATUS(optlease_prepare(client, 1), OPTLEASE_OK);
  fake_job_set_down(job, 0);
  CHECK_STATUS(optlease_step(client, NULL, NULL), OPTLEASE_OK);
  CHECK(last_step(client) == 1);
  CHECK_STATUS(optlease_detach(client), OPTLEASE_OK);
  fake_job_stop(job);
}

const c_case step_cases[] = {
    {"prepare_is_a_hint_that_the_actor_hears", prepare_is_a_hint_that_the_actor_hears},
    {"prepare_of_what_is_not_next_is_told_in_words", prepare_of_what_is_not_next_is_told_in_words},
    {"prepare_waits_for_no_actor", prepare_waits_for_no_actor},
    {"steps_as_configured_and_as_given", steps_as_configured_and_as_given},
    {"step_survives_a_restart_of_the_actor", step_survives_a_restart_of_the_actor},
    {"step_ignores_noise_and_asks_again_while_busy", step_ignores_noise_and_asks_again_while_busy},
    {"refused_step_is_told_in_words_and_can_be_tried_again",
     refused_step_is_told_in_words_and_can_be_tried_again},
    {"step_after_a_timeout_goes_on_waiting_for_the_same_one",
     step_after_a_timeout_goes_on_waiting_for_the_same_one},
    {"step_tells_that_the_job_has_ended", step_tells_that_the_job_has_ended},
    {"refuses_numbers_that_break_a_rule", refuses_numbers_that_break_a_rule},
    {"blobs_go_in_and_come_out_whole", blobs_go_in_and_come_out_whole},
    {"restarted_trainer_finds_step_and_blob", restarted_trainer_finds_step_and_blob},
    {NULL, NULL}};
