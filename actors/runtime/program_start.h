// What every program of a job does before anything else. Not for libraries.
#pragma once

#include "shm/contract/status.h"

namespace optlease {

// First in main(): standard descriptors that the caller closed are opened on /dev/null.
void prepare_descriptors();

// After the command line, before anything starts: InvalidArgument where an environment variable has
// a value that is none (OPTLEASE_ISA). The program then ends with bad_configuration.
Status check_environment();

}  // namespace optlease
