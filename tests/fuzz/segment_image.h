// Control segments as bytes, for the fuzzers that damage them: made by the code that makes real
// ones, with commits, records and blobs in them as a store leaves them. Blobs are not part of an
// image: they are megabytes of zeros behind it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "shm/contract/geometry.h"
#include "shm/contract/segment_layout.h"
#include "tests/fuzz/fuzz.h"

namespace optlease::fuzz {

inline constexpr uint8_t kJobId[16] = {7, 1, 7, 1};
// The most that a fuzzer maps for one control segment.
inline constexpr uint64_t kControlBytesMax = 16u << 20;

// Small jobs of different shapes, laid out: one rank and one space; two ranks and uneven spaces;
// main weights as BF16 and remainder, a part of the state resident.
inline constexpr uint32_t kSampleCount = 3;
const SegmentPlan& sample_plan(uint32_t sample);

// A plan of the input's own making; it need not be valid.
SegmentPlan plan_from(Input& input);
// The same bytes for a plan that has small enough numbers.
void write_plan(Output& output, const SegmentPlan& plan);

// Header and tables of a new segment of that plan, ready, at `step` with every chunk committed and
// a record of the step after it. REQUIRES: the plan is laid out and valid, and its chunks are few.
std::string control_image(const SegmentPlan& plan, Step step);
// False of a plan whose image would be larger than fuzzers have patience for.
bool is_small(const SegmentPlan& plan);

// Sets the checksum of the header, where there is a whole one.
void repair_control(std::string* image);

// Bytes of the segment whose front `image` is: what its header says, where that is not too much.
uint64_t segment_bytes(std::string_view image);

}  // namespace optlease::fuzz
