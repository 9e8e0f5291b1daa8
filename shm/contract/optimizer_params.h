// What one optimizer step was asked to do, in the form that is stored in the step record: enough to
// finish the step after a crash with the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "shm/contract/limits.h"

namespace optlease {

// Frozen: append only.
enum class Rule : uint32_t {
  kAdamW = 1,  // decoupled weight decay (Loshchilov & Hutter 2019, algorithm 2)
  kAdam = 2,   // weight decay added to the gradient (Kingma & Ba 2015 with L2)
};

const char* name_of(Rule rule);

// Hyper-parameters of one group of spaces. Doubles, as torch.optim holds them: the factors that the
// kernels use are derived from these on the host, once a step (kernels/adam_math.h).
struct GroupParams {
  double lr;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  uint32_t rule;  // Rule
  uint32_t reserved_zero;
};
static_assert(sizeof(GroupParams) == 48 && std::is_trivially_copyable_v<GroupParams>,
              "stored in the segment and sent: bump kSegmentVersion and kProtocolVersion");

// Null, or the broken rule in words: finite, 0 <= beta < 1, eps > 0 and so on.
const char* why_invalid(const GroupParams& params);

}  // namespace optlease
