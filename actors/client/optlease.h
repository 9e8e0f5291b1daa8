/* The C interface of Optlease: how a training process reaches its rank's optimizer.
 *
 * A trainer attaches to a running job, reads parameters from and writes gradients to memory that it
 * shares with its rank's actor, and asks for one optimizer step at a time. The actor may be killed
 * and restarted at any moment: a call then takes longer, and nothing else changes. A restarted
 * trainer attaches again and goes on from the last committed step and the user blob of that step.
 *
 * This header is plain C11 and is all a trainer needs. It does not start jobs, change hyper-
 * parameters other than by step, or give access to optimizer state. docs/CLIENT.md explains each
 * function and has a complete example.
 *
 * Threads: a client may be used by one thread at a time (any thread); different clients are
 * independent. Fork: a forked child must not use its parent's client; every function then fails
 * with OPTLEASE_UNSUPPORTED and changes nothing.
 */
#ifndef OPTLEASE_H
#define OPTLEASE_H

#include <stddef.h>
#include <stdint.h>

#define OPTLEASE_ABI_VERSION 1u

#if defined(__GNUC__)
#define OPTLEASE_API __attribute__((visibility("default")))
#else
#define OPTLEASE_API
#endif

#define OPTLEASE_NAME_BYTES 64u         /* of a space, with the final zero */
#define OPTLEASE_TENSOR_NAME_BYTES 192u /* with the final zero */
#define OPTLEASE_DIMS_MAX 8u
#define OPTLEASE_USER_BLOB_BYTES_MAX 1048576u
#define OPTLEASE_NOT_A_MEMBER UINT32_MAX    /* optlease_space_info.member_index */
#define OPTLEASE_RANK_FROM_ENVIRONMENT (-1) /* optlease_attach_options.rank */
#define OPTLEASE_STEP_TIMEOUT_MS_DEFAULT 600000u

