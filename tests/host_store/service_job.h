// A two-rank job around a StoreService in this process: real segments, fake actors, no sockets.
#pragma once

#include <unistd.h>

#include <atomic>
#include <memory>

#include "actors/host_store/store_service.h"
#include "tests/host_store/fake_actor.h"

namespace optlease {

// `chunks` one-slot chunks a rank (the last one shorter), in one space over `world_size` ranks.
inline SegmentPlan fake_segment_plan(const std::string& job, uint32_t world_size, uint32_t chunks) {
  SegmentPlan plan;
  plan.job_name = job;
  plan.world_size = world_size;
  plan.window_chunks = 2;
  plan.prefetch_windows = 2;
  SpaceSpec space;
  space.name = "dense";
  for (uint32_t r = 0; r < world_size; ++r) space.members.push_back(Rank{r});
  TensorSpec tensor;
  tensor.name = "weight";
  tensor.shape = {uint64_t{world_size} * (chunks * kShardAlignElements - 7)};
  space.tensors.push_back(tensor);
  plan.spaces.push_back(space);
  const Status laid_out = lay_out(&plan, chunk_bytes(kShardAlignElements));
  OPTLEASE_CHECK(laid_out.is_ok(), "%s", laid_out.text().c_str());
  return plan;
}

// The same with `more` chunks on the last rank alone, in a space of its own.
inline SegmentPlan uneven_segment_plan(const std::string& job, uint32_t world_size, uint32_t chunks,
                                       uint32_t more) {
  SegmentPlan plan = fake_segment_plan(job, world_size, chunks);
  SpaceSpec space;
  space.name = "expert";
  space.members = {Rank{world_size - 1}};
  TensorSpec tensor;
  tensor.name = "expert.weight";
  tensor.shape = {uint64_t{more} * kShardAlignElements};
  space.tensors.push_back(tensor);
  plan.spaces.push_back(space);
  const Status laid_out = lay_out(&plan, chunk_bytes(kShardAlignElements));
  OPTLEASE_CHECK(laid_out.is_ok(), "%s", laid_out.text().c_str());
  return plan;
}

inline SegmentPlan with_split(SegmentPlan plan, const StateSplit& split) {
  plan.split = split;
  return plan;
}

class ServiceJob {
 public:
  static constexpr uint32_t kRanks = 2;

  explicit ServiceJob(const StateSplit& split = {})
      : ServiceJob(with_split(fake_segment_plan("service-test", kRanks, 7), split), {}) {}
  ServiceJob(SegmentPlan plan, CreditOptions credits) : plan_(std::move(plan)), credits_(credits) {
    static std::atomic<int> serial{0};
    const std::string base =
        format("/optlease-test-store.%d.%d", static_cast<int>(::getpid()), serial++);
    names_.control = base + ".ctl";
    for (uint32_t r = 0; r < kRanks; ++r) names_.arenas.push_back(base + format(".r%u", r));
    open(ChunkStore::create(plan_, names_));
    for (uint32_t r = 0; r < kRanks; ++r) restart_actor(r);
  }
  ~ServiceJob() { ChunkStore::unlink(names_); }
  ServiceJob(const ServiceJob&) = delete;
  ServiceJob& operator=(const ServiceJob&) = delete;

  // As SIGKILL of the store and its restart: what was on its way is lost.
  void restart_store() {
    service_.reset();
    open(ChunkStore::recover(plan_, names_));
    for (uint32_t r = 0; r < kRanks; ++r) {
      launcher(MessageKind::kIncarnationStarted, r, incarnations_[r]);
    }
  }
  // As SIGKILL of the actor; its successor starts, the old process is a zombie until reap().
  void restart_actor(uint32_t rank) {
    if (incarnations_[rank] > 0) {
      launcher(MessageKind::kIncarnationLost, rank, incarnations_[rank]);
    }
    launcher(MessageKind::kIncarnationStarted, rank, ++incarnations_[rank]);
    actors_[rank] = std::make_unique<FakeActor>(Rank{rank}, Incarnation{incarnations_[rank]},
                                                names_.control, plan_.window_chunks);
  }
  void reap(uint32_t rank, uint64_t incarnation) {
    launcher(MessageKind::kIncarnationReaped, rank, incarnation);
  }

