/* The C interface as a C program uses it: attaching, tables, buffers, bad arguments and errors.
 * Without arguments every case runs; with one, the case of that name. */
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "actors/client/optlease.h"
#include "tests/client/c_check.h"
#include "tests/client/fake_job_c.h"

static optlease_client* attach(void) {
  optlease_client* client = NULL;
  CHECK_STATUS(optlease_attach(NULL, &client), OPTLEASE_OK);
  CHECK(client != NULL);
  return client;
}

static optlease_attach_options options_for(const char* job, int32_t rank, uint64_t timeout_ms) {
  optlease_attach_options options;
  memset(&options, 0, sizeof options);
  options.struct_bytes = sizeof options;
  options.job = job;
  options.rank = rank;
  options.timeout_ms = timeout_ms;
  return options;
}

static void library_speaks_the_version_of_the_header(void) {
  CHECK(optlease_abi_version() == OPTLEASE_ABI_VERSION);
  CHECK(strcmp(optlease_status_name(OPTLEASE_OK), "Ok") == 0);
  CHECK(strcmp(optlease_status_name(OPTLEASE_STALE_STEP), "StaleStep") == 0);
  CHECK(strcmp(optlease_status_name((optlease_status)9999), "Unknown") == 0);
}

static void attaches_from_the_environment(void) {
  fake_job* job = fake_job_start("c-attach");
  optlease_client* client = attach();
  uint32_t number = 77;
  int64_t steps = 77;
  CHECK_STATUS(optlease_rank(client, &number), OPTLEASE_OK);
  CHECK(number == 0);
  CHECK_STATUS(optlease_world_size(client, &number), OPTLEASE_OK);
  CHECK(number == 2);
  CHECK_STATUS(optlease_job_steps(client, &steps), OPTLEASE_OK);
  CHECK(steps == 50);
  CHECK_STATUS(optlease_last_step(client, &steps), OPTLEASE_OK);
  CHECK(steps == 0);
  const fake_seen seen = fake_job_seen(job);
  CHECK(seen.abi_version == OPTLEASE_ABI_VERSION);
  CHECK(seen.pid == (uint32_t)getpid());
  CHECK_STATUS(optlease_detach(client), OPTLEASE_OK);
  for (int i = 0; i < 400 && fake_job_seen(job).detaches == 0; ++i) usleep(10000);
  CHECK(fake_job_seen(job).detaches == 1);
  fake_job_stop(job);
}

static void attaches_again_after_detaching(void) {
  fake_job* job = fake_job_start("c-again");
  for (int i = 0; i < 3; ++i) CHECK_STATUS(optlease_detach(attach()), OPTLEASE_OK);
  fake_job_stop(job);
}

static void tells_spaces_and_tensors(void) {
  fake_job* job = fake_job_start("c-tables");
  optlease_client* client = attach();
  uint32_t spaces = 0;
  CHECK_STATUS(optlease_space_count(client, &spaces), OPTLEASE_OK);
  CHECK(spaces == 3);

  optlease_space_info space;
  space.struct_bytes = sizeof space;
  CHECK_STATUS(optlease_space(client, 0, &space), OPTLEASE_OK);
  CHECK(space.struct_bytes == sizeof space);
  CHECK(strcmp(space.name, "dense") == 0);
  CHECK(space.elements == 17 && space.tensor_count == 3);
  CHECK(space.param_dtype == OPTLEASE_F32 && space.grad_dtype == OPTLEASE_F32);
  CHECK(space.member_count == 2 && space.member_index == 0);
  CHECK(space.device == OPTLEASE_DEVICE_CPU && space.device_ordinal == 0);
  CHECK_STATUS(optlease_space(client, 1, &space), OPTLEASE_OK);
  CHECK(strcmp(space.name, "experts") == 0);
  CHECK(space.member_count == 1 && space.member_index == OPTLEASE_NOT_A_MEMBER);
  CHECK_STATUS(optlease_space(client, 2, &space), OPTLEASE_OK);
  CHECK(space.param_dtype == OPTLEASE_BF16 && space.grad_dtype == OPTLEASE_F16);
  CHECK_STATUS(optlease_space(client, 3, &space), OPTLEASE_NOT_FOUND);
  CHECK_SAYS(optlease_last_error(client), "space 3");

  optlease_tensor_info tensor;
  tensor.struct_bytes = sizeof tensor;
  CHECK_STATUS(optlease_tensor(client, 0, 0, &tensor), OPTLEASE_OK);
  CHECK(strcmp(tensor.name, "w") == 0 && tensor.dims == 2);
  CHECK(tensor.shape[0] == 3 && tensor.shape[1] == 4 && tensor.shape[2] == 0);
  CHECK(tensor.flat_offset == 0 && tensor.elements == 12);
  CHECK_STATUS(optlease_tensor(client, 0, 2, &tensor), OPTLEASE_OK);
  CHECK(strcmp(tensor.name, "s") == 0 && tensor.dims == 0);
  CHECK(tensor.flat_offset == 16 && tensor.elements == 1);
  CHECK_STATUS(optlease_tensor(client, 0, 3, &tensor), OPTLEASE_NOT_FOUND);
  CHECK_STATUS(optlease_tensor(client, 9, 0, &tensor), OPTLEASE_NOT_FOUND);
  CHECK_STATUS(optlease_detach(client), OPTLEASE_OK);
  fake_job_stop(job);
}

