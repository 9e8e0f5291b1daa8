#include "tests/shm/test_support.h"

#include <dirent.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#include "shm/arena_check.h"
#include "shm/chunk_window.h"

namespace optlease::test {

SpaceSpec make_space(const std::string& name, uint32_t members,
                     const std::vector<uint64_t>& tensors) {
  SpaceSpec space;
  space.name = name;
  for (uint32_t m = 0; m < members; ++m) space.members.push_back(Rank(m));
  for (size_t t = 0; t < tensors.size(); ++t) {
    TensorSpec tensor;
    tensor.name = name + ".t" + std::to_string(t);
    tensor.shape = {tensors[t]};
    space.tensors.push_back(tensor);
  }
  return space;
}

SegmentPlan make_plan(const std::string& job, uint32_t world, uint64_t bytes,
                      const std::vector<SpaceSpec>& spaces) {
  SegmentPlan plan;
  plan.job_name = job;
  plan.world_size = world;
  plan.spaces = spaces;
  const Status status = lay_out(&plan, bytes);
  OPTLEASE_CHECK(status.is_ok() && why_invalid(plan).empty(), "%s %s", status.text().c_str(),
                 why_invalid(plan).c_str());
  return plan;
}

SegmentPlan small_plan(const std::string& job) {
  return make_plan(job, 2, chunk_bytes(128), {make_space("dense", 2, {700, 300})});
}

Names::Names() {
  static std::atomic<int> count{0};
  prefix_ = format("optlease-test.%d.%d.", static_cast<int>(::getpid()), count.fetch_add(1));
  char root[] = "/tmp/optlease-test-XXXXXX";
  OPTLEASE_CHECK(::mkdtemp(root) != nullptr, "mkdtemp");
  run_root_ = root;
}

Names::~Names() {
  for (const std::string& name : left_in_shm()) Segment::unlink("/" + name);
  const std::string command = "rm -rf -- '" + run_root_ + "'";
  if (std::system(command.c_str()) != 0) ADD_FAILURE() << command;
}

std::string Names::segment(const std::string& job, const std::string& suffix) const {
  return "/" + prefix_ + job + suffix;
}

SegmentNames Names::all(const std::string& job, uint32_t world) const {
  SegmentNames names{segment(job, ".ctl"), {}};
  for (uint32_t r = 0; r < world; ++r) {
    names.arenas.push_back(segment(job, ".r" + std::to_string(r)));
  }
  return names;
}

std::vector<std::string> Names::left_in_shm() const {
  std::vector<std::string> left;
  DIR* directory = ::opendir("/dev/shm");
  while (const dirent* entry = ::readdir(directory)) {
    if (std::strncmp(entry->d_name, prefix_.c_str(), prefix_.size()) == 0) {
      left.emplace_back(entry->d_name);
    }
  }
  ::closedir(directory);
  return left;
}

pid_t start_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  OPTLEASE_CHECK(child > 0, "fork");
  return child;
}

int finish(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) != child) {
  }
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

std::vector<Segment> open_arenas(const SegmentNames& names, const ControlView& view) {
  std::vector<Segment> arenas;
  for (uint32_t r = 0; r < names.arenas.size(); ++r) {
    Result<Segment> arena = open_arena(names.arenas[r], view, Rank(r), Segment::Access::kReadOnly);
    OPTLEASE_CHECK(arena.is_ok(), "%s", arena.status().text().c_str());
    arenas.push_back(std::move(arena).value());
  }
  return arenas;
}

int run_in_child(const std::function<int()>& body) { return finish(start_child(body)); }

uint64_t sum_words(const void* words, uint64_t count, uint64_t first_word) {
  uint64_t sum = 0;
  const char* at = static_cast<const char*>(words);
  for (uint64_t i = 0; i < count; ++i) {
    uint32_t word;
    std::memcpy(&word, at + i * sizeof word, sizeof word);
    sum += uint64_t{word} * (2 * (first_word + i) + 1);
  }
  return sum;
}

float value_of(uint32_t space, uint32_t array, uint64_t element, Step version) {
  const uint64_t key[4] = {space, array, element, static_cast<uint64_t>(version)};
  return static_cast<float>(fnv1a(key, sizeof key) >> 40) / 1024.0f;
}

void write_version(ChunkStore* store, const SegmentNames& names, Rank rank, ChunkIndex chunk,
                   Step step) {
  Result<Segment> arena =
      open_arena(names.arenas[rank.value], store->view(), rank, Segment::Access::kReadWrite);
  OPTLEASE_CHECK(arena.is_ok(), "%s", arena.status().text().c_str());
  const SlotIndex slot = store->unreferenced_slots(rank).at(0);
  const ChunkRecord& record = store->view().chunks(rank)[chunk.value];
  char* data = static_cast<char*>(arena.value().data()) + kArenaSlotsOffset +
               slot.value * store->view().rank(rank).slot_bytes;
  uint64_t sum = 0;
  for (uint32_t array = 0; array < kAdamArrayCount; ++array) {
    const uint64_t offset = array * array_stride_bytes(record.elements);
    for (uint64_t e = 0; e < record.elements; ++e) {
      const float value = value_of(record.space, array, record.first_element + e, step);
      std::memcpy(data + offset + e * sizeof value, &value, sizeof value);
    }
    sum += sum_words(data + offset, record.elements, offset / 4);
  }
  const SlotEntry entry{slot.value, 0, sum};
  store->commit(rank, chunk, step, {&entry, 1});
}

void write_step(ChunkStore* store, const SegmentNames& names, Step step) {
  for (uint32_t r = 0; r < store->view().header().world_size; ++r) {
    for (uint32_t c = 0; c < store->view().chunks(Rank(r)).size(); ++c) {
      write_version(store, names, Rank(r), ChunkIndex(c), step);
    }
  }
  store->set_step_committed(step);
}

StepRecord make_record(Step step) {
  StepRecord record{};
  record.step = step;
  record.update_count = step;
  record.group_count = 1;
  record.groups[0] = {0.001, 0.9, 0.999, 1e-8, 0.01, static_cast<uint32_t>(Rule::kAdamW), 0};
  record.grad_norm = 1.5;
  record.grad_coefficient = 0.5f;
  record.checksum = checksum_of(record);
  return record;
}

}  // namespace optlease::test
