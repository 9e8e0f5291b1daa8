#include "tests/fuzz/segment_image.h"

#include "shm/control_build.h"
#include "tests/fuzz/frames.h"

namespace optlease::fuzz {
namespace {

constexpr uint64_t kSmallElements = 1u << 16;
constexpr size_t kImageBytesMax = 64u << 10;

TensorSpec tensor(const char* name, std::vector<uint64_t> shape) {
  TensorSpec out;
  out.name = name;
  out.shape = std::move(shape);
  return out;
}

SpaceSpec space(const char* name, std::vector<Rank> members, std::vector<TensorSpec> tensors) {
  SpaceSpec out;
  out.name = name;
  out.members = std::move(members);
  out.tensors = std::move(tensors);
  return out;
}

SegmentPlan make_sample(uint32_t sample) {
  SegmentPlan plan;
  plan.job_name = "fuzz";
  plan.world_size = sample == 0 ? 1 : 2;
  plan.spaces.push_back(space("dense", {Rank{0}}, {tensor("a", {3, 50}), tensor("b", {})}));
  if (sample != 0) {
    plan.spaces[0].members.push_back(Rank{1});
    plan.spaces.push_back(space("expert", {Rank{1}}, {tensor("c", {200})}));
  }
  if (sample == 2) {
    plan.split = {MainForm::kBf16Remainder, kMillion / 4};
    for (SpaceSpec& each : plan.spaces) each.param_dtype = DType::kBF16;
    plan.spaces[1].tensors[0].global_shape = {400};
    plan.spaces[1].tensors[0].global_offset = {200};
  }
  const Status laid_out = lay_out(&plan, chunk_bytes(kShardAlignElements));
  OPTLEASE_CHECK(laid_out.is_ok(), "%s", laid_out.text().c_str());
  return plan;
}

std::vector<ArenaSpec> arenas_of(const SegmentPlan& plan) {
  std::vector<ArenaSpec> arenas;
  for (uint32_t r = 0; r < plan.world_size; ++r) arenas.push_back(arena_of(plan, Rank(r)));
  return arenas;
}

std::string name_from(Input& input) { return std::string(input.take_bytes(input.byte() % 8)); }

void write_name(Output& output, const std::string& name) {
  output.byte(static_cast<uint32_t>(name.size())).bytes(name);
}

TensorSpec tensor_from(Input& input) {
  TensorSpec out;
  out.name = name_from(input);
  const uint8_t dims = input.byte();
  for (uint8_t d = 0; d < dims % 10; ++d) out.shape.push_back(input.take<uint16_t>());
  if ((dims & 128) == 0) return out;
  for (uint8_t d = 0; d < dims % 10; ++d) {
    out.global_shape.push_back(input.take<uint64_t>());
    out.global_offset.push_back(input.take<uint64_t>());
  }
  return out;
}

void write_tensor(Output& output, const TensorSpec& from) {
  write_name(output, from.name);
  output.byte(static_cast<uint32_t>(from.shape.size()) + (from.global_shape.empty() ? 0 : 130));
  for (const uint64_t dim : from.shape) output.put(static_cast<uint16_t>(dim));
  for (size_t d = 0; d < from.global_shape.size(); ++d) {
    output.put(from.global_shape[d]).put(from.global_offset[d]);
  }
}

// What a store wrote since it made the segment.
void commit_all(char* base, Step step) {
  auto* header = reinterpret_cast<SegmentHeader*>(base);
  auto* ranks = reinterpret_cast<RankRecord*>(base + header->ranks_offset);
  auto* chunks = reinterpret_cast<ChunkRecord*>(base + header->chunks_offset);
  auto* entries = reinterpret_cast<SlotEntry*>(base + header->slot_entries_offset);
  header->state.store(static_cast<uint32_t>(SegmentState::kReady));
  header->step_committed.store(step);
  if (step < 0) return;
  for (uint32_t r = 0; r < header->world_size; ++r) {
    for (uint32_t c = 0; c < ranks[r].chunk_count; ++c) {
      ChunkRecord& chunk = chunks[ranks[r].first_chunk + c];
      const uint32_t bank = c % 2;
      entries[chunk.first_entry + bank].slot = ranks[r].chunk_count - 1 - c;
      chunk.commit_word.store(encode_commit_word(step, bank));
    }
    ranks[r].incarnation.store(3);
    ranks[r].blobs[step & 1] = {step, 8, 0, fnv1a("\0\0\0\0\0\0\0\0", 8)};
    ranks[r].steps[(step + 1) & 1] = valid_record(step + 1);
    ranks[r].sums[(step + 1) & 1] = make_sums_digest(step + 1, 5);
  }
}

}  // namespace

const SegmentPlan& sample_plan(uint32_t sample) {
  static const std::vector<SegmentPlan> plans = {make_sample(0), make_sample(1), make_sample(2)};
  return plans.at(sample % kSampleCount);
}

SegmentPlan plan_from(Input& input) {
  SegmentPlan plan;
  plan.job_name = "fuzz";
  plan.world_size = input.byte() % 5;
  plan.window_chunks = input.byte();
  plan.prefetch_windows = input.byte();
  plan.split.main = static_cast<MainForm>(input.byte() % 3);
  plan.split.resident_millionths = input.take<uint32_t>();
  const uint8_t spaces = input.byte() % 4;
  for (uint8_t s = 0; s < spaces; ++s) {
    SpaceSpec each;
    each.name = name_from(input);
    const uint8_t members = input.byte();
    for (uint8_t r = 0; r < 8; ++r) {
      if ((members >> r & 1) != 0) each.members.push_back(Rank{r});
    }
    const uint8_t kinds = input.byte();
    each.param_dtype = static_cast<DType>(kinds & 3);
    each.grad_dtype = static_cast<DType>(kinds >> 2 & 3);
    each.group = kinds >> 4;
    const uint8_t tensors = input.byte() % 4;
    for (uint8_t t = 0; t < tensors; ++t) each.tensors.push_back(tensor_from(input));
    plan.spaces.push_back(std::move(each));
  }
  return plan;
}

void write_plan(Output& output, const SegmentPlan& plan) {
  output.byte(plan.world_size).byte(plan.window_chunks).byte(plan.prefetch_windows);
  output.byte(static_cast<uint32_t>(plan.split.main)).put(plan.split.resident_millionths);
  output.byte(static_cast<uint32_t>(plan.spaces.size()));
  for (const SpaceSpec& each : plan.spaces) {
    write_name(output, each.name);
    uint32_t members = 0;
    for (const Rank member : each.members) members |= 1u << member.value;
    output.byte(members).byte(static_cast<uint32_t>(each.param_dtype) |
                              static_cast<uint32_t>(each.grad_dtype) << 2 | each.group << 4);
    output.byte(static_cast<uint32_t>(each.tensors.size()));
    for (const TensorSpec& from : each.tensors) write_tensor(output, from);
  }
}

bool is_small(const SegmentPlan& plan) {
  uint64_t elements = 0, chunks = 0;
  for (const SpaceSpec& each : plan.spaces) {
    elements += each.elements;
    if (each.chunk_elements != 0) chunks += each.elements / each.chunk_elements;
  }
  return elements <= kSmallElements && chunks <= 64;
}

std::string control_image(const SegmentPlan& plan, Step step) {
  const std::vector<ArenaSpec> arenas = arenas_of(plan);
  const ControlShape shape = control_shape(plan, arenas);
  // The tables are cast to: they must lie on a word's boundary.
  std::vector<uint64_t> words(shape.blobs_offset / sizeof(uint64_t));
  char* base = reinterpret_cast<char*>(words.data());
  write_control(base, shape, plan, arenas, kJobId);
  commit_all(base, step);
  return {base, shape.blobs_offset};
}

void repair_control(std::string* image) {
  if (image->size() < sizeof(SegmentHeader)) return;
  const uint64_t checksum = fnv1a(image->data(), offsetof(SegmentHeader, header_checksum));
  std::memcpy(image->data() + offsetof(SegmentHeader, header_checksum), &checksum, sizeof checksum);
}

uint64_t segment_bytes(std::string_view image) {
  uint64_t said = 0;
  if (image.size() >= sizeof(SegmentHeader)) {
    std::memcpy(&said, image.data() + offsetof(SegmentHeader, total_bytes), sizeof said);
  }
  const bool can_be = said > image.size() && said <= kControlBytesMax;
  return can_be ? said : std::min(image.size(), kImageBytesMax);
}

}  // namespace optlease::fuzz