static void maps_buffers_of_its_own_spaces_only(void) {
  fake_job* job = fake_job_start("c-buffers");
  optlease_client* client = attach();
  const float* params = optlease_params(client, 0);
  CHECK(params != NULL && optlease_grads(client, 0) != NULL);
  for (int i = 0; i < 17; ++i) CHECK(params[i] == (float)i);
  CHECK(optlease_params(client, 0) == params);
  CHECK(optlease_params(client, 2) != NULL && optlease_grads(client, 2) != NULL);
  CHECK(optlease_params(client, 1) == NULL);
  CHECK_SAYS(optlease_last_error(client), "no member of space 1 ('experts')");
  CHECK(optlease_grads(client, 3) == NULL);
  CHECK_SAYS(optlease_last_error(client), "space 3");
  CHECK(optlease_params(NULL, 0) == NULL && optlease_grads(NULL, 0) == NULL);
  CHECK_STATUS(optlease_detach(client), OPTLEASE_OK);
  fake_job_stop(job);
}

static void refuses_null_and_wrong_sizes(void) {
  fake_job* job = fake_job_start("c-arguments");
  CHECK_STATUS(optlease_attach(NULL, NULL), OPTLEASE_INVALID_ARGUMENT);
  optlease_attach_options options = options_for(NULL, OPTLEASE_RANK_FROM_ENVIRONMENT, 0);
  optlease_client* client = (optlease_client*)&options; /* anything but NULL */
  options.struct_bytes = 0;
  CHECK_STATUS(optlease_attach(&options, &client), OPTLEASE_INVALID_ARGUMENT);
  CHECK(client == NULL);
  CHECK_SAYS(optlease_last_error(NULL), "optlease_attach_options.struct_bytes is 0");

  client = attach();
  uint32_t number = 0;
  CHECK_STATUS(optlease_rank(NULL, &number), OPTLEASE_INVALID_ARGUMENT);
  CHECK_SAYS(optlease_last_error(NULL), "client is NULL");
  CHECK_STATUS(optlease_rank(client, NULL), OPTLEASE_INVALID_ARGUMENT);
  CHECK_STATUS(optlease_world_size(client, NULL), OPTLEASE_INVALID_ARGUMENT);
  CHECK_STATUS(optlease_job_steps(client, NULL), OPTLEASE_INVALID_ARGUMENT);
  CHECK_STATUS(optlease_space_count(client, NULL), OPTLEASE_INVALID_ARGUMENT);
  CHECK_STATUS(optlease_space(client, 0, NULL), OPTLEASE_INVALID_ARGUMENT);
  CHECK_STATUS(optlease_tensor(client, 0, 0, NULL), OPTLEASE_INVALID_ARGUMENT);
  CHECK_STATUS(optlease_last_step(client, NULL), OPTLEASE_INVALID_ARGUMENT);
  CHECK_STATUS(optlease_user_blob(client, NULL, NULL), OPTLEASE_INVALID_ARGUMENT);
  CHECK_STATUS(optlease_step(NULL, NULL, NULL), OPTLEASE_INVALID_ARGUMENT);
  CHECK_STATUS(optlease_detach(NULL), OPTLEASE_OK);

  optlease_space_info space;
  memset(&space, 0, sizeof space);
  space.struct_bytes = 95; /* version 1 had 96 */
  CHECK_STATUS(optlease_space(client, 0, &space), OPTLEASE_INVALID_ARGUMENT);
  optlease_step_result result;
  memset(&result, 0, sizeof result);
  CHECK_STATUS(optlease_step(client, NULL, &result), OPTLEASE_INVALID_ARGUMENT);
  CHECK(fake_job_seen(job).step_requests == 0);
  CHECK_STATUS(optlease_detach(client), OPTLEASE_OK);
  fake_job_stop(job);
}

