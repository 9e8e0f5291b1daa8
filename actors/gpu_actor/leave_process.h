// The end of a process that its GPU does not let go of: work that was given to the driver may still
// call functions here, and copy from and to memory that an orderly end would unmap under it. So
// there is none. Used by destructors of what belongs to a CUDA device.
#pragma once

#include <unistd.h>

#include <cstdio>

#include "actors/runtime/exit_code.h"
#include "actors/runtime/log.h"
#include "shm/contract/status.h"

namespace optlease {

[[noreturn]] inline void leave_process(const Status& why) {
  log_error("%s; the process ends at once, without taking anything down", why.text().c_str());
  std::fflush(nullptr);
  ::_exit(static_cast<int>(exit_code_for(why)));
}

}  // namespace optlease
