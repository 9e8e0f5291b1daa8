#include "actors/runtime/job_plan.h"

#include <array>

namespace optlease {
namespace {

// Finds the value whose name is `text`; *out is unchanged where there is none.
template <class Enum, size_t N>
bool parse_among(const std::array<Enum, N>& values, const std::string& text, Enum* out) {
  for (const Enum value : values) {
    if (text == name_of(value)) {
      *out = value;
      return true;
    }
  }
  return false;
}

}  // namespace

const char* name_of(GradientSource source) {
  switch (source) {
    case GradientSource::kTrainer:
      return "trainer";
    case GradientSource::kReplay:
      return "replay";
    case GradientSource::kSynthetic:
      return "synthetic";
  }
  return "?";
}

const char* name_of(RehearsePhase phase) {
  switch (phase) {
    case RehearsePhase::kBeforeLease:
      return "before_lease";
    case RehearsePhase::kCopyIn:
      return "copy_in";
    case RehearsePhase::kUpdate:
      return "update";
    case RehearsePhase::kCopyOut:
      return "copy_out";
    case RehearsePhase::kBeforeCommit:
      return "before_commit";
    case RehearsePhase::kAfterCommit:
      return "after_commit";
    case RehearsePhase::kBetweenSteps:
      return "between_steps";
    case RehearsePhase::kPrepared:
      return "prepared";
    case RehearsePhase::kAnswered:
      return "answered";
    case RehearsePhase::kGather:
      return "gather";
  }
  return "?";
}

const char* name_of(Role role) {
  switch (role) {
    case Role::kLauncher:
      return "launcher";
    case Role::kHostStore:
      return "host_store";
    case Role::kGpuActor:
      return "gpu_actor";
    case Role::kTrainer:
      return "trainer";
  }
  return "?";
}

const char* name_of(InitKind kind) {
  switch (kind) {
    case InitKind::kNormal:
      return "normal";
    case InitKind::kZeros:
      return "zeros";
    case InitKind::kOnes:
      return "ones";
  }
  return "?";
}

bool parse(const std::string& text, GradientSource* out) {
  return parse_among(
      std::array{GradientSource::kTrainer, GradientSource::kReplay, GradientSource::kSynthetic},
      text, out);
}

bool parse(const std::string& text, RehearsePhase* out) {
  return parse_among(
      std::array{RehearsePhase::kBeforeLease, RehearsePhase::kCopyIn, RehearsePhase::kUpdate,
                 RehearsePhase::kCopyOut, RehearsePhase::kBeforeCommit, RehearsePhase::kAfterCommit,
                 RehearsePhase::kBetweenSteps, RehearsePhase::kPrepared, RehearsePhase::kAnswered,
                 RehearsePhase::kGather},
      text, out);
}

bool parse(const std::string& text, Role* out) {
  return parse_among(std::array{Role::kLauncher, Role::kHostStore, Role::kGpuActor, Role::kTrainer},
                     text, out);
}

bool parse(const std::string& text, InitKind* out) {
  return parse_among(std::array{InitKind::kNormal, InitKind::kZeros, InitKind::kOnes}, text, out);
}

uint64_t JobPlan::staging_budget_bytes(Rank rank) const {
  return uint64_t{staging_buffers} * segment.window_chunks * arena_of(segment, rank).slot_bytes;
}

}  // namespace optlease
