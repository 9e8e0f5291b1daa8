// An actor that is killed within a write-back: a process of its own over the real arena, ended when
// its copy out reaches a chosen byte of a shadow slot. The store's half stays in this process.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <iostream>

#include "actors/gpu_actor/device.h"
#include "actors/gpu_actor/pin_plan.h"
#include "actors/gpu_actor/window_pipeline.h"
#include "actors/runtime/clock.h"
#include "kernels/checksum.h"
#include "shm/chunk_store.h"
#include "shm/chunk_window.h"
#include "shm/lease_table.h"
#include "tests/gpu_actor/resident_oracle.h"
#include "tests/support/test_seed.h"

namespace optlease {
namespace {

constexpr uint64_t kElements = 9'001;
constexpr uint64_t kChunkBytes = 16 << 10;  // four pages a slot, 7 chunks
constexpr uint32_t kWindowChunks = 2, kPrefetch = 1, kBuffers = 2;
constexpr Rank kRank{0};

// When an actor ends.
enum class End {
  kNever,
  kAtByte,            // the copy out of a chunk reaches `permille` of it
  kBeforeCommit,      // everything is written, nothing is said
  kAfterCommitIsSent  // the store hears of it, the actor hears nothing more
};
struct Aim {
  End end = End::kNever;
  uint32_t permille = 0;
  uint32_t nth = 0;  // of the chunks it is granted, or of its commits
};

// Requests and answers, one a packet: a kind, a fixed body, entries.
struct Packet {
  enum Kind : uint32_t { kLease, kCommit, kReturn, kGrant, kBusy, kCommitted } kind = kLease;
  uint32_t entry_count = 0;
  LeaseRequestBody lease{};
  CommitRequestBody commit{};
  LeaseGrantBody grant{};
  uint64_t lease_id = 0;
  SlotEntry shadow[kWindowChunks] = {};
  GrantEntry entries[kWindowChunks] = {};
};

// Now, without a word to anybody; called where a page may no longer be written.
void end_here(int) { ::kill(::getpid(), SIGKILL); }

// The actor's half, in the child.
class KilledActor final : public PipelinePort {
 public:
  KilledActor(int fd, const SegmentNames& names, const ArenaSpec& arena, Aim aim)
      : fd_(fd), arena_(arena), aim_(aim) {
    struct sigaction action {};
    action.sa_handler = end_here;
    ::sigaction(SIGSEGV, &action, nullptr);
    window_.emplace(ChunkWindow::open(names.control, names.arenas[0], kRank).value());
    device_ = make_device("cpu", kRank).value();
    const Status staged = device_->allocate_staging(kBuffers, arena.slot_bytes * kWindowChunks);
    OPTLEASE_CHECK(staged.is_ok(), "%s", staged.text().c_str());
    pipeline_.emplace(*device_, *window_, kRank, arena_, ResidentSlots{},
                      PipelineLimits{kWindowChunks, kBuffers, kPrefetch + 1}, *this);
  }

  // The exit code: 0 where the step is done.
  int run(Step step, const std::vector<float>& grads) {
    std::vector<uint32_t> chunks;
    for (uint32_t c = 0; c < arena_.chunks.size(); ++c) {
      if (window_->view().version(kRank, ChunkIndex(c)) < step) chunks.push_back(c);
    }
    std::vector<float> params(kElements);
    SpaceBuffers space;
    space.params = reinterpret_cast<char*>(params.data());
    space.grad_shard = grads.data();
    space.shard = {0, kElements};
    space.param_dtype = DType::kF32;
    if (step > 0) space.factors = make_adam_factors(adamw(), step, 0.5f);
    GradCheck check{{}, "memory of the test"};
    for (const ChunkSpec& chunk : arena_.chunks) {
      if (step == 0) break;  // initial values need no gradients
      const ElementRange& range = chunk.range;
      check.of_chunk.push_back(
          checksum_words(grads.data() + range.begin, range.size(), range.begin));
    }
    pipeline_->start(step == 0 ? RunKind::kInitialise : RunKind::kUpdate, step, chunks, {space},
                     check, fill_initial);
    while (!pipeline_->idle()) {
      pipeline_->advance(static_cast<uint64_t>(now_us()));
      if (!pipeline_->failure().is_ok()) return 1;
      if (!wait_and_hear()) return 2;
    }
    return 0;
  }

