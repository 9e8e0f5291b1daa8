#include "tests/simulation/sim_world.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "shm/segment.h"

namespace optlease {
namespace {

constexpr uint64_t kCalmUsMax = 90'000'000;  // in which a job ends once nothing goes wrong any more
constexpr uint64_t kEventsMax = 2'000'000;

}  // namespace

SimWorld::SimWorld(const SimOptions& options, bool traced)
    : context_(options),
      model_(context_),
      node_(context_),
      ledger_(context_, model_, node_),
      mesh_(context_),
      place_{model_, node_, mesh_, ledger_} {
  const std::string base = format("/optlease-sim.%d.%llu", static_cast<int>(::getpid()),
                                  static_cast<unsigned long long>(options.seed));
  context_.names.control = base + ".ctl";
  for (uint32_t r = 0; r < options.ranks; ++r) {
    context_.names.arenas.push_back(base + format(".r%u", r));
  }
  context_.traced = traced;
}

SimWorld::~SimWorld() { ChunkStore::unlink(context_.names); }

std::string SimWorld::run() {
  start_launcher();
  while (!done_ && context_.failure.empty()) {
    if (!context_.clock.run_one()) context_.fail("nothing will ever happen again");
    ledger_.look();
    maybe_fault();
    if (calm_since_us_ != 0 && context_.clock.now_us() - calm_since_us_ > kCalmUsMax) {
      context_.fail(format("the job does not end: step %lld of %lld is committed",
                           static_cast<long long>(ledger_.committed()),
                           static_cast<long long>(context_.options.steps)));
    }
    if (context_.clock.events() > kEventsMax) context_.fail("too many events");
  }
  if (context_.failure.empty()) ledger_.check_end();
  return context_.failure;
}

// A new launcher holds the job's lock: no process of an earlier one is left.
void SimWorld::start_launcher() {
  node_.forget_vault(context_);
  SimLauncher::Setup setup;
  setup.resumed = ledger_.has_state();
  setup.core.world_size = context_.options.ranks;
  setup.core.trainers = context_.options.trainers;
  setup.core.steps = context_.options.steps;
  setup.core.restart = context_.options.restart;
  if (setup.resumed) {
    for (uint32_t r = 0; r < context_.options.ranks; ++r) {
      setup.core.last_incarnation.push_back(ledger_.view().rank(Rank{r}).incarnation.load());
    }
    setup.core.step_committed = ledger_.view().step_committed();
  }
  setup.state_is_ready = [this] { return ledger_.has_state(); };
  setup.spawn = [this](Seat seat, uint64_t life, bool create) { spawn(seat, life, create); };
  setup.kill = [this](Seat seat, uint64_t life) {
    SimProcess* process = living<SimProcess>(seat);
    if (process != nullptr && process->life() == life) end_process(process, {true, SIGKILL});
  };
  setup.terminate = [this](Seat seat, uint64_t life) {
    SimProcess* process = living<SimProcess>(seat);
    if (process == nullptr || process->life() != life) return;
    if (!process->terminate()) end_process(process, {true, SIGTERM});
  };
  setup.to_store = [this](std::string frame) {
    ++messages_;
    if (SimStore* to = store()) to->on_frame("launcher", std::move(frame));
  };
  setup.finished = [this] { on_finished(); };
  auto launcher = std::make_unique<SimLauncher>(context_, processes_.size() + 1, ++launcher_life_,
                                                std::move(setup));
  launcher_ = launcher.get();
  seats_[{Role::kLauncher, 0}] = launcher_;
  processes_.push_back(std::move(launcher));
  SIM_TRACE(context_, "launcher %llu starts", static_cast<unsigned long long>(launcher_life_));
  launcher_->begin();
}

void SimWorld::spawn(Seat seat, uint64_t life, bool create) {
  const auto before = seats_.find(seat);
  if (before != seats_.end() && before->second->alive()) {
    context_.fail("two processes of " + text_of(seat));
  }
  if (before != seats_.end() && !before->second->gone() && seat.role != Role::kGpuActor) {
    context_.fail("a second process of " + text_of(seat) + " before the first is reaped");
  }
  std::unique_ptr<SimProcess> process = make(seat, life, create);
  SimProcess* raw = process.get();
  SIM_TRACE(context_, "%s starts: life %llu, process %llu", text_of(seat).c_str(),
            static_cast<unsigned long long>(life), static_cast<unsigned long long>(raw->number()));
  seats_[seat] = raw;
  processes_.push_back(std::move(process));
  raw->ends_itself = [this, raw](const ExitInfo& exit) { end_process(raw, exit); };
  context_.clock.after(context_.dice.spread(200, 20'000), [raw] {
    if (raw->alive()) raw->begin();
  });
}

std::unique_ptr<SimProcess> SimWorld::make(Seat seat, uint64_t life, bool create) {
  if (seat.role == Role::kHostStore) return make_store(life, create);
  if (seat.role == Role::kGpuActor) return make_actor(seat.rank, life);
  return make_trainer(seat.rank, life);
}

std::unique_ptr<SimProcess> SimWorld::make_store(uint64_t life, bool create) {
  const uint64_t number = processes_.size() + 1;
  SimStore::Setup setup;
  setup.create = create;
  setup.all_older_reaped = life == 1;
  setup.listens = [this, number] { store_listens(number); };
  setup.send = [this](const std::string& peer, std::string frame) {
    send_from_store(peer, std::move(frame));
  };
  setup.process_of = [](const std::string& peer) -> uint64_t {
    const size_t at = peer.find('@');
    return at == std::string::npos ? 0 : std::strtoull(peer.c_str() + at + 1, nullptr, 10);
  };
  return std::make_unique<SimStore>(context_, ledger_, number, life, std::move(setup));
}

std::unique_ptr<SimProcess> SimWorld::make_actor(uint32_t rank, uint64_t life) {
  const uint64_t number = processes_.size() + 1;
  SimActor::Setup setup;
  setup.listens = [this, rank, number] { actor_listens(rank, number); };
  setup.hears = [this, rank, life, number](const std::string& frame) {
    ++messages_;
    const std::string peer = static_cast<SimActor*>(processes_[number - 1].get())->peer();
    if (SimStore* to = store()) to->on_frame(peer, frame);
  };
  setup.to_trainer = [this, rank, number](const std::string& peer, std::string frame) {
    SimTrainer* to = trainer(rank);
    if (to != nullptr && to->peer() == peer) to->link().reply(number, std::move(frame));
  };
  auto made = std::make_unique<SimActor>(context_, place_, number, rank, life, std::move(setup));
  ledger_.born(number, Rank{rank}, life);
  actors_[made->peer()] = made.get();
  if (SimStore* there = store()) made->link().server_up(there->number());
  return made;
}

std::unique_ptr<SimProcess> SimWorld::make_trainer(uint32_t rank, uint64_t life) {
  auto made =
      std::make_unique<SimTrainer>(context_, place_, processes_.size() + 1, rank, life,
                                   [this, rank](const std::string& peer, std::string frame) {
                                     if (SimActor* to = actor(rank))
                                       to->on_trainer_frame(peer, std::move(frame));
                                   });
  if (SimActor* there = actor(rank)) {
    if (there->listens()) made->link().server_up(there->number());
  }
  return made;
}

void SimWorld::store_listens(uint64_t number) {
  if (launcher_->alive() && launcher_->link() != nullptr) launcher_->link()->server_up(number);
  for (uint32_t r = 0; r < context_.options.ranks; ++r) {
    if (SimActor* there = actor(r)) there->link().server_up(number);
  }
}

void SimWorld::actor_listens(uint32_t rank, uint64_t number) {
  if (SimTrainer* there = trainer(rank)) there->link().server_up(number);
}

void SimWorld::send_from_store(const std::string& peer, std::string frame) {
  ++messages_;
  const uint64_t number = store()->number();
  if (peer == "launcher") {
    if (launcher_->link() != nullptr) launcher_->link()->reply(number, std::move(frame));
    return;
  }
  const auto found = actors_.find(peer);
  if (found != actors_.end()) found->second->link().reply(number, std::move(frame));
}

// The first sign of a death comes at once or late, the reaping later, sometimes much later.
void SimWorld::end_process(SimProcess* process, const ExitInfo& exit) {
  if (!process->alive()) return;
  ++deaths_;
  const Seat seat = process->seat();
  SIM_TRACE(context_, "%s dies: process %llu, %s", text_of(seat).c_str(),
            static_cast<unsigned long long>(process->number()), text_of(exit).c_str());
  const bool late = context_.dice.one_in(10);
  const uint64_t reaped_us =
      late ? context_.dice.spread(300'000, 4'000'000) : context_.dice.spread(200, 200'000);
  const bool silent = seat.role == Role::kTrainer || context_.dice.one_in(8);
  const uint64_t sign_us = context_.dice.spread(50, std::min<uint64_t>(reaped_us, 5'000));
  process->die(exit, reaped_us);
  ledger_.died(process->number());
  if (seat.role == Role::kLauncher) return on_launcher_death();
  if (seat.role == Role::kHostStore) {
    if (launcher_->link() != nullptr) launcher_->link()->server_down();
    for (auto& [peer, there] : actors_) there->link().server_down();
  } else if (seat.role == Role::kGpuActor) {
    if (SimTrainer* there = trainer(seat.rank)) there->link().server_down();
  }
  SimLauncher* parent = launcher_;
  if (!silent) {
    context_.clock.after(sign_us,
                         [parent, seat, process] { parent->on_first_sign(seat, process->life()); });
  }
  context_.clock.after(reaped_us, [this, parent, seat, process] {
    process->set_gone();
    ledger_.reaped(process->number());
    parent->on_reaped(seat, process->life(), process->exit());
  });
}

// Its children are killed with it.
void SimWorld::on_launcher_death() {
  for (const auto& process : processes_) end_process(process.get(), {true, SIGKILL});
  resume_when_all_are_gone();
}

void SimWorld::resume_when_all_are_gone() {
  const auto left = [](const auto& process) {
    return process->seat().role != Role::kLauncher && !process->gone();
  };
  context_.clock.after(context_.dice.spread(1'000, 100'000), [this, left] {
    if (std::any_of(processes_.begin(), processes_.end(), left)) return resume_when_all_are_gone();
    start_launcher();
  });
}

void SimWorld::on_finished() {
  SIM_TRACE(context_, "the launcher is done: %s", launcher_->core().ending_text().c_str());
  for (const auto& process : processes_) {
    if (process->seat().role == Role::kLauncher || process->gone()) continue;
    context_.fail("the job has ended, and " + text_of(process->seat()) + " is left");
  }
  const Ending ending = launcher_->core().ending();
  if (ending == Ending::kCompleted) {
    done_ = true;
  } else if (ending == Ending::kStopped && asked_to_stop_) {
    end_process(launcher_, {false, 0});
  } else {
    context_.fail(std::string("the job ends: ") + name_of(ending) + ", " +
                  launcher_->core().ending_text());
  }
}

}  // namespace optlease
