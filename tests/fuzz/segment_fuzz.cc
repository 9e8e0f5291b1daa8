// Shared-memory segments as whoever recovers or attaches finds them: control segments (header,
// tables, commit words, records), arena, resident and saved-shards headers, and a whole job's
// segments in /dev/shm (job_files.h).
//
// It may assume nothing of the bytes. It asserts: nothing is written to what is only looked at (it
// is mapped read-only), and nothing behind a segment's end is read; of a control segment that was
// taken every reader's question has an answer within its limits; the tables of any plan that can be
// laid out are taken and spell that plan again; of a job's files that the launcher, the store and
// an actor judge alike.
#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <cstring>

#include "shm/control_check.h"
#include "shm/control_view.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/job_files.h"
#include "tests/fuzz/segment_image.h"

namespace optlease::fuzz {
namespace {

enum class Part : uint8_t { kControl, kPlan, kHeaders, kJobFiles, kCount };
constexpr size_t kGuardBytes = 64u << 10;
constexpr size_t kPatchesMax = 16;

// The front of a control segment in memory of its own, read-only, with nothing behind its end.
class MappedImage {
 public:
  MappedImage(std::string_view image, uint64_t bytes) : image_(image.size()), bytes_(bytes) {
    std::memcpy(memory(), image.data(), image.size());
    OPTLEASE_CHECK(mprotect(memory(), kControlBytesMax, PROT_READ) == 0, "mprotect");
    ASAN_POISON_MEMORY_REGION(memory() + bytes_, kGuardBytes);
  }
  ~MappedImage() {
    ASAN_UNPOISON_MEMORY_REGION(memory() + bytes_, kGuardBytes);
    OPTLEASE_CHECK(mprotect(memory(), kControlBytesMax, PROT_READ | PROT_WRITE) == 0, "mprotect");
    std::memset(memory(), 0, image_);
  }
  const void* data() const { return memory(); }