  void request_lease(Step step, uint32_t first, uint32_t count) override {
    Packet packet{.kind = Packet::kLease};
    packet.lease = {step, first, count};
    say(packet);
  }
  void request_commit(const CommitRequestBody& body,
                      const std::vector<SlotEntry>& shadow) override {
    const bool is_aim = commits_++ == aim_.nth;
    if (aim_.end == End::kBeforeCommit && is_aim) end_here(0);
    Packet packet{.kind = Packet::kCommit, .entry_count = static_cast<uint32_t>(shadow.size())};
    packet.commit = body;
    std::copy(shadow.begin(), shadow.end(), packet.shadow);
    say(packet);
    if (aim_.end == End::kAfterCommitIsSent && is_aim) end_here(0);
  }
  void return_lease(uint64_t lease_id) override {
    Packet packet{.kind = Packet::kReturn};
    packet.lease_id = lease_id;
    say(packet);
  }
  void at_phase(RehearsePhase, Step) override {}
  bool keeps_last_commit(Step) override { return false; }
  void corrupt_chunk(const CorruptChunkBody&) override { ::_exit(3); }

 private:
  void say(const Packet& packet) {
    if (::send(fd_, &packet, sizeof packet, MSG_NOSIGNAL) != sizeof packet) ::_exit(4);
  }
  bool wait_and_hear() {
    pollfd waiting[] = {{fd_, POLLIN, 0}, {device_->completion_fd(), POLLIN, 0}};
    ::poll(waiting, 2, 5);
    device_->drain_completions();
    Packet packet;
    ssize_t size = 0;
    while ((size = ::recv(fd_, &packet, sizeof packet, MSG_DONTWAIT)) == sizeof packet) {
      hear(packet);
    }
    return size != 0;
  }
  void hear(const Packet& packet) {
    const auto now = static_cast<uint64_t>(now_us());
    switch (packet.kind) {
      case Packet::kGrant:
        if (aim_.end == End::kAtByte) forbid_the_aim(packet);
        return pipeline_->on_grant(packet.grant,
                                   {packet.entries, packet.entries + packet.entry_count}, now);
      case Packet::kBusy:
        return pipeline_->on_lease_busy(now);
      case Packet::kCommitted:
        return pipeline_->on_commit_reply({packet.commit.lease_id, packet.commit.step,
                                           packet.commit.first_chunk, packet.commit.chunk_count});
      case Packet::kLease:
      case Packet::kCommit:
      case Packet::kReturn:
        ::_exit(5);
    }
  }
  // The page of the shadow slot that holds the aimed byte ends whoever writes it.
  void forbid_the_aim(const Packet& packet) {
    for (uint32_t i = 0; i < packet.entry_count; ++i) {
      if (granted_++ != aim_.nth) continue;
      const GrantEntry& entry = packet.entries[i];
      const uint64_t bytes = layout_of({}, arena_.chunks[entry.chunk].range.size()).host_bytes;
      const uint64_t page = bytes * aim_.permille / 1000 / 4096 * 4096;
      char* slot = window_->slot(SlotIndex(entry.shadow_slot));
      if (::mprotect(slot + page, 4096, PROT_READ) != 0) ::_exit(6);
    }
  }