  void launcher(MessageKind kind, uint32_t rank, uint64_t incarnation) {
    tool("launcher", kind, IncarnationBody{rank, 0, incarnation});
  }
  // Replies to tools are kept by peer.
  template <class Body>
  void tool(const std::string& peer, MessageKind kind, const Body& body) {
    raw(peer, encode(Speaker{}, kind, ++sequence_, body));
  }
  void raw(const std::string& peer, const std::string& frame) {
    service_->handle(peer, frame, now_ms);
    settle();
  }
  // The kind and refusal of the last frame that `peer` was sent, and how many it got.
  struct Heard {
    uint32_t frames = 0;
    MessageKind kind = MessageKind::kHello;
    StatusCode refused = StatusCode::kOk;
    std::string frame;
  };
  Heard& heard(const std::string& peer) { return heard_[peer]; }

  void settle() {
    service_->settle(now_ms);
    for (Message& message : std::exchange(*service_->outgoing(), {})) {
      Heard& heard = heard_[message.peer];
      const Result<Decoded> decoded = decode(message.frame);
      OPTLEASE_CHECK(decoded.is_ok(), "%s", decoded.status().text().c_str());
      ++heard.frames;
      heard.kind = decoded.value().kind;
      heard.refused = StatusCode::kOk;
      if (heard.kind == MessageKind::kRefused) {
        heard.refused = static_cast<StatusCode>(decoded.value().as<RefusedBody>().status);
      }
      for (auto& actor : actors_) {
        if (actor && actor->peer() == message.peer) actor->on_frame(message.frame);
      }
      heard.frame = std::move(message.frame);
    }
  }
  // Sends what the actors have to say, until they have nothing more.
  void deliver() {
    for (bool busy = true; busy;) {
      busy = false;
      for (auto& actor : actors_) {
        for (const std::string& frame : actor->take_outgoing()) {
          raw(actor->peer(), frame);
          busy = true;
        }
      }
    }
  }
  void tick(Step last_step) {
    now_ms += 10;
    settle();
    for (auto& actor : actors_) actor->tick(last_step);
    deliver();
  }
  // False where it takes more than a bounded number of ticks.
  bool run_until_committed(Step step) {
    for (int i = 0; i < 2000; ++i) {
      if (service_->coordinator().step_committed() >= step && actors_[0]->published() >= step &&
          actors_[1]->published() >= step) {
        return true;
      }
      tick(step);
    }
    return false;
  }

  // Empty, or what is wrong: versions, checksums, blobs, slots.
  std::string check(Step step) const {
    const ControlView& view = service_->store().view();
    const Step written = fake_step_is_skipped(step) ? step - 1 : step;
    for (uint32_t r = 0; r < kRanks; ++r) {
      for (uint32_t c = 0; c < view.chunks(Rank{r}).size(); ++c) {
        if (view.version(Rank{r}, ChunkIndex{c}) != step) return format("version of %u.%u", r, c);
        if (view.entries(Rank{r}, ChunkIndex{c})[0].checksum !=
            fake_checksum(Rank{r}, c, written)) {
          return format("checksum of %u.%u", r, c);
        }
      }
      if (step > 0 && view.blob(Rank{r}, step) != fake_blob(Rank{r}, step)) {
        return format("blob of rank %u", r);
      }
    }
    if (view.step_committed() != step) return "the committed step";
    return service_->check_invariants();
  }

  StoreService& service() { return *service_; }
  FakeActor& actor(uint32_t rank) { return *actors_[rank]; }
  const SegmentPlan& plan() const { return plan_; }

  uint64_t now_ms = 1000;

 private:
  void open(Result<ChunkStore> store) {
    OPTLEASE_CHECK(store.is_ok(), "%s", store.status().text().c_str());
    auto service = StoreService::start(
        std::move(store).value(), {.lease_ms = 200, .quarantine_grace_ms = 20, .credits = credits_},
        now_ms);
    OPTLEASE_CHECK(service.is_ok(), "%s", service.status().text().c_str());
    service_.emplace(std::move(service).value());
  }

  SegmentPlan plan_;
  CreditOptions credits_;
  SegmentNames names_;
  std::optional<StoreService> service_;
  std::unique_ptr<FakeActor> actors_[kRanks];
  uint64_t incarnations_[kRanks] = {};
  std::map<std::string, Heard> heard_;
  uint64_t sequence_ = 0;
};

}  // namespace optlease