#ifdef __cplusplus
extern "C" {
#endif

typedef struct optlease_client optlease_client;

/* Frozen numbers; new ones may be added. */
typedef enum optlease_status {
  OPTLEASE_OK = 0,
  OPTLEASE_INVALID_ARGUMENT = 1,
  OPTLEASE_NOT_FOUND = 2,
  OPTLEASE_ALREADY_EXISTS = 3,
  OPTLEASE_NO_SPACE = 4,
  OPTLEASE_PERMISSION = 5,
  OPTLEASE_CORRUPT = 6,
  OPTLEASE_WRONG_VERSION = 7,
  OPTLEASE_STALE_EPOCH = 8,
  OPTLEASE_STALE_INCARNATION = 9,
  OPTLEASE_STALE_LEASE = 10,
  OPTLEASE_STALE_STEP = 11,
  OPTLEASE_TIMEOUT = 12,
  OPTLEASE_BUSY = 13,
  OPTLEASE_PEER_LOST = 14,
  OPTLEASE_UNSUPPORTED = 15,
  OPTLEASE_IO = 16,
  OPTLEASE_CANCELLED = 17,
  OPTLEASE_INTERNAL = 18
} optlease_status;

typedef enum optlease_dtype {
  OPTLEASE_F32 = 1,
  OPTLEASE_BF16 = 2,
  OPTLEASE_F16 = 3
} optlease_dtype;

/* What the flat buffers are memory of. */
typedef enum optlease_device {
  OPTLEASE_DEVICE_CPU = 0, /* host memory of this process */
  OPTLEASE_DEVICE_CUDA = 1 /* memory of a GPU: device pointers, never to be touched by the host */
} optlease_device;

/* Every struct starts with struct_bytes, which the caller sets to its sizeof. Later versions append
 * fields; zero in an appended field means what the absence of the field meant. */

typedef struct optlease_attach_options {
  uint32_t struct_bytes;
  int32_t rank;        /* OPTLEASE_RANK_FROM_ENVIRONMENT: OPTLEASE_RANK of the environment */
  const char* job;     /* NULL: OPTLEASE_JOB of the environment */
  uint64_t timeout_ms; /* for the whole attach; 0: as the job says */
} optlease_attach_options;

typedef struct optlease_space_info {
  uint32_t struct_bytes;
  uint32_t param_dtype;  /* optlease_dtype of the flat parameter buffer */
  uint32_t grad_dtype;   /* optlease_dtype of the flat gradient buffer */
  uint32_t member_count; /* ranks that the space is sharded over */
  uint32_t member_index; /* of this rank among them, or OPTLEASE_NOT_A_MEMBER */
  uint32_t tensor_count;
  uint64_t elements; /* of each flat buffer */
  char name[OPTLEASE_NAME_BYTES];
  uint32_t device;        /* optlease_device of both flat buffers */
  int32_t device_ordinal; /* OPTLEASE_DEVICE_CUDA: the GPU, as this process numbers them; else 0 */
} optlease_space_info;

typedef struct optlease_tensor_info {
  uint32_t struct_bytes;
  uint32_t dims; /* 0: a scalar */
  uint64_t shape[OPTLEASE_DIMS_MAX];
  uint64_t flat_offset; /* elements from the start of the space's flat buffers */
  uint64_t elements;
  char name[OPTLEASE_TENSOR_NAME_BYTES];
} optlease_tensor_info;

/* Which of the optional numbers of optlease_step_options are given. */
#define OPTLEASE_STEP_LR 1u
#define OPTLEASE_STEP_GRAD_SCALE 2u
#define OPTLEASE_STEP_MAX_NORM 4u

typedef struct optlease_step_options {
  uint32_t struct_bytes;
  uint32_t given;      /* OPTLEASE_STEP_* bits; a number whose bit is clear is not looked at */
  double lr;           /* replaces optimizer.lr of the job; a space's lr_scale still applies */
  double grad_scale;   /* gradients are divided by it; otherwise 1 */
  double max_norm;     /* clip to this global norm, 0: no clipping; otherwise as configured */
  const void* blob;    /* committed together with the step; NULL: the previous blob stays */
  uint64_t blob_bytes; /* <= OPTLEASE_USER_BLOB_BYTES_MAX; 0 where blob is NULL */
  uint64_t timeout_ms; /* 0: OPTLEASE_STEP_TIMEOUT_MS_DEFAULT */
} optlease_step_options;

typedef struct optlease_step_result {
  uint32_t struct_bytes;
  uint32_t skipped; /* 1: a gradient was not finite; parameters are unchanged */
  int64_t step;     /* whose parameters are final now */
  double
      grad_norm; /* global, of the averaged gradient, before clipping; not finite where skipped */
} optlease_step_result;

/* OPTLEASE_ABI_VERSION of the library that is loaded. */
OPTLEASE_API uint32_t optlease_abi_version(void);
/* "Ok", "Timeout", ...; "Unknown" for a number that is none. Never NULL; a constant. */
OPTLEASE_API const char* optlease_status_name(optlease_status status);
/* What the last failing call on `client` (NULL: of this thread, on any client) had to say, in
 * words;
 * "" where none failed. Valid until the next failing call on that client (in this thread). In a
 * forked child, which may not use `client`: as for NULL. */
OPTLEASE_API const char* optlease_last_error(const optlease_client* client);

/* Attaches to the job's actor of one rank. NULL options: everything from the environment. Waits, at
 * most timeout_ms, for the actor, the initial parameters and a step that an earlier life of this
 * trainer left in flight. On failure *out is NULL. On a cuda job it makes, or joins, the GPU's
 * primary context and leaves the caller's current device as it was; other jobs need no driver. */
OPTLEASE_API optlease_status optlease_attach(const optlease_attach_options* options,
                                             optlease_client** out);
/* Ends the attachment, unmaps the buffers and frees `client`; NULL is allowed. */
OPTLEASE_API optlease_status optlease_detach(optlease_client* client);

OPTLEASE_API optlease_status optlease_rank(optlease_client* client, uint32_t* rank);
OPTLEASE_API optlease_status optlease_world_size(optlease_client* client, uint32_t* world_size);
/* The step after which the job is done; 0 where the job does not say. */
OPTLEASE_API optlease_status optlease_job_steps(optlease_client* client, int64_t* steps);

/* Spaces and tensors have the same indices in every process of the job. */
OPTLEASE_API optlease_status optlease_space_count(optlease_client* client, uint32_t* count);
OPTLEASE_API optlease_status optlease_space(optlease_client* client, uint32_t space,
                                            optlease_space_info* info);
OPTLEASE_API optlease_status optlease_tensor(optlease_client* client, uint32_t space,
                                             uint32_t tensor, optlease_tensor_info* info);

/* The flat buffers of a space: `elements` of param_dtype and grad_dtype. They belong to the client
 * and stay where they are until optlease_detach. NULL, with a word in optlease_last_error, where
 * the space does not exist or this rank is not a member; NULL also for a space without elements.
 * Parameters must never be written. Gradients must not be touched while a step is in flight.
 * On a job whose device is cuda both are device pointers, valid on the rank's GPU
 * (optlease_space_info.device_ordinal: rank modulo the visible GPUs). Kernels and copies that write
 * gradients must have finished before optlease_step, which knows none of the trainer's streams;
 * parameters are final on the GPU when it returns. The buffers survive this process, and the actor.
 */
OPTLEASE_API const void* optlease_params(optlease_client* client, uint32_t space);
OPTLEASE_API void* optlease_grads(optlease_client* client, uint32_t space);

/* Tells the actor that the gradients of `step`, the one after the last, are being computed: it
 * reads the first of the optimizer's state ahead, as far as its staging buffers go, and changes
 * nothing. Call it before the backward pass. A hint: it waits for nothing, may be left out or
 * repeated, and need not be followed by the step. OPTLEASE_STALE_STEP, in words, for another step,
 * OPTLEASE_BUSY while a step is in flight; either way nothing happens. */
OPTLEASE_API optlease_status optlease_prepare(optlease_client* client, int64_t step);
/* One optimizer step on the gradients in the buffers: last step + 1. Returns when every rank's
 * parameters are final: the step is committed, or its record is durable on every rank and its last
 * write-backs and commits go on behind the caller's back. Whoever dies then, it will be committed,
 * exactly once, with its blob, and before the next step; an attaching process waits for that. The
 * job's last step is always committed when this returns. NULL options: all as configured, the blob
 * stays. `result` may be NULL. After OPTLEASE_TIMEOUT, OPTLEASE_PEER_LOST or OPTLEASE_IO the step
 * may still be committed: it is in flight, the next call goes on waiting for that same step and
 * takes only timeout_ms from its options. A refused step, or options that break a rule, leave none
 * in flight that was not. */
OPTLEASE_API optlease_status optlease_step(optlease_client* client,
                                           const optlease_step_options* options,
                                           optlease_step_result* result);
/* The last step that optlease_step has answered or, before that, the one that was committed when
 * this process attached. */
OPTLEASE_API optlease_status optlease_last_step(optlease_client* client, int64_t* step);
/* Copies the blob that belongs to the last step into `buffer` of *bytes and sets *bytes to
 * its size (0: there is none). `buffer` NULL: only the size. Too small: OPTLEASE_INVALID_ARGUMENT
 * with the size in *bytes. */
OPTLEASE_API optlease_status optlease_user_blob(optlease_client* client, void* buffer,
                                                size_t* bytes);

#ifdef __cplusplus
}
#endif

#endif /* OPTLEASE_H */
