#include "kernels/cpu_isa.h"

#include <atomic>
#include <cstdlib>
#include <string>

#include "kernels/cpu_loops.h"

namespace optlease {
namespace {

std::atomic<const CpuLoops*> g_loops{nullptr};
std::atomic<CpuIsa> g_isa{CpuIsa::kGeneric};

#if defined(OPTLEASE_X86_LOOPS)
bool cpu_has_v3() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}
bool cpu_has_v4() {
  return cpu_has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
#else
bool cpu_has_v3() { return false; }
bool cpu_has_v4() { return false; }
#endif

void choose(CpuIsa isa) {
  g_isa.store(isa, std::memory_order_relaxed);
  g_loops.store(cpu_loops_of(isa), std::memory_order_release);
}

CpuIsa best() {
  if (cpu_has_v4()) return CpuIsa::kV4;
  return cpu_has_v3() ? CpuIsa::kV3 : CpuIsa::kGeneric;
}

}  // namespace

const char* name_of(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kGeneric:
      return "generic";
    case CpuIsa::kV3:
      return "v3";
    case CpuIsa::kV4:
      return "v4";
  }
  return "?";
}

bool is_supported(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kGeneric:
      return true;
    case CpuIsa::kV3:
      return cpu_has_v3();
    case CpuIsa::kV4:
      return cpu_has_v4();
  }
  return false;
}

const CpuLoops* cpu_loops_of(CpuIsa isa) {
  if (!is_supported(isa)) return nullptr;
  switch (isa) {
    case CpuIsa::kGeneric:
      return &cpu_loops_generic();
#if defined(OPTLEASE_X86_LOOPS)
    case CpuIsa::kV3:
      return &cpu_loops_v3();
    case CpuIsa::kV4:
      return &cpu_loops_v4();
#else
    case CpuIsa::kV3:
      return nullptr;
    case CpuIsa::kV4:
      return nullptr;
#endif
  }
  return nullptr;
}

Status select_cpu_isa() {
  const char* wish = std::getenv("OPTLEASE_ISA");
  if (wish == nullptr || *wish == '\0') {
    choose(best());
    return Status::ok();
  }
  for (CpuIsa isa : {CpuIsa::kGeneric, CpuIsa::kV3, CpuIsa::kV4}) {
    if (std::string(wish) != name_of(isa)) continue;
    if (!is_supported(isa)) {
      return Status(
          StatusCode::kUnsupported,
          format("OPTLEASE_ISA=%s: this CPU or this build cannot run it; allowed are "
                 "generic, v3 and v4, of which the best here is %s: choose that, or unset "
                 "the variable",
                 wish, name_of(best())));
    }
    choose(isa);
    return Status::ok();
  }
  return Status(StatusCode::kInvalidArgument,
                format("OPTLEASE_ISA=%s: allowed are generic, v3 and v4, of which the best here is "
                       "%s; or unset the variable",
                       wish, name_of(best())));
}

const CpuLoops& cpu_loops() {
  const CpuLoops* loops = g_loops.load(std::memory_order_acquire);
  if (loops == nullptr) {
    const Status status = select_cpu_isa();
    OPTLEASE_CHECK(status.is_ok(), "%s", status.text().c_str());
    loops = g_loops.load(std::memory_order_acquire);
  }
  return *loops;
}

CpuIsa cpu_isa() {
  (void)cpu_loops();
  return g_isa.load(std::memory_order_relaxed);
}

}  // namespace optlease
