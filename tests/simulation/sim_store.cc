#include "tests/simulation/sim_store.h"

#include <csignal>
#include <new>
#include <utility>

#include "shm/kill_point.h"

namespace optlease {
namespace {

constexpr uint64_t kPollUsMax = 1'000'000;
constexpr uint64_t kBatchUsMax = 150;

void trace(const SimContext& context, const std::string& peer, const std::string& frame) {
  if (!context.traced) return;
  const Decoded decoded = decode(frame).value();
  std::string about;
  if (decoded.body.size() == sizeof(IncarnationBody) && decoded.header.rank == 0 &&
      decoded.kind >= MessageKind::kIncarnationStarted) {
    const auto body = decoded.as<IncarnationBody>();
    about = format(" r%u.i%llu", body.rank, static_cast<unsigned long long>(body.incarnation));
  }
  SIM_TRACE(context, "store <- %s: %s%s", peer.c_str(), name_of(decoded.kind), about.c_str());
}

}  // namespace

SimStore::SimStore(SimContext& context, SimLedger& ledger, uint64_t number, uint64_t life,
                   Setup setup)
    : SimProcess(context, number, {Role::kHostStore, 0}, life),
      ledger_(ledger),
      setup_(std::move(setup)) {}

void SimStore::begin() {
  run([this] {
    const SimOptions& options = context_.options;
    std::optional<Result<ChunkStore>> store;
    const bool lives = guarded([&] {
      store = setup_.create ? ChunkStore::create(context_.plan, context_.names)
                            : ChunkStore::recover(context_.plan, context_.names);
    });
    if (!lives) return;
    if (!store->is_ok()) return context_.fail("the store: " + store->status().text());
    const StoreOptions what{.lease_ms = options.restart.lease_ms,
                            .quarantine_grace_ms = options.restart.quarantine_grace_ms,
                            .all_older_reaped = setup_.all_older_reaped,
                            .keep_state = true,
                            .credits = {.ceiling_bytes = options.in_flight_bytes,
                                        .windows_ahead = options.prefetch_windows + 1}};
    Result<StoreService> service =
        StoreService::start(std::move(*store).value(), what, context_.clock.now_ms());
    if (!service.is_ok()) return context_.fail("the store: " + service.status().text());
    service_.emplace(std::move(service).value());
    ledger_.state_is_there();
    ledger_.store_serves(service_->store().epoch().value);
    setup_.listens();
    settle_soon(0);
  });
}

void SimStore::on_death() { service_.reset(); }

bool SimStore::terminate() {
  run([this] {
    if (!service_) return leave(0);
    service_->stop(context_.options.restart.stop_timeout_ms / 2, context_.clock.now_ms());
    settle_soon(0);
  });
  return true;
}

bool SimStore::guarded(const std::function<void()>& what) {
  if (kill_point_ == nullptr) {
    what();
    return true;
  }
  const std::string point = format("throw:%s:1", kill_point_);
  arm_kill_point(point.c_str());
  try {
    what();
    arm_kill_point(nullptr);
    return true;
  } catch (const std::bad_alloc&) {
    arm_kill_point(nullptr);
    SIM_TRACE(context_, "the store dies at %s", kill_point_);
    ledger_.store_heard();
    ends_itself({true, SIGKILL});
    return false;
  }
}

void SimStore::on_frame(const std::string& peer, std::string frame) {
  run([this, peer, frame = std::move(frame)] { handle(peer, frame); });
}

void SimStore::handle(const std::string& peer, const std::string& frame) {
  if (!service_) return;
  trace(context_, peer, frame);
  const uint64_t from = setup_.process_of(peer);
  ledger_.store_hears(from, frame);
  if (!guarded([&] { service_->handle(peer, frame, context_.clock.now_ms()); })) return;
  hear_outgoing();
  ledger_.store_heard();
  settle_soon(context_.dice.one_in(2) ? 0 : context_.dice.below(kBatchUsMax));
}

// As soon as it is said: until it is sent the store may hear something else.
void SimStore::hear_outgoing() {
  ledger_.look();
  const std::vector<Message>& outgoing = *service_->outgoing();
  for (; heard_ < outgoing.size(); ++heard_) {
    const Message& message = outgoing[heard_];
    const uint64_t to = setup_.process_of(message.peer);
    if (to != 0) ledger_.store_says(to, message.frame);
  }
}

void SimStore::settle_soon(uint64_t delay_us) {
  if (settles_soon_) return;
  settles_soon_ = true;
  run_after(delay_us, [this] {
    settles_soon_ = false;
    settle();
  });
}

void SimStore::settle() {
  if (!service_) return;
  if (!guarded([&] { service_->settle(context_.clock.now_ms()); })) return;
  hear_outgoing();
  const std::string broken = service_->check_invariants();
  if (!broken.empty()) context_.fail("the lease table: " + broken);
  heard_ = 0;
  for (Message& message : std::exchange(*service_->outgoing(), {})) {
    SIM_TRACE(context_, "store -> %s: %s", message.peer.c_str(),
              name_of(decode(message.frame).value().kind));
    setup_.send(message.peer, std::move(message.frame));
  }
  if (service_->finished()) return leave(0);
  const uint64_t now_ms = context_.clock.now_ms();
  const uint64_t deadline_ms = service_->next_deadline_ms();
  uint64_t wait_us = kPollUsMax;
  if (deadline_ms <= now_ms + kPollUsMax / 1000) {
    wait_us = deadline_ms <= now_ms ? 1 : (deadline_ms - now_ms) * 1000;
  }
  const uint64_t mine = ++timer_;
  run_after(wait_us, [this, mine] {
    if (mine == timer_) settle_soon(0);
  });
}

}  // namespace optlease
