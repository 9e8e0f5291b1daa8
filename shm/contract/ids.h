// Strong identifiers. Two numbers that could be swapped in a call have two types here; inside byte
// structs they appear as their fixed-width representation.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>

namespace optlease {

template <class Tag, class Rep>
struct StrongId {
  Rep value{};
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep v) : value(v) {}
  constexpr auto operator<=>(const StrongId&) const = default;
};

using Rank = StrongId<struct RankTag, uint32_t>;                // global rank in the job
using ChunkIndex = StrongId<struct ChunkTag, uint32_t>;         // rank-local, all spaces in order
using SlotIndex = StrongId<struct SlotTag, uint32_t>;           // within one rank's arena
using LeaseId = StrongId<struct LeaseTag, uint64_t>;            // never reused within a store epoch
using Incarnation = StrongId<struct IncarnationTag, uint64_t>;  // one life of an actor; from 1
using StoreEpoch = StrongId<struct StoreEpochTag, uint64_t>;    // one life of a host store; from 1

// A step number. Step 0 is the initial state; optimizer steps count from 1. A chunk's version is
// the last step committed for it; kNoStep means it was never written.
using Step = int64_t;
inline constexpr Step kNoStep = -1;
// No job counts further, so that the step after any step is one. Whatever comes from elsewhere
// (frames, segments, files) is held to it.
inline constexpr Step kStepMax = 1'000'000'000'000;
constexpr bool is_step(Step step) { return step >= kNoStep && step <= kStepMax; }

}  // namespace optlease

template <class Tag, class Rep>
struct std::hash<optlease::StrongId<Tag, Rep>> {
  size_t operator()(optlease::StrongId<Tag, Rep> id) const { return std::hash<Rep>{}(id.value); }
};
