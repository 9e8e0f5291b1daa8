#include "kernels/selftest.h"

#include <cmath>
#include <limits>

#include "kernels/adam_cpu.h"
#include "kernels/formats.h"
#include "kernels/reduce_cpu.h"
#include "shm/contract/status.h"

namespace optlease {
namespace {

// Collects comparisons of one case; remembers the first that failed.
class Comparison {
 public:
  explicit Comparison(std::string file) { result_.file = std::move(file); }

  void within(double ours, double reference, double tolerance, const char* what,
              const std::string& tensor, int64_t step, uint64_t element) {
    ++result_.compared;
    const double error = std::fabs(ours - reference);
    // Written so that a NaN on either side counts as a mismatch.
    const bool good = error <= tolerance;
    const double ratio =
        error == 0 ? 0 : (good ? error / tolerance : std::fmax(error / tolerance, 1.0));
    if (!(ratio <= result_.worst_ratio)) result_.worst_ratio = ratio;
    if (!good) {
      fail(
          format("%s of %s[%llu] at step %lld is %.9g, the reference %.9g: error %.3g, tolerance "
                 "%.3g",
                 what, tensor.c_str(), static_cast<unsigned long long>(element),
                 static_cast<long long>(step), ours, reference, error, tolerance));
    }
  }

  void equal(uint32_t ours, uint32_t reference, const char* what, const std::string& where,
             uint64_t element) {
    ++result_.compared;
    if (ours == reference) return;
    result_.worst_ratio = std::numeric_limits<double>::infinity();
    fail(format("%s of %s[%llu] is 0x%x, the reference 0x%x", what, where.c_str(),
                static_cast<unsigned long long>(element), ours, reference));
  }

  void fail(std::string message) {
    if (result_.detail.empty()) result_.detail = std::move(message);
  }

  SelftestResult finish(const std::string& summary) {
    result_.passed = result_.detail.empty() && result_.compared > 0;
    if (result_.compared == 0) fail("nothing to compare");
    if (result_.passed) result_.detail = summary;
    return result_;
  }