  int fd_;
  const ArenaSpec& arena_;
  Aim aim_;
  std::optional<ChunkWindow> window_;
  std::unique_ptr<Device> device_;
  std::optional<WindowPipeline> pipeline_;
  uint32_t granted_ = 0, commits_ = 0;
};

// The store's half, and the oracle.
class KilledWriteBack : public testing::Test {
 protected:
  KilledWriteBack() {
    plan_.job_name = "killed";
    plan_.world_size = 1;
    plan_.window_chunks = kWindowChunks;
    plan_.prefetch_windows = kPrefetch;
    SpaceSpec space;
    space.name = "dense";
    space.members = {kRank};
    TensorSpec tensor;
    tensor.name = "weight";
    tensor.shape = {kElements};
    space.tensors = {tensor};
    plan_.spaces = {space};
    OPTLEASE_CHECK(lay_out(&plan_, kChunkBytes).is_ok(), "lay_out");
    arena_ = arena_of(plan_, kRank);
    const std::string base = format("/optlease-test.killed.%d", static_cast<int>(::getpid()));
    names_ = {base + ".ctl", {base + ".r0"}};
    store_.emplace(ChunkStore::create(plan_, names_).value());
    window_.emplace(ChunkWindow::open(names_.control, names_.arenas[0], kRank).value());
    leases_.add_rank(kRank, std::vector<uint32_t>(arena_.chunks.size(), 1),
                     store_->unreferenced_slots(kRank), Incarnation(0));
  }
  ~KilledWriteBack() override { ChunkStore::unlink(names_); }

  // One life of the actor: its wait status. Its slots are free again when this returns.
  int live(Step step, const std::vector<float>& grads, Aim aim) {
    int ends[2];
    OPTLEASE_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0, "sockets");
    ++incarnation_.value;
    leases_.started(kRank, incarnation_, now_ms_);
    EXPECT_TRUE(leases_.hello(kRank, incarnation_, now_ms_).is_ok());
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::close(ends[0]);
      KilledActor actor(ends[1], names_, arena_, aim);
      ::_exit(actor.run(step, grads));
    }
    ::close(ends[1]);
    Packet packet;
    while (::recv(ends[0], &packet, sizeof packet, 0) == sizeof packet) answer(ends[0], packet);
    ::close(ends[0]);
    int status = 0;
    ::waitpid(pid, &status, 0);
    leases_.lost(kRank, incarnation_, now_ms_);
    leases_.reaped(kRank, incarnation_, now_ms_);
    now_ms_ += kGraceMs;
    leases_.advance(now_ms_);
    return status;
  }

  void answer(int fd, const Packet& asked) {
    Packet reply;
    switch (asked.kind) {
      case Packet::kLease:
        grant(asked.lease, &reply);
        break;
      case Packet::kCommit:
        commit(asked);
        reply.kind = Packet::kCommitted;
        reply.commit = asked.commit;
        break;
      case Packet::kReturn:
        EXPECT_TRUE(leases_.give_back(kRank, incarnation_, LeaseId(asked.lease_id), now_ms_));
        return;
      case Packet::kGrant:
      case Packet::kBusy:
      case Packet::kCommitted:
        ADD_FAILURE() << "an actor said what only a store says";
        return;
    }
    (void)!::send(fd, &reply, sizeof reply, MSG_NOSIGNAL);  // it may be dead by now
  }
  void grant(const LeaseRequestBody& asked, Packet* reply) {
    const Result<Lease> lease = leases_.grant(kRank, incarnation_, asked.step, asked.first_chunk,
                                              asked.chunk_count, now_ms_);
    if (!lease) {
      EXPECT_EQ(lease.status().code(), StatusCode::kBusy) << lease.status().text();
      reply->kind = Packet::kBusy;
      return;
    }
    reply->kind = Packet::kGrant;
    reply->entry_count = asked.chunk_count;
    reply->grant = {lease.value().id.value, asked.step,        asked.first_chunk,
                    asked.chunk_count,      asked.chunk_count, 0};
    for (uint32_t i = 0; i < asked.chunk_count; ++i) {
      const uint32_t chunk = asked.first_chunk + i, shadow = lease.value().shadow[i].value;
      const SlotEntry source = store_->view().entries(kRank, ChunkIndex(chunk)).front();
      const bool written = store_->view().version(kRank, ChunkIndex(chunk)) != kNoStep;
      reply->entries[i] = {chunk, written ? source.slot : shadow, shadow, 0, source.checksum};
    }
  }
  void commit(const Packet& asked) {
    const CommitRequestBody& body = asked.commit;
    const Status may =
        leases_.may_commit(kRank, incarnation_, LeaseId(body.lease_id), body.step, body.first_chunk,
                           body.chunk_count, {asked.shadow, asked.entry_count}, now_ms_);
    ASSERT_TRUE(may.is_ok()) << may.text();
    std::vector<SlotIndex> freed;
    for (uint32_t i = 0; i < body.chunk_count; ++i) {
      const ChunkIndex chunk(body.first_chunk + i);
      if (store_->view().version(kRank, chunk) != kNoStep) {
        freed.push_back(SlotIndex(store_->view().entries(kRank, chunk).front().slot));
      }
      store_->commit(kRank, chunk, body.step, {&asked.shadow[i], 1});
    }
    leases_.committed(LeaseId(body.lease_id), body.chunk_count, freed);
  }

