// What an exception means that nobody nearer has caught: one that came as far as main(), the
// launcher's loop or the C interface.
#pragma once

#include <exception>

#include "shm/contract/status.h"

namespace optlease {

// NoSpace, with words about limits, where memory, threads or descriptors ran out; else Internal. A
// program ends with exit_code_for() of it.
Status status_of(const std::exception& error);

}  // namespace optlease
