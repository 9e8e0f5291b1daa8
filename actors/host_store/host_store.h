// The host store process: socket, clock, signals and lifeline around a StoreService. Used by
// main.cc only. One thread: it polls, collects a bounded batch of messages, lets the service act,
// sends.
#pragma once

#include "actors/runtime/child_args.h"
#include "actors/runtime/exit_code.h"

namespace optlease {

// Runs until a stop, the end of the launcher, or an error that is logged. REQUIRES: SIGTERM and
// SIGINT are blocked in every thread (they arrive here through a descriptor).
ExitCode run_host_store(const ChildArgs& args);

}  // namespace optlease