 private:
  static char* memory() {
    static char* const at = [] {
      void* made = mmap(nullptr, kControlBytesMax + kGuardBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      OPTLEASE_CHECK(made != MAP_FAILED, "mmap");
      return static_cast<char*>(made);
    }();
    return at;
  }
  size_t image_;
  uint64_t bytes_;
};

void ask_rank(const ControlView& view, const ArenaSpec& arena, Rank rank) {
  const Step steps[] = {0, 1, view.step_committed(), view.step_committed() + 1};
  for (const Step step : steps) {
    if (const auto record = view.step_record(rank, step)) {
      OPTLEASE_CHECK(record->step == step && why_invalid(*record) == nullptr, "a record");
    }
    if (const auto sums = view.sums_digest(rank, step)) {
      OPTLEASE_CHECK(sums->step == step && why_invalid(*sums) == nullptr, "sums");
    }
    const auto blob = view.blob(rank, step);
    OPTLEASE_CHECK(!blob || blob->size() <= kUserBlobBytesMax, "a blob");
  }
  OPTLEASE_CHECK(view.chunks(rank).size() == arena.chunks.size(), "chunks");
  for (uint32_t c = 0; c < arena.chunks.size(); ++c) {
    if (view.version(rank, ChunkIndex(c)) < 0) continue;
    for (const SlotEntry& entry : view.entries(rank, ChunkIndex(c))) {
      OPTLEASE_CHECK(entry.slot < arena.slot_count, "slot %u of %u", entry.slot, arena.slot_count);
    }
  }
}

bool try_control(std::string_view image) {
  const uint64_t bytes = segment_bytes(image);
  const MappedImage mapped(image.substr(0, bytes), bytes);
  const Result<ControlView> over = ControlView::over(mapped.data(), bytes);
  if (!over.is_ok()) {
    OPTLEASE_CHECK(!over.status().message().empty(), "refused without a word");
    return false;
  }
  taken();
  const ControlView& view = over.value();
  const SegmentPlan plan = view.plan();
  OPTLEASE_CHECK(why_invalid(plan).empty(), "%s", why_invalid(plan).c_str());
  for (uint32_t r = 0; r < view.header().world_size; ++r) {
    ask_rank(view, arena_of(plan, Rank(r)), Rank(r));
  }
  (void)view.step_is_open();
  const Status rest = check_control_at_rest(view);
  OPTLEASE_CHECK(rest.is_ok() || !rest.message().empty(), "refused without a word");
  return true;
}

// What was just made is at rest, and its plan makes the same again.
void check_whole(const std::string& image) {
  const MappedImage mapped(image, segment_bytes(image));
  const Result<ControlView> view = ControlView::over(mapped.data(), segment_bytes(image));
  OPTLEASE_CHECK(view.is_ok(), "what was made for a plan: %s", view.status().text().c_str());
  OPTLEASE_CHECK(check_control_at_rest(view.value()).is_ok(), "a new segment is damaged");
  OPTLEASE_CHECK(control_image(view.value().plan(), view.value().step_committed()) == image,
                 "the plan of a segment makes another one");
}

void patch(Input input, std::string* image) {
  for (size_t i = 0; i < kPatchesMax && !input.empty() && !image->empty(); ++i) {
    const size_t at = input.take<uint16_t>() % image->size();
    const std::string_view bytes = input.take_bytes(1 + input.byte() % 16);
    const size_t count = std::min(bytes.size(), image->size() - at);
    image->replace(at, count, bytes.substr(0, count));
  }
}

// A plan out of the input, its segment, and then damage where no checksum tells.
void try_plan(Input input) {
  const uint16_t chunk = input.take<uint16_t>();
  SegmentPlan plan = plan_from(input);
  if (!lay_out(&plan, chunk).is_ok() || !why_invalid(plan).empty() || !is_small(plan)) return;
  std::string image = control_image(plan, input.byte() % 4 - 1);
  check_whole(image);
  try_control(image);
  if (input.empty()) return;
  patch(input, &image);
  repair_control(&image);
  try_control(image);
}

template <class Header>
void try_header(Input input, bool repair, uint64_t magic) {
  const uint64_t bytes = input.take<uint64_t>();
  auto header = input.take<Header>();
  if (repair) {
    header.magic = magic;
    header.version = kSegmentVersion;
    header.checksum = checksum_of(header);
  }
  const char* why = why_invalid(header, bytes);
  if (why == nullptr) return taken();
  OPTLEASE_CHECK(*why != '\0', "refused without a word");
}

// Atomics make it none that can be copied; its bytes can.
void try_resident(Input input, bool repair) {
  const uint64_t bytes = input.take<uint64_t>();
  ResidentHeader header{};
  const std::string_view from = input.take_bytes(sizeof header);
  if (!from.empty()) std::memcpy(static_cast<void*>(&header), from.data(), from.size());
  if (repair) {
    header.magic = kResidentMagic;
    header.version = kSegmentVersion;
    header.checksum = checksum_of(header);
  }
  if (why_invalid(header, bytes) != nullptr) return;
  taken();
  OPTLEASE_CHECK(header.slot_count == 0 || header.slot_bytes <= bytes / header.slot_count, "slots");
}

void try_headers(Input input) {
  const uint8_t which = input.byte();
  const bool repair = (which & 4) != 0;
  if ((which & 3) == 0) return try_header<ArenaHeader>(input, repair, kArenaMagic);
  if ((which & 3) == 1) return try_header<SavedShardsHeader>(input, repair, kSavedShardsMagic);
  try_resident(input, repair);
}

Output seed_of(Part part) { return Output().byte(static_cast<uint32_t>(part)); }

}  // namespace
}  // namespace optlease::fuzz

std::vector<std::string> fuzz_seeds() {
  using namespace optlease;
  using namespace optlease::fuzz;
  std::vector<std::string> seeds;
  for (uint32_t sample = 0; sample < kSampleCount; ++sample) {
    const SegmentPlan& plan = sample_plan(sample);
    seeds.push_back(seed_of(Part::kControl).byte(0).bytes(control_image(plan, 1)).text());
    seeds.push_back(seed_of(Part::kControl).byte(1).bytes(control_image(plan, kNoStep)).text());
    Output planned = seed_of(Part::kPlan).put(uint16_t{768});
    write_plan(planned, plan);
    seeds.push_back(planned.byte(2).text());
    seeds.push_back(seed_of(Part::kJobFiles).bytes(job_files_seed(sample)).text());
  }
  ArenaHeader arena{};
  arena.slot_bytes = kPageBytes;
  arena.slot_count = 2;
  arena.total_bytes = kArenaSlotsOffset + 2 * kPageBytes;
  seeds.push_back(seed_of(Part::kHeaders).byte(4).put(arena.total_bytes).put(arena).text());
  SavedShardsHeader shards{};
  shards.data_bytes = 512;
  const uint64_t shards_bytes = kSavedShardsOffset + shards.data_bytes;
  seeds.push_back(seed_of(Part::kHeaders).byte(5).put(shards_bytes).put(shards).text());
  ResidentHeader resident{};
  resident.total_bytes = kResidentSlotsOffset;
  seeds.push_back(seed_of(Part::kHeaders)
                      .byte(6)
                      .put(resident.total_bytes)
                      .bytes({reinterpret_cast<const char*>(&resident), sizeof resident})
                      .text());
  return seeds;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace optlease::fuzz;
  Input input(data, size);
  switch (static_cast<Part>(input.byte() % static_cast<uint8_t>(Part::kCount))) {
    case Part::kControl: {
      const bool repair = (input.byte() & 1) != 0;
      std::string image(input.rest());
      if (repair) repair_control(&image);
      try_control(image);
      break;
    }
    case Part::kPlan:
      try_plan(input);
      break;
    case Part::kHeaders:
      try_headers(input);
      break;
    case Part::kJobFiles:
      try_job_files(input);
      break;
    case Part::kCount:
      break;
  }
  return 0;
}
