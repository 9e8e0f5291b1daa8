#include <cstring>
#include <iterator>
#include <limits>

#include "kernels/cpu_loops.h"
#include "kernels/random.h"
#include "kernels/reduce_cpu.h"
#include "kernels/selftest.h"
#include "shm/contract/remainder.h"
#include "shm/contract/status.h"

namespace optlease {
namespace {

constexpr int64_t kSteps = 3;
constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

// What one run leaves behind; two runs are compared byte by byte.
struct Outcome {
  std::vector<float> main, exp_avg, exp_avg_sq;
  std::vector<uint8_t> param;
  std::vector<uint64_t> sums;

  bool operator==(const Outcome& other) const {
    const auto same = [](const auto& a, const auto& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
    };
    return same(main, other.main) && same(exp_avg, other.exp_avg) &&
           same(exp_avg_sq, other.exp_avg_sq) && same(param, other.param) && same(sums, other.sums);
  }
};

// A quarter each as they come, tiny (their squares are denormal), denormal themselves, and zero.
std::vector<float> mixed_gradients(uint64_t elements, uint64_t seed, int64_t step) {
  constexpr float kScales[4] = {1.0f, 0x1p-60f, 0x1p-125f, 0.0f};
  std::vector<float> grad(elements);
  for (uint64_t i = 0; i < elements; ++i) {
    grad[i] = synthetic_gradient(seed, step, 0, 0, i) * kScales[mix64(i ^ seed) & 3];
  }
  return grad;
}

// Main weights in their two halves, as remainder.h has them.
struct Halves {
  std::vector<uint16_t> rounded, remainder;

  explicit Halves(const std::vector<float>& main) {
    for (const float value : main) {
      rounded.push_back(rounded_half(bits_of(value)));
      remainder.push_back(remainder_half(bits_of(value)));
    }
  }
  void join(std::vector<float>* main) const {
    for (size_t i = 0; i < main->size(); ++i) {
      (*main)[i] = float_of_bits(joined_bits(rounded[i], remainder[i]));
    }
  }
};

Outcome run(const CpuLoops& loops, uint64_t elements, uint64_t seed, DType grad_dtype,
            DType param_dtype, bool in_halves = false) {
  Outcome outcome;
  outcome.main.resize(elements);
  fill_normal(outcome.main.data(), seed, 0, 0, elements, 0.02f);
  outcome.exp_avg.assign(elements, 0.0f);
  outcome.exp_avg_sq.assign(elements, 0.0f);
  outcome.param.assign(elements * bytes_of(param_dtype), 0);
  std::vector<uint8_t> grad(elements * bytes_of(grad_dtype));
  Halves halves(outcome.main);
  const GroupParams params{1e-3, 0.9, 0.999, 1e-8, 0.1, static_cast<uint32_t>(Rule::kAdamW), 0};
  for (int64_t step = 1; step <= kSteps; ++step) {
    const std::vector<float> source = mixed_gradients(elements, seed, step);
    loops.from_f32(grad.data(), source.data(), grad_dtype, elements);
    const AdamSpan span{in_halves ? nullptr : outcome.main.data(),
                        halves.rounded.data(),
                        halves.remainder.data(),
                        outcome.exp_avg.data(),
                        outcome.exp_avg_sq.data(),
                        grad.data(),
                        outcome.param.data(),
                        grad_dtype,
                        param_dtype,
                        elements,
                        {0, elements, 2 * elements},
                        5};
    ChunkSums sums;
    loops.adam(span, make_adam_factors(params, step, 0.37f), &sums);
    outcome.sums.insert(outcome.sums.end(), {sums.read, sums.written, sums.grad});
  }
  if (in_halves) halves.join(&outcome.main);
  return outcome;
}

// Empty, or the words for a run that differs from the generic loops': of every pair of types, and
// of main weights in halves.
std::string compare_with_generic(CpuIsa isa, const CpuLoops& loops, uint64_t elements,
                                 uint64_t seed) {
  const auto differs = [&](DType grad, DType param, bool in_halves) {
    return format(
        "%s differs from generic: gradients %s, parameters %s%s, %llu elements, seed %llu",
        name_of(isa), name_of(grad), name_of(param), in_halves ? ", main weights in halves" : "",
        static_cast<unsigned long long>(elements), static_cast<unsigned long long>(seed));
  };
  for (DType grad : kDTypes) {
    for (DType param : kDTypes) {
      if (!(run(loops, elements, seed, grad, param) ==
            run(cpu_loops_generic(), elements, seed, grad, param))) {
        return differs(grad, param, false);
      }
    }
    if (!(run(loops, elements, seed, grad, DType::kBF16, true) ==
          run(cpu_loops_generic(), elements, seed, grad, DType::kBF16, true))) {
      return differs(grad, DType::kBF16, true);
    }
  }
  return {};
}

// The same updates of main weights in FP32 and in halves: the same numbers and sums.
std::string compare_halves(uint64_t elements, uint64_t seed) {
  for (DType grad : kDTypes) {
    Outcome whole = run(cpu_loops_generic(), elements, seed, grad, DType::kBF16);
    const Outcome halves = run(cpu_loops_generic(), elements, seed, grad, DType::kBF16, true);
    whole.param = halves.param;  // ties are rounded differently
    if (whole == halves) continue;
    return format("main weights in halves differ from FP32: gradients %s, %llu elements, seed %llu",
                  name_of(grad), static_cast<unsigned long long>(elements),
                  static_cast<unsigned long long>(seed));
  }
  return {};
}

}  // namespace

SelftestResult check_instruction_sets(uint64_t elements, uint64_t seed) {
  SelftestResult result;
  result.file = "instruction sets";
  result.detail = format("generic, in use: %s; compared with generic:", name_of(cpu_isa()));
  std::string mismatch = compare_halves(elements, seed);
  for (CpuIsa isa : {CpuIsa::kV3, CpuIsa::kV4}) {
    const CpuLoops* loops = cpu_loops_of(isa);
    if (loops == nullptr) continue;
    result.detail += format(" %s", name_of(isa));
    result.compared += elements * std::size(kDTypes) * (std::size(kDTypes) + 1);
    if (mismatch.empty()) mismatch = compare_with_generic(isa, *loops, elements, seed);
  }
  result.passed = mismatch.empty();
  result.worst_ratio = mismatch.empty() ? 0 : std::numeric_limits<double>::infinity();
  if (result.compared == 0) result.detail += " none that this CPU or build has";
  if (!mismatch.empty()) result.detail = mismatch;
  return result;
}

}  // namespace optlease
