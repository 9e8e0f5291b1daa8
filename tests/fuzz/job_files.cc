#include "tests/fuzz/job_files.h"

#include <cstdlib>

#include "actors/gpu_actor/saved_shards.h"
#include "actors/host_store/store_service.h"
#include "kernels/checksum.h"
#include "shm/chunk_window.h"
#include "shm/control_build.h"
#include "shm/found_state.h"
#include "shm/resident_segment.h"
#include "tests/fuzz/segment_image.h"
#include "tests/fuzz/shm_file.h"

namespace optlease::fuzz {
namespace {

constexpr uint32_t kRanksMax = 2;
constexpr uint64_t kOtherBytesMax = 1u << 20;
constexpr Step kSampleStep = 1;

// What of the input is made right before anybody looks.
enum Repair : uint8_t { kHeaderChecksum = 1, kOtherChecksums = 2, kShardsDigest = 4 };

struct JobFiles {
  ShmFile control{".ctl", kControlBytesMax};
  ShmFile arenas[kRanksMax] = {{".r0", kOtherBytesMax}, {".r1", kOtherBytesMax}};
  ShmFile residents[kRanksMax] = {{".d0", kOtherBytesMax}, {".d1", kOtherBytesMax}};
  ShmFile shards{".g0", kOtherBytesMax};

