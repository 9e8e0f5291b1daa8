// The limits that several folders build on, with the relations between them checked at compile
// time. One that a single header's format sets (vault.h, messages.h) stands there.
#pragma once

#include <cstddef>
#include <cstdint>

namespace optlease {

inline constexpr uint32_t kRankCountMax = 1024;
inline constexpr uint32_t kSpaceCountMax = 2048;  // experts: about one a rank, and the dense ones
inline constexpr uint32_t kGroupCountMax = 8;     // hyper-parameter groups in one step record
inline constexpr uint32_t kTensorCountMax = 1u << 20;
inline constexpr uint32_t kTensorDimsMax = 8;
inline constexpr uint64_t kTensorElementsMax = 1ull << 46;  // a parameter's, and a space's
inline constexpr uint32_t kTensorNameBytes = 192;           // with the final zero
inline constexpr uint32_t kNameBytes = 64;                  // spaces, with the final zero
inline constexpr uint32_t kJobNameBytesMax = 48;            // without the final zero
inline constexpr uint32_t kArrayAlignBytes = 256;  // each state array's start within a chunk
inline constexpr uint32_t kPageBytes = 4096;
inline constexpr uint32_t kShardAlignElements = 64;
inline constexpr uint32_t kUserBlobBytesMax = 1u << 20;
inline constexpr uint32_t kSocketPathBytesMax = 107;  // sun_path less its final zero
inline constexpr uint32_t kWindowChunksMax = 64;
// More chunks a rank than this would make tables larger than what they describe is worth.
inline constexpr uint64_t kRankChunkCountMax = 1u << 22;
inline constexpr uint32_t kLeasesInFlightMax = 64;  // a rank
inline constexpr uint32_t kMessageBytesMax = kUserBlobBytesMax + (64u << 10);
inline constexpr uint32_t kTelemetryBytesMax = 64u << 10;

static_assert(kShardAlignElements * 4 % kArrayAlignBytes == 0,
              "a chunk that starts on a shard-aligned element starts every array aligned");
static_assert(kMessageBytesMax > kUserBlobBytesMax, "a step request carries a whole user blob");

}  // namespace optlease