/* A program built against the first header, whose structs are shorter. */
static void fills_no_more_of_a_struct_than_an_older_program_has(void) {
  fake_job* job = fake_job_start("c-shorter");
  optlease_client* client = attach();
  optlease_space_info space;
  memset(&space, 0x5a, sizeof space);
  space.struct_bytes = 96;
  CHECK_STATUS(optlease_space(client, 0, &space), OPTLEASE_OK);
  CHECK(strcmp(space.name, "dense") == 0 && space.struct_bytes == 96);
  CHECK(space.device == 0x5a5a5a5au && space.device_ordinal == 0x5a5a5a5a);
  CHECK_STATUS(optlease_detach(client), OPTLEASE_OK);
  fake_job_stop(job);
}

/* A program built against a later header, whose structs are longer. */
static void accepts_longer_structs_while_their_new_fields_are_zero(void) {
  fake_job* job = fake_job_start("c-longer");
  struct {
    optlease_attach_options known;
    uint64_t later_field;
  } options;
  memset(&options, 0, sizeof options);
  options.known = options_for(NULL, OPTLEASE_RANK_FROM_ENVIRONMENT, 0);
  options.known.struct_bytes = sizeof options;
  optlease_client* client = NULL;
  options.later_field = 1;
  CHECK_STATUS(optlease_attach(&options.known, &client), OPTLEASE_UNSUPPORTED);
  options.later_field = 0;
  CHECK_STATUS(optlease_attach(&options.known, &client), OPTLEASE_OK);
  struct {
    optlease_space_info known;
    uint64_t later_field;
  } space;
  space.known.struct_bytes = sizeof space;
  space.later_field = 5;
  CHECK_STATUS(optlease_space(client, 0, &space.known), OPTLEASE_OK);
  CHECK(space.later_field == 5 && space.known.struct_bytes == sizeof space);
  CHECK_STATUS(optlease_detach(client), OPTLEASE_OK);
  fake_job_stop(job);
}

static void names_what_is_wrong_with_job_and_rank(void) {
  fake_job* job = fake_job_start("c-words");
  optlease_client* client = NULL;
  optlease_attach_options options = options_for("no-such-job", 0, 1000);
  CHECK_STATUS(optlease_attach(&options, &client), OPTLEASE_NOT_FOUND);
  CHECK_SAYS(optlease_last_error(NULL), "job 'no-such-job' is not running");
  options = options_for("../escape", 0, 1000);
  CHECK_STATUS(optlease_attach(&options, &client), OPTLEASE_INVALID_ARGUMENT);
  options = options_for("c-words", 2, 1000);
  CHECK_STATUS(optlease_attach(&options, &client), OPTLEASE_INVALID_ARGUMENT);
  CHECK_SAYS(optlease_last_error(NULL), "ranks 0..1");
  setenv("OPTLEASE_RANK", "1x", 1);
  CHECK_STATUS(optlease_attach(NULL, &client), OPTLEASE_INVALID_ARGUMENT);
  CHECK_SAYS(optlease_last_error(NULL), "OPTLEASE_RANK is '1x'");
  unsetenv("OPTLEASE_RANK");
  CHECK_STATUS(optlease_attach(NULL, &client), OPTLEASE_INVALID_ARGUMENT);
  unsetenv("OPTLEASE_JOB");
  CHECK_STATUS(optlease_attach(NULL, &client), OPTLEASE_INVALID_ARGUMENT);
  CHECK_SAYS(optlease_last_error(NULL), "OPTLEASE_JOB");
  options = options_for("c-words", 0, 1000);
  fake_job_set_mode(job, 0755);
  CHECK_STATUS(optlease_attach(&options, &client), OPTLEASE_PERMISSION);
  fake_job_set_mode(job, 0700);
  CHECK(client == NULL);
  fake_job_stop(job);
}

static void tells_of_an_actor_that_is_not_up_or_silent(void) {
  fake_job* job = fake_job_start("c-down");
  optlease_client* client = NULL;
  optlease_attach_options options = options_for(NULL, OPTLEASE_RANK_FROM_ENVIRONMENT, 300);
  fake_job_set_silent(job, 1);
  CHECK_STATUS(optlease_attach(&options, &client), OPTLEASE_TIMEOUT);
  CHECK_SAYS(optlease_last_error(NULL), "did not answer Attach in time");
  CHECK(fake_job_seen(job).attaches >= 1);
  fake_job_set_silent(job, 0);
  fake_job_set_down(job, 1);
  usleep(50000);
  CHECK_STATUS(optlease_attach(&options, &client), OPTLEASE_TIMEOUT);
  CHECK_SAYS(optlease_last_error(NULL), "rank 0's actor of job 'c-down' is not up");
  fake_job_set_down(job, 0);
  fake_job_refuse(job, OPTLEASE_WRONG_VERSION, "abi 1 is not 2", 1);
  options.timeout_ms = 20000;
  CHECK_STATUS(optlease_attach(&options, &client), OPTLEASE_WRONG_VERSION);
  CHECK_SAYS(optlease_last_error(NULL), "rank 0's actor refused Attach: abi 1 is not 2");
  CHECK(client == NULL);
  fake_job_stop(job);
}