  static JobFiles& all() {
    static auto* files = [] {
      std::atexit([] { all().unlink(); });
      return new JobFiles;
    }();
    return *files;
  }
  void unlink() const {
    control.unlink();
    shards.unlink();
    for (const ShmFile& file : arenas) file.unlink();
    for (const ShmFile& file : residents) file.unlink();
  }
  bool are_unchanged() const {
    bool same = control.is_unchanged() && shards.is_unchanged();
    for (const ShmFile& file : arenas) same = same && file.is_unchanged();
    for (const ShmFile& file : residents) same = same && file.is_unchanged();
    return same;
  }
};

template <class Header>
void set_header(ShmFile* file, Input* input, bool repair) {
  std::string bytes(input->take_bytes(sizeof(Header)));
  bytes.resize(sizeof(Header));
  constexpr size_t kChecksum = 56;  // of all of them
  static_assert(offsetof(ArenaHeader, checksum) == kChecksum &&
                offsetof(ResidentHeader, checksum) == kChecksum &&
                offsetof(SavedShardsHeader, checksum) == kChecksum);
  const uint64_t checksum = fnv1a(bytes.data(), kChecksum);
  if (repair) std::memcpy(bytes.data() + kChecksum, &checksum, sizeof checksum);
  uint64_t said = 0;
  std::memcpy(&said, bytes.data() + offsetof(ArenaHeader, total_bytes), sizeof said);
  file->set(bytes, said <= kOtherBytesMax ? said : sizeof(Header));
}

const std::vector<uint64_t> kShardBytes = {256, 100};
constexpr uint64_t kShardsBytes = kSavedShardsOffset + 256 + 256;

// The header says nothing that the file's size depends on: the size is right, or it is not.
void set_shards(ShmFile* file, Input* input, uint8_t repair) {
  SavedShardsHeader header = input->take<SavedShardsHeader>();
  const std::string_view words = input->take_bytes(16);
  std::string bytes(kSavedShardsOffset, '\0');
  bytes.append(words);
  bytes.resize(kShardsBytes);
  if ((repair & kShardsDigest) != 0) {
    const char* data = bytes.data() + kSavedShardsOffset;
    header.digest = checksum_words(data, 64, 0) + checksum_words(data + 256, 25, 64);
  }
  if ((repair & kOtherChecksums) != 0) header.checksum = checksum_of(header);
  std::memcpy(bytes.data(), &header, sizeof header);
  file->set(bytes, kShardsBytes);
}

void set_files(JobFiles* files, Input* input, uint8_t repair) {
  std::string image(input->take_bytes(input->take<uint16_t>()));
  if ((repair & kHeaderChecksum) != 0) repair_control(&image);
  files->control.set(image, segment_bytes(image));
  const bool others = (repair & kOtherChecksums) != 0;
  for (ShmFile& file : files->arenas) set_header<ArenaHeader>(&file, input, others);
  for (ShmFile& file : files->residents) set_header<ResidentHeader>(&file, input, others);
  set_shards(&files->shards, input, repair);
}

void look_at_shards(const JobFiles& files, bool digest_is_right) {
  SavedShards::Owner owner;
  std::memcpy(owner.job_id, kJobId, sizeof owner.job_id);
  Result<SavedShards> shards = SavedShards::open(files.shards.name(), owner, kShardBytes, true);
  OPTLEASE_CHECK(shards.is_ok(), "%s", shards.status().text().c_str());
  std::string why;
  if (shards.value().step(&why) == kNoStep) {
    OPTLEASE_CHECK(!why.empty(), "refused without a word");
    return;
  }
  const Status digest = shards.value().check_digest();
  OPTLEASE_CHECK(!digest_is_right || digest.is_ok(), "%s", digest.text().c_str());
}

// What an actor of each rank does with the segments that a store serves.
void attach_actors(const JobFiles& files, const ControlView& view) {
  uint64_t read = 0;
  for (uint32_t r = 0; r < view.header().world_size; ++r) {
    Result<ChunkWindow> window =
        ChunkWindow::open(files.control.name(), files.arenas[r].name(), Rank(r));
    OPTLEASE_CHECK(window.is_ok(), "a store serves it: %s", window.status().text().c_str());
    for (uint32_t s = 0; s < window.value().slot_count(); ++s) {
      const char* slot = window.value().slot(SlotIndex(s));
      read += static_cast<uint8_t>(slot[0]) + static_cast<uint8_t>(slot[kPageBytes - 1]) +
              static_cast<uint8_t>(slot[window.value().slot_bytes() - 1]);
    }
  }
  const std::vector<std::string> names = {files.residents[0].name(), files.residents[1].name()};
  if (view.split().has_resident()) {
    const auto residents = open_residents(names, view);
    if (!residents.is_ok()) return;
    for (const ResidentSegment& each : residents.value()) {
      if (each.slots_bytes() > 0)
        read += static_cast<uint8_t>(each.slots()[each.slots_bytes() - 1]);
      (void)each.check_whole();
    }
  }
  OPTLEASE_CHECK(read < UINT64_MAX, "not read");
}

FoundState look_at_files(const JobFiles& files, const SegmentPlan& plan) {
  std::vector<std::string> names = {files.control.name()};
  for (uint32_t r = 0; r < plan.world_size; ++r) {
    names.push_back(files.arenas[r].name());
    if (plan.split.has_resident()) names.push_back(files.residents[r].name());
  }
  FoundState found = look_at_state(segment_stem(), names);
  OPTLEASE_CHECK(files.are_unchanged(), "looking has changed the files");
  const bool is_sound = found.kind == StateKind::kWhole || found.kind == StateKind::kNothing;
  OPTLEASE_CHECK(is_sound || !found.why.message().empty(), "refused without a word");
  return found;
}

}  // namespace

void try_job_files(Input input) {
  const SegmentPlan& plan = sample_plan(input.byte());
  const uint8_t repair = input.byte();
  JobFiles& files = JobFiles::all();
  set_files(&files, &input, repair);
  look_at_shards(files, (repair & kShardsDigest) != 0);
  const FoundState found = look_at_files(files, plan);

  SegmentNames names{files.control.name(), {}};
  for (uint32_t r = 0; r < plan.world_size; ++r) names.arenas.push_back(files.arenas[r].name());
  const auto* header = reinterpret_cast<const SegmentHeader*>(files.control.data());
  const uint64_t epoch = files.control.is_unchanged() ? header->store_epoch.load() : 0;
  Result<ChunkStore> store = ChunkStore::recover(plan, names);
  if (!store.is_ok()) {
    OPTLEASE_CHECK(files.are_unchanged(), "a refused recovery has changed the files");
    const bool is_its_own = found.kind == StateKind::kWhole &&
                            header->layout_hash == layout_hash(plan) &&
                            plan.job_name == header->job_name;
    OPTLEASE_CHECK(!is_its_own, "whole, and refused: %s", store.status().text().c_str());
    return;
  }
  taken();
  OPTLEASE_CHECK(found.kind == StateKind::kWhole, "recovered, and the launcher says: %s",
                 found.why.text().c_str());
  OPTLEASE_CHECK(store.value().epoch().value == epoch + 1, "the epoch is not the next one");
  attach_actors(files, store.value().view());
  auto service = StoreService::start(std::move(store).value(), {}, 1000);
  if (!service.is_ok()) {
    OPTLEASE_CHECK(service.status().code() == StatusCode::kCorrupt, "%s",
                   service.status().text().c_str());
    return;
  }
  const std::string broken = service.value().check_invariants();
  OPTLEASE_CHECK(broken.empty(), "%s", broken.c_str());
  service.value().settle(1001);
  (void)service.value().describe();
}

std::string job_files_seed(uint32_t sample) {
  const SegmentPlan& plan = sample_plan(sample);
  const std::string image = control_image(plan, kSampleStep);
  Output output;
  output.byte(sample).byte(kOtherChecksums | kShardsDigest);
  output.put(static_cast<uint16_t>(image.size())).bytes(image);
  for (uint32_t r = 0; r < kRanksMax; ++r) {
    const bool is_there = r < plan.world_size;
    const ArenaSpec arena = is_there ? arena_of(plan, Rank(r)) : ArenaSpec{};
    output.put(make_arena_header(r, arena, kJobId));
  }
  for (uint32_t r = 0; r < kRanksMax; ++r) {
    const ArenaSpec arena = r < plan.world_size ? arena_of(plan, Rank(r)) : ArenaSpec{};
    ResidentHeader header{};
    header.magic = kResidentMagic;
    header.version = kSegmentVersion;
    header.rank = r;
    std::memcpy(header.job_id, kJobId, sizeof header.job_id);
    header.slot_bytes = arena.resident_slot_bytes;
    header.slot_count = arena.slot_count;
    header.total_bytes = kResidentSlotsOffset + arena.resident_slot_bytes * arena.slot_count;
    header.step.store(kSampleStep);
    header.whole.store(1);
    output.bytes({reinterpret_cast<const char*>(&header), sizeof header});
  }
  SavedShardsHeader shards{};
  shards.magic = kSavedShardsMagic;
  shards.version = kSegmentVersion;
  std::memcpy(shards.job_id, kJobId, sizeof shards.job_id);
  shards.step = kSampleStep + 1;
  shards.data_bytes = kShardsBytes - kSavedShardsOffset;
  return output.put(shards).bytes("0123456789abcdef").text();
}

}  // namespace optlease::fuzz
