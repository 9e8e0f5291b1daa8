#include "actors/runtime/program_start.h"

#include "kernels/cpu_isa.h"
#include "shm/standard_descriptors.h"

namespace optlease {

void prepare_descriptors() { reserve_standard_descriptors(); }

Status check_environment() {
  const Status isa = select_cpu_isa();
  // Also a wish that this machine cannot meet is a wrong value here.
  return isa.is_ok() ? isa : Status(StatusCode::kInvalidArgument, isa.message());
}

}  // namespace optlease
