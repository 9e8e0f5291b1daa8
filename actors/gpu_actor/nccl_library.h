// NCCL's functions that the collectives call, found at run time: a build with CUDA starts, and runs
// its jobs on the CPU or on one GPU, where no NCCL is installed. And what NCCL answers, as a
// Status. Used by nccl_*.cc alone, by ranks that have peers.
#pragma once

#include <nccl.h>

#include <string>

#include "shm/contract/status.h"

namespace optlease {

struct NcclLibrary {
  decltype(&::ncclGetVersion) get_version;
  decltype(&::ncclGetErrorString) get_error_string;
  decltype(&::ncclGetLastError) get_last_error;
  decltype(&::ncclGetUniqueId) get_unique_id;
  decltype(&::ncclCommInitRankConfig) comm_init_rank_config;
  decltype(&::ncclCommGetAsyncError) comm_get_async_error;
  decltype(&::ncclCommAbort) comm_abort;
  decltype(&::ncclGroupStart) group_start;
  decltype(&::ncclGroupEnd) group_end;
  decltype(&::ncclSend) send;
  decltype(&::ncclRecv) recv;
};

// The table; Unsupported, in words, where there is no NCCL, or one whose version will not do. Both
// are found out once and live until the process ends.
Result<const NcclLibrary*> nccl_library();

// Numbers as ncclGetVersion has them. Unsupported: another major version than the headers this was
// compiled with, whose structures differ, or older than 2.19, the oldest that this use was made
// for.
Status check_nccl_version(int compiled, int found);

// Ok for success and for what is in progress. PeerLost where NCCL blames another rank, else Io: the
// group is broken, and errors that are CUDA's show again, in its words, when the streams are
// drained. `comm` may be null.
Status nccl_status(const NcclLibrary& nccl, ncclResult_t result, const std::string& call,
                   ncclComm_t comm);

// The table without a look at its version (nccl_load.cc).
Result<const NcclLibrary*> load_nccl();

}  // namespace optlease