 private:
  SelftestResult result_;
};

// One tensor's state while a case runs.
struct Running {
  std::vector<float> main, exp_avg, exp_avg_sq, grad, largest_grad;
  std::vector<uint16_t> param_bf16;
};

Running start(const AdamCaseTensor& tensor) {
  Running state;
  const size_t n = tensor.init.size();
  state.main.assign(tensor.init.begin(), tensor.init.end());
  for (auto* array : {&state.exp_avg, &state.exp_avg_sq, &state.grad, &state.largest_grad}) {
    array->assign(n, 0.0f);
  }
  state.param_bf16.assign(n, 0);
  return state;
}

std::string broken_rule(const AdamCase& adam_case) {
  for (const AdamCaseTensor& tensor : adam_case.tensors) {
    if (tensor.grads.size() < adam_case.lrs.size()) {
      return format("%s has %zu gradients for %zu steps", tensor.name.c_str(), tensor.grads.size(),
                    adam_case.lrs.size());
    }
    for (const auto& [step, expected] : tensor.expected) {
      const size_t n = tensor.init.size();
      if (expected.param.size() != n || expected.exp_avg.size() != n ||
          expected.exp_avg_sq.size() != n ||
          (!expected.param_bf16.empty() && expected.param_bf16.size() != n)) {
        return format("%s has %zu elements, its reference at step %lld another number",
                      tensor.name.c_str(), n, static_cast<long long>(step));
      }
    }
  }
  if (!adam_case.grad_norms.empty() && adam_case.grad_norms.size() < adam_case.lrs.size()) {
    return format("%zu norms for %zu steps", adam_case.grad_norms.size(), adam_case.lrs.size());
  }
  const char* broken = why_invalid(adam_case.params);
  return broken == nullptr ? "" : broken;
}

// The global norm of the step's gradients, which are converted on the way.
double norm_of(const AdamCase& adam_case, std::vector<Running>* states, size_t step_index) {
  double sum_squares = 0;
  for (size_t t = 0; t < states->size(); ++t) {
    const AdamCaseTensor& tensor = adam_case.tensors[t];
    Running& state = (*states)[t];
    convert_to_f32(state.grad.data(), tensor.grads[step_index], tensor.grad_dtype,
                   state.grad.size());
    sum_squares += grad_stats(state.grad.data(), 0, state.grad.size(), 1.0f).sum_squares;
  }
  return std::sqrt(sum_squares);
}

void update(const AdamCaseTensor& tensor, size_t step_index, const AdamFactors& factors,
            Running* state) {
  for (size_t i = 0; i < state->grad.size(); ++i) {
    const float magnitude = std::fabs(state->grad[i] * factors.grad_coefficient);
    state->largest_grad[i] = std::fmax(state->largest_grad[i], magnitude);
  }
  AdamChunk chunk;
  chunk.main = state->main.data();
  chunk.exp_avg = state->exp_avg.data();
  chunk.exp_avg_sq = state->exp_avg_sq.data();
  chunk.grad = tensor.grads[step_index];
  chunk.grad_dtype = tensor.grad_dtype;
  chunk.param = state->param_bf16.data();
  chunk.param_dtype = DType::kBF16;
  chunk.elements = state->main.size();
  (void)adam_update(chunk, factors);
}

void compare(const AdamCaseTensor& tensor, const Running& state, int64_t step, double lr,
             Comparison* comparison) {
  const auto found = tensor.expected.find(step);
  if (found == tensor.expected.end()) return;
  const AdamCaseTensor::Expected& expected = found->second;
  constexpr double kSmallestNormal = std::numeric_limits<float>::min();
  for (size_t i = 0; i < state.main.size(); ++i) {
    const double param = expected.param[i], first = expected.exp_avg[i];
    const double second = expected.exp_avg_sq[i];
    comparison->within(state.main[i], param,
                       4e-7 * std::fabs(param) + 1e-7 * lr * static_cast<double>(step), "param",
                       tensor.name, step, i);
    comparison->within(state.exp_avg[i], first,
                       1e-6 * std::fabs(first) + 2e-7 * static_cast<double>(state.largest_grad[i]),
                       "exp_avg", tensor.name, step, i);
    comparison->within(state.exp_avg_sq[i], second, 1e-6 * std::fabs(second) + kSmallestNormal,
                       "exp_avg_sq", tensor.name, step, i);
    comparison->equal(state.param_bf16[i], bf16_from_f32(state.main[i]), "written BF16 parameter",
                      tensor.name, i);
    if (expected.param_bf16.empty()) continue;
    comparison->equal(bf16_from_f32(expected.param[i]), expected.param_bf16[i],
                      "BF16 rounding of the reference parameter", tensor.name, i);
  }
}

}  // namespace

SelftestResult run_adam_case(const AdamCase& adam_case) {
  Comparison comparison(adam_case.file);
  if (std::string broken = broken_rule(adam_case); !broken.empty()) {
    comparison.fail(std::move(broken));
    return comparison.finish("");
  }
  std::vector<Running> states;
  for (const AdamCaseTensor& tensor : adam_case.tensors) states.push_back(start(tensor));
  for (size_t s = 0; s < adam_case.lrs.size(); ++s) {
    const int64_t step = static_cast<int64_t>(s) + 1;
    const double norm = norm_of(adam_case, &states, s);
    if (!adam_case.grad_norms.empty()) {
      comparison.within(norm, adam_case.grad_norms[s], 1e-6 * adam_case.grad_norms[s],
                        "gradient norm", "all tensors", step, 0);
    }
    GroupParams params = adam_case.params;
    params.lr = adam_case.lrs[s];
    const double coefficient = clip_coefficient(norm, adam_case.max_norm);
    const AdamFactors factors = make_adam_factors(params, step, static_cast<float>(coefficient));
    for (size_t t = 0; t < states.size(); ++t) {
      update(adam_case.tensors[t], s, factors, &states[t]);
      compare(adam_case.tensors[t], states[t], step, params.lr, &comparison);
    }
  }
  return comparison.finish(format("%zu steps, %zu tensors within tolerance", adam_case.lrs.size(),
                                  adam_case.tensors.size()));
}

SelftestResult check_casts(const CastsCase& casts) {
  Comparison comparison(casts.file);
  const auto check = [&](const auto& reference, auto convert, const char* what) {
    if (reference.empty()) return;
    if (reference.size() != casts.x.size()) {
      comparison.fail(
          format("%zu %s values for %zu inputs", reference.size(), what, casts.x.size()));
      return;
    }
    for (size_t i = 0; i < casts.x.size(); ++i) {
      comparison.equal(convert(casts.x[i]), reference[i], what, "x", i);
    }
  };
  check(
      casts.bf16, [](float x) { return bf16_from_f32(x); }, "BF16");
  check(
      casts.f16, [](float x) { return f16_from_f32(x); }, "F16");
  check(
      casts.e4m3, [](float x) { return e4m3_from_f32(x); }, "E4M3");
  check(
      casts.e5m2, [](float x) { return e5m2_from_f32(x); }, "E5M2");
  return comparison.finish(format("%zu values, every byte equal", casts.x.size()));
}

}  // namespace optlease