  // Every chunk holds, bit for bit, the old version or the new one, as its version says, and no
  // slot is lost.
  void expect_whole(Step step, const Resident& before, const Resident& after) {
    for (uint32_t c = 0; c < arena_.chunks.size(); ++c) {
      const Step version = store_->view().version(kRank, ChunkIndex(c));
      ASSERT_TRUE(version == step - 1 || version == step) << "chunk " << c << " is at " << version;
      const Resident& expected = version == step ? after : before;
      const ElementRange range = arena_.chunks[c].range;
      const ChunkLayout layout = layout_of({}, range.size());
      const char* slot =
          window_->slot(SlotIndex(store_->view().entries(kRank, ChunkIndex(c)).front().slot));
      uint32_t array = 0;
      for (const std::vector<float>* each :
           {&expected.main, &expected.exp_avg, &expected.exp_avg_sq}) {
        const char* found = slot + place_of(layout, array++, 0).offset;
        ASSERT_EQ(std::memcmp(found, each->data() + range.begin, range.size() * sizeof(float)), 0)
            << "array " << array - 1 << " of chunk " << c << ", version " << version;
      }
    }
    ASSERT_EQ(leases_.free_slots(kRank) + arena_.chunks.size(), arena_.slot_count)
        << "a slot was lost";
  }

  static constexpr uint64_t kGraceMs = 20;
  SegmentPlan plan_;
  ArenaSpec arena_;
  SegmentNames names_;
  std::optional<ChunkStore> store_;
  std::optional<ChunkWindow> window_;
  LeaseTable leases_{LeaseTableOptions{60'000, kGraceMs, kWindowChunks}};
  Incarnation incarnation_{0};
  uint64_t now_ms_ = 1;
};

// Fault case 11.
TEST_F(KilledWriteBack, LeavesTheOldVersionOrTheNewAndEverySlot) {
  const int kills = std::getenv("OPTLEASE_TEST_LONG") != nullptr ? 1000 : 60;
  std::mt19937_64 random(test_seed());
  const auto chunks = static_cast<uint32_t>(arena_.chunks.size());
  ASSERT_EQ(live(0, {}, {}), 0);
  Resident before = resident_start(kElements), after = before;
  for (Step step = 1; step <= kills; ++step) {
    SCOPED_TRACE(format("step %lld", static_cast<long long>(step)));
    const std::vector<float> grads = gradients(step, kElements);
    resident_step(&after, step);
    constexpr Aim kAims[] = {{End::kAtByte, 0},      {End::kAtByte, 500},
                             {End::kAtByte, 990},    {End::kBeforeCommit},
                             {End::kAtByte, 999999}, {End::kAfterCommitIsSent}};
    Aim aim = kAims[static_cast<uint64_t>(step) % std::size(kAims)];
    if (aim.permille > 1000) aim.permille = static_cast<uint32_t>(random() % 1000);
    aim.nth = static_cast<uint32_t>(random() % (aim.end == End::kAtByte ? chunks : 3));
    const int status = live(step, grads, aim);
    ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
        << "it was to be killed, and ended with wait status " << status;
    ASSERT_NO_FATAL_FAILURE(expect_whole(step, before, after));
    ASSERT_EQ(live(step, grads, {}), 0) << "its successor";
    ASSERT_NO_FATAL_FAILURE(expect_whole(step, after, after));
    store_->set_step_committed(step);
    before = after;
  }
  std::cout << kills << " actors killed\n";
}

}  // namespace
}  // namespace optlease
