// Compares the CPU kernels with reference vectors that the caller has read: optimizer trajectories
// and format conversions. Used by the launcher's selftest command and by tests; reads no file.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "shm/contract/dtype.h"
#include "shm/contract/optimizer_params.h"

namespace optlease {

struct SelftestResult {
  std::string file;  // the case's name
  bool passed = false;
  std::string detail;      // the first mismatch with its numbers, or what was compared
  uint64_t compared = 0;   // values
  double worst_ratio = 0;  // largest error over its tolerance; passed means <= 1
};

// One tensor of a trajectory. Spans refer to the caller's memory; gradients are raw bytes.
struct AdamCaseTensor {
  std::string name;
  std::span<const float> init;
  DType grad_dtype = DType::kF32;
  std::vector<const void*> grads;  // [step - 1], init.size() elements each
  struct Expected {
    std::span<const float> param;
    std::span<const float> exp_avg;
    std::span<const float> exp_avg_sq;
    std::span<const uint16_t> param_bf16;  // may be empty
  };
  std::map<int64_t, Expected> expected;  // by step, from 1
};

struct AdamCase {
  std::string file;
  GroupParams params{};            // lr is replaced by lrs
  std::vector<double> lrs;         // [step - 1]
  double max_norm = 0;             // global norm clipped to this; 0: no clipping
  std::vector<double> grad_norms;  // [step - 1]; empty: not compared
  std::vector<AdamCaseTensor> tensors;
};

// Runs the case through adam_update and compares: |error| <= 4e-7 |reference| + 1e-7 lr step for
// param; <= 1e-6 |reference| + 2e-7 (largest |gradient| of the element so far) for exp_avg; <= 1e-6
// |reference| + smallest normal float for exp_avg_sq; norms within 1e-6 relative. The BF16
// parameters that were written must be the exact rounding of main, and param_bf16 that of param.
SelftestResult run_adam_case(const AdamCase& adam_case);

// Exact bytes of x converted; empty spans are not compared.
struct CastsCase {
  std::string file;
  std::span<const float> x;
  std::span<const uint16_t> bf16;
  std::span<const uint16_t> f16;
  std::span<const uint8_t> e4m3;
  std::span<const uint8_t> e5m2;
};
SelftestResult check_casts(const CastsCase& casts);

// Needs no file: every instruction set that this CPU supports must give the generic loops' bits,
// for every pair of gradient and parameter type, over three steps with gradients that are normal,
// tiny, denormal and zero. `compared` is 0 where only the generic loops can run.
SelftestResult check_instruction_sets(uint64_t elements, uint64_t seed);

}  // namespace optlease
