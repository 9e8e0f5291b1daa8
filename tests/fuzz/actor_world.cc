#include "tests/fuzz/actor_world.h"

#include "shm/control_build.h"
#include "tests/fuzz/shm_file.h"

namespace optlease::fuzz {
namespace {

constexpr uint64_t kArenaBytesMax = 1u << 20;
constexpr uint32_t kRank = 1;

bool lies_in(const void* at, uint64_t bytes, const void* begin, uint64_t length) {
  const auto* a = static_cast<const char*>(at);
  const auto* b = static_cast<const char*>(begin);
  return a >= b && bytes <= length && a - b <= static_cast<ptrdiff_t>(length - bytes);
}

// A range within one slot of the arena.
bool is_slot(const void* at, uint64_t bytes) {
  const ChunkWindow& window = Rank1::one().window();
  for (uint32_t s = 0; s < window.slot_count(); ++s) {
    if (lies_in(at, bytes, window.slot(SlotIndex(s)), window.slot_bytes())) return true;
  }
  return false;
}

}  // namespace

Rank1& Rank1::one() {
  static auto* made = new Rank1;
  return *made;
}

Rank1::Rank1() : arena_(arena_of(plan(), Rank(kRank))) {
  ShmFile control(".ctl", kControlBytesMax);
  ShmFile arena(".r1", kArenaBytesMax);
  const std::string image = control_image(plan(), 1);
  control.set(image, segment_bytes(image));
  const ArenaHeader header = make_arena_header(kRank, arena_, kJobId);
  arena.set(Output().put(header).text(), header.total_bytes);
  Result<ChunkWindow> opened = ChunkWindow::open(control.name(), arena.name(), Rank(kRank));
  control.unlink();
  arena.unlink();
  OPTLEASE_CHECK(opened.is_ok(), "%s", opened.status().text().c_str());
  window_.emplace(std::move(opened).value());
}

Status CheckingDevice::allocate_staging(uint32_t count, uint64_t bytes_each) {
  for (uint32_t i = 0; i < count; ++i) staging_.emplace_back(bytes_each);
  return Status::ok();
}

bool CheckingDevice::is_staging(const void* at, uint64_t bytes) const {
  for (const auto& buffer : staging_) {
    if (lies_in(at, bytes, buffer.data(), buffer.size())) return true;
  }
  return false;
}

void CheckingDevice::copy(StreamKind stream, void* destination, const void* source,
                          uint64_t bytes) {
  const bool in = stream == StreamKind::kCopyIn;
  const void* slot = in ? source : destination;
  const void* staged = in ? destination : source;
  OPTLEASE_CHECK(is_slot(slot, bytes), "a copy of %llu bytes outside the slots",
                 static_cast<unsigned long long>(bytes));
  OPTLEASE_CHECK(is_staging(staged, bytes), "a copy of %llu bytes outside the staging buffers",
                 static_cast<unsigned long long>(bytes));
  std::memcpy(destination, source, bytes);
}

// Its first and last bytes are memory of ours.
void CheckingDevice::touch(const AdamChunk& chunk, ChunkSums* sums) {
  const uint64_t bytes = chunk.elements * sizeof(float);
  for (const float* array : {chunk.main, chunk.exp_avg, chunk.exp_avg_sq}) {
    OPTLEASE_CHECK(is_staging(array, bytes), "an array outside the staging buffers");
  }
  auto* param = static_cast<volatile char*>(chunk.param);
  param[0] = 1;
  param[bytes - 1] = 1;
  pending_.push_back({issued_[index(StreamKind::kCompute)] + 1, sums});
}

void CheckingDevice::update(const AdamChunk& chunk, const AdamFactors&, ChunkSums* sums) {
  const auto* grad = static_cast<const volatile char*>(chunk.grad);
  (void)grad[0];
  (void)grad[chunk.elements * sizeof(float) - 1];
  touch(chunk, sums);
}

void CheckingDevice::republish(const AdamChunk& chunk, ChunkSums* sums) { touch(chunk, sums); }

// What is reached has written its sums: zeros, into memory that must still be there.
void CheckingDevice::progress(uint32_t stream, uint64_t count) {
  uint64_t& done = done_[stream % kStreamCount];
  done = std::min(done + count, issued_[stream % kStreamCount]);
  const uint64_t computed = done_[index(StreamKind::kCompute)];
  std::erase_if(pending_, [&](const Pending& write) {
    if (write.ticket > computed) return false;
    *write.sums = {};
    return true;
  });
}

PipelineWorld::PipelineWorld(uint8_t limits) {
  const Rank1& rank = Rank1::one();
  limits_ = {.window_chunks = 1u + (limits & 1),
             .staging_buffers = 1u + (limits >> 1 & 3),
             .leases_ahead = 1u + (limits >> 3 & 3)};
  const uint64_t staging = limits_.window_chunks * rank.arena().slot_bytes;
  OPTLEASE_CHECK(device_.allocate_staging(limits_.staging_buffers, staging).is_ok(), "staging");
  pipeline_.emplace(device_, rank.window(), Rank(kRank), rank.arena(), ResidentSlots{}, limits_,
                    *this);
  for (const SpaceSpec& space : rank.plan().spaces) params_.emplace_back(4 * space.elements);
  grads_.resize(1024);
}

void PipelineWorld::step(Input* input) {
  const uint8_t what = input->byte();
  switch (what % 9) {
    case 0:
      start(input);
      break;
    case 1:
      prefetch(input);
      break;
    case 2:
    case 3:
      grant(input);
      break;
    case 4:
      reply(input);
      break;
    case 5:
      progress(input);
      break;
    case 6:
      now_us_ += 1000ull * input->byte();
      break;
    case 7:
      pipeline_->on_lease_busy(now_us_);
      break;
    case 8:
      abandon();
      break;
  }
  pipeline_->advance(++now_us_);
  if (running_ && pipeline_->idle()) taken();
  running_ = !pipeline_->idle();
  (void)pipeline_->computed();
  (void)pipeline_->describe();
}

void PipelineWorld::progress(Input* input) {
  const uint32_t stream = input->byte();
  device_.progress(stream, 1 + input->byte());
}

void PipelineWorld::start(Input* input) {
  const uint8_t how = input->byte();
  const Rank1& rank = Rank1::one();
  const auto kind = static_cast<RunKind>(how % 3);
  if (!pipeline_->idle() || !pipeline_->failure().is_ok()) return;
  if (pipeline_->prefetching() == kNoStep && !pipeline_->drained()) return;
  if (pipeline_->prefetching() == kNoStep || (how & 64) != 0) ++step_;
  std::vector<uint32_t> chunks;
  for (uint32_t c = 0; c < rank.arena().chunks.size(); ++c) {
    if ((how >> 2 >> c & 1) == 0) chunks.push_back(c);
  }
  std::vector<SpaceBuffers> spaces(params_.size());
  for (uint32_t s = 0; s < spaces.size(); ++s) {
    const SpaceSpec& space = rank.plan().spaces[s];
    const int member = member_index(space, Rank(kRank));
    spaces[s].shard = shard_range(space, static_cast<uint32_t>(member));
    spaces[s].params = params_[s].data();
    spaces[s].grad_shard = grads_.data();
  }
  GradCheck grads{std::vector<uint64_t>(rank.arena().chunks.size()), "nowhere"};
  pipeline_->start(kind, step_, chunks, spaces, grads,
                   [](uint32_t, ElementRange range, float* main) {
                     std::fill_n(main, range.size(), 0.0f);
                     return Status::ok();
                   });
}

void PipelineWorld::prefetch(Input* input) {
  const uint8_t how = input->byte();
  if ((how & 1) != 0) return pipeline_->release_prefetch();
  if (pipeline_->prefetching() != kNoStep || !pipeline_->idle() || !pipeline_->drained()) return;
  if (!pipeline_->failure().is_ok()) return;
  std::vector<uint32_t> chunks;
  for (uint32_t c = how >> 1 & 1; c < Rank1::one().arena().chunks.size(); ++c) chunks.push_back(c);
  pipeline_->prefetch(++step_, chunks);
}

// A grant for a window that was asked for, with slots of the input's choice, or any grant at all.
void PipelineWorld::grant(Input* input) {
  const uint8_t how = input->byte();
  LeaseGrantBody body{};
  std::vector<GrantEntry> entries;
  if ((how & 1) != 0) {
    body = input->take<LeaseGrantBody>();
    entries.resize(input->byte() % 4);
    for (GrantEntry& entry : entries) entry = input->take<GrantEntry>();
  } else {
    if (asked_.empty()) return;
    const auto asked = std::next(asked_.begin(), (how >> 1) % static_cast<int>(asked_.size()));
    body = {next_lease_++, step_,         asked->first,
            asked->second, asked->second, static_cast<uint32_t>(how >> 7)};
    for (uint32_t i = 0; i < body.chunk_count; ++i) {
      const uint32_t source = input->byte(), shadow = input->byte();
      entries.push_back({body.first_chunk + i, source % 16, shadow % 16, 0, source / 128});
    }
  }
  // The first that came counts, as it does for the pipeline.
  grants_.emplace(body.lease_id, entries);
  pipeline_->on_grant(body, entries, now_us_);
}

void PipelineWorld::reply(Input* input) {
  const uint8_t how = input->byte();
  if ((how & 1) != 0) return pipeline_->on_commit_reply(input->take<CommitReplyBody>());
  if (commits_.empty()) return;
  const auto at = std::next(commits_.begin(), (how >> 1) % static_cast<int>(commits_.size()));
  const CommitRequestBody& asked = at->second;
  pipeline_->on_commit_reply({asked.lease_id, asked.step, asked.first_chunk, asked.chunk_count});
}

void PipelineWorld::request_lease(Step step, uint32_t first_chunk, uint32_t chunk_count) {
  const size_t chunks = Rank1::one().arena().chunks.size();
  OPTLEASE_CHECK(step == step_ && chunk_count > 0 && chunk_count <= limits_.window_chunks &&
                     first_chunk + chunk_count <= chunks,
                 "a lease of chunks [%u, +%u)", first_chunk, chunk_count);
  asked_[first_chunk] = chunk_count;
}

void PipelineWorld::request_commit(const CommitRequestBody& body,
                                   const std::vector<SlotEntry>& shadow) {
  taken();
  OPTLEASE_CHECK(body.step == step_ && body.chunk_count == shadow.size(), "a commit");
  OPTLEASE_CHECK(asked_.contains(body.first_chunk), "a commit of what was not asked for");
  const uint32_t slots = Rank1::one().window().slot_count();
  for (const SlotEntry& entry : shadow) OPTLEASE_CHECK(entry.slot < slots, "slot %u", entry.slot);
  const bool was_granted = grants_.contains(body.lease_id);
  OPTLEASE_CHECK(was_granted, "a commit without a grant");
  commits_[body.first_chunk] = body;
}

void PipelineWorld::corrupt_chunk(const CorruptChunkBody& body) {
  OPTLEASE_CHECK(body.expected != body.found, "a chunk is called corrupt that is not");
}

void PipelineWorld::abandon() {
  pipeline_->abandon();
  asked_.clear();
  commits_.clear();
}

void PipelineWorld::finish() {
  abandon();
  for (uint32_t stream = 0; stream < kStreamCount; ++stream) device_.progress(stream, UINT32_MAX);
  OPTLEASE_CHECK(pipeline_->drained() && pipeline_->idle(), "it cannot be ended: %s",
                 pipeline_->describe().c_str());
}

std::vector<std::string> pipeline_seeds() {
  std::vector<std::string> seeds;
  for (const uint32_t kind : {0u, 1u, 2u}) {
    for (const bool ahead : {false, true}) {
      Output output;
      output.byte(1 | 2 << 1 | 3 << 3);
      if (ahead) output.byte(1).byte(0).byte(2).byte(0).byte(4).byte(9).byte(5).byte(10);
      output.byte(0).byte(kind);
      for (uint32_t i = 0; i < 4; ++i) {
        // What is published again needs no lease.
        if (kind != 2) output.byte(2).byte(i << 1).byte(i).byte(5 + i).byte(i + 1).byte(6 + i);
        for (const uint32_t stream : {0u, 1u, 2u}) output.byte(5).byte(stream).byte(9);
        if (kind != 2) output.byte(4).byte(i << 1);
      }
      seeds.push_back(output.byte(8).text());
    }
  }
  return seeds;
}

}  // namespace optlease::fuzz