static void waits_for_an_actor_that_comes_later(void) {
  fake_job* job = fake_job_start("c-later");
  fake_job_hide_buffers(job, 150);
  fake_job_refuse(job, OPTLEASE_BUSY, "step 3 is in flight", 3);
  optlease_client* client = attach();
  CHECK(fake_job_seen(job).attaches >= 4);
  CHECK(optlease_grads(client, 0) != NULL);
  CHECK_STATUS(optlease_detach(client), OPTLEASE_OK);

  fake_job_hide_buffers(job, 800);
  optlease_attach_options options = options_for(NULL, OPTLEASE_RANK_FROM_ENVIRONMENT, 100);
  CHECK_STATUS(optlease_attach(&options, &client), OPTLEASE_TIMEOUT);
  CHECK_SAYS(optlease_last_error(NULL), "shared buffer 'param.0.dense'");
  CHECK(client == NULL);
  fake_job_stop(job);
}

static void refuses_a_forked_child_and_serves_the_parent_on(void) {
  fake_job* job = fake_job_start("c-fork");
  optlease_client* client = attach();
  CHECK_STATUS(optlease_space(client, 3, NULL), OPTLEASE_NOT_FOUND);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    int64_t step = 0;
    if (optlease_last_step(client, &step) != OPTLEASE_UNSUPPORTED) _exit(11);
    if (optlease_params(client, 0) != NULL) _exit(12);
    if (optlease_step(client, NULL, NULL) != OPTLEASE_UNSUPPORTED) _exit(13);
    if (strstr(optlease_last_error(NULL), "forked") == NULL) _exit(14);
    if (strstr(optlease_last_error(client), "forked") == NULL) _exit(16);
    if (optlease_detach(client) != OPTLEASE_UNSUPPORTED) _exit(15);
    _exit(0);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK_SAYS(optlease_last_error(client), "space 3"); /* the parent's own is as it was */
  CHECK_STATUS(optlease_step(client, NULL, NULL), OPTLEASE_OK);
  CHECK_STATUS(optlease_detach(client), OPTLEASE_OK);
  fake_job_stop(job);
}

static const c_case attach_cases[] = {
    {"library_speaks_the_version_of_the_header", library_speaks_the_version_of_the_header},
    {"attaches_from_the_environment", attaches_from_the_environment},
    {"attaches_again_after_detaching", attaches_again_after_detaching},
    {"tells_spaces_and_tensors", tells_spaces_and_tensors},
    {"maps_buffers_of_its_own_spaces_only", maps_buffers_of_its_own_spaces_only},
    {"refuses_null_and_wrong_sizes", refuses_null_and_wrong_sizes},
    {"fills_no_more_of_a_struct_than_an_older_program_has",
     fills_no_more_of_a_struct_than_an_older_program_has},
    {"accepts_longer_structs_while_their_new_fields_are_zero",
     accepts_longer_structs_while_their_new_fields_are_zero},
    {"names_what_is_wrong_with_job_and_rank", names_what_is_wrong_with_job_and_rank},
    {"tells_of_an_actor_that_is_not_up_or_silent", tells_of_an_actor_that_is_not_up_or_silent},
    {"waits_for_an_actor_that_comes_later", waits_for_an_actor_that_comes_later},
    {"refuses_a_forked_child_and_serves_the_parent_on",
     refuses_a_forked_child_and_serves_the_parent_on},
    {NULL, NULL}};

static int run_cases(const c_case* cases, const char* only) {
  int ran = 0;
  for (; cases->name != NULL; ++cases) {
    if (only != NULL && strcmp(only, cases->name) != 0) continue;
    printf("%s\n", cases->name);
    fflush(stdout);
    cases->run();
    ++ran;
  }
  return ran;
}

int main(int argc, char** argv) {
  const char* only = argc > 1 ? argv[1] : NULL;
  const int ran = run_cases(attach_cases, only) + run_cases(step_cases, only);
  printf("%d cases hold\n", ran);
  return ran > 0 ? 0 : 1;
}
