// A GPU actor's side of its two conversations: the window pipeline under the grants and replies of
// a host store, the step machine under its orders, and what the actor makes of its trainers'
// requests.
//
// It may assume nothing of what the store and the trainers say, only that the device does what it
// is told. It asserts: nothing of a grant becomes an address outside the rank's slots and staging
// buffers; a commit names slots that were granted for it; a run that ends has asked for each of its
// windows; the machine never starts twice what it has started; every answer to a trainer is a frame
// of the protocol, and its request is kept only where it is one for the next step.
#include "tests/fuzz/actor_world.h"
#include "tests/fuzz/frames.h"

#include "actors/gpu_actor/step_machine.h"
#include "actors/gpu_actor/trainer_requests.h"
#include "actors/runtime/client_abi.h"

namespace optlease::fuzz {
namespace {

constexpr int kOperationsMax = 256;
constexpr Step kLastStep = 9;

enum class Part : uint8_t { kPipeline, kMachine, kTrainer, kCount };

// Any number; small ones oftener than others.
Step step_from(Input* input) {
  const auto small = input->take<int8_t>();
  return small != 127 ? small % 16 : input->take<int64_t>();
}

class Machine {
 public:
  void step(Input* input) {
    const uint8_t what = input->byte();
    if (what % 12 == 0) machine_.on_welcome(step_from(input), step_from(input));
    if (what % 12 == 1) machine_.on_group_formed(input->byte());
    if (what % 12 == 2) machine_.on_group_broken(input->byte());
    if (what % 12 == 3) order(input);
    if (what % 12 == 4) machine_.on_step_open(step_from(input));
    if (what % 12 == 5) machine_.on_step_committed(step_from(input));
    if (what % 12 == 6) machine_.on_detached();
    if (what % 12 == 7) machine_.on_prepare(step_from(input));
    if (what % 12 == 8 && machine_.committed() < kLastStep) {
      machine_.on_gradients(machine_.committed() + 1);
    }
    if (what % 12 == 9) end_run();
    if (what % 12 == 10) end_collective(input);
    if (what % 12 == 11) machine_.on_run_computed();
    now_ms_ += what;
    OPTLEASE_CHECK(*name_of(machine_.phase()) != '?', "a phase without a name");
    (void)machine_.quiet();
    for (const NextAction& action : machine_.next(now_ms_)) begin(action);
  }

 private:
  void order(Input* input) {
    GoOrder order;
    order.gather = (input->byte() & 1) != 0;
    order.group_epoch = input->byte();
    order.step = step_from(input);
    order.needs = {1, 0};
    machine_.on_order(std::move(order));
  }
  void begin(const NextAction& action) {
    taken();
    if (action.kind == NextAction::Kind::kStartRun) {
      OPTLEASE_CHECK(!running_ && !action.chunks.empty(), "a run beside a run, or of nothing");
      running_ = true;
    }
    if (action.kind == NextAction::Kind::kRunCollective) {
      OPTLEASE_CHECK(!collective_, "a collective beside a collective");
      OPTLEASE_CHECK(action.order.group_epoch == machine_.group_epoch(), "of a group that is gone");
      collective_ = action.order;
    }
    if (action.kind == NextAction::Kind::kFillGradients) {
      OPTLEASE_CHECK(action.step == machine_.committed() + 1, "gradients of another step");
    }
  }
  void end_run() {
    if (std::exchange(running_, false)) machine_.on_run_over();
  }
  void end_collective(Input* input) {
    if (!collective_) return;
    const GoOrder order = *std::exchange(collective_, std::nullopt);
    if ((input->byte() & 1) != 0) return machine_.on_collective_failed();
    if (order.gather) return machine_.on_gathered(order.group_epoch, order.step);
    machine_.on_reduced(order.group_epoch, order.step);
  }

  StepMachine machine_{kLastStep,
                       false,
                       {.behind =
                            [](Step) {
                              return std::vector<uint32_t>{0, 1};
                            },
                        .unpublished = [](Step) { return std::vector<uint32_t>{1}; },
                        .skipped = [](Step step) { return step % 4 == 3; },
                        .sums_are_sound = [](Step step) { return step % 2 == 0; }}};
  uint64_t now_ms_ = 0;
  bool running_ = false;
  std::optional<GoOrder> collective_;
};

class Trainer {
 public:
  explicit Trainer(Input* input) {
    facts_.committed = input->byte() % 8 - 1;
    facts_.published = facts_.committed - input->byte() % 2;
    facts_.last = kLastStep;
    facts_.quiet = (input->byte() & 1) != 0;
    if ((input->byte() & 1) != 0) facts_.open = facts_.committed + 1;
  }
  void step(Input* input) {
    const uint8_t what = input->byte();
    const std::string peer = (what & 1) != 0 ? "trainer.1" : "trainer.2";
    const std::string_view bytes = input->take_bytes(input->byte());
    const std::string frame = (what & 2) != 0 ? std::string(bytes) : repaired(bytes);
    const uint64_t refusals = requests_.refusals();
    requests_.handle(peer, frame, facts_);
    if (requests_.refusals() == refusals) taken();
    const auto& held = requests_.in_hand();
    OPTLEASE_CHECK(!held || (held->body.step <= facts_.known() + 1 && held->body.step <= kLastStep),
                   "a request for step %lld is kept", static_cast<long long>(held->body.step));
    if ((what & 4) != 0) requests_.answer(facts_, Rank1::one().window().view());
    for (const Message& message : std::exchange(*requests_.outgoing(), {})) {
      const Result<Decoded> answer = decode(message.frame);
      OPTLEASE_CHECK(answer.is_ok(), "an answer: %s", answer.status().text().c_str());
    }
  }

 private:
  DeskFacts facts_;
  TrainerRequests requests_{Rank{1}};
};

template <class World>
void run(World& world, Input* input) {
  for (int i = 0; i < kOperationsMax && !input->empty(); ++i) world.step(input);
}

std::string trainer_seed() {
  Output output;
  output.byte(static_cast<uint32_t>(Part::kTrainer)).byte(1).byte(0).byte(1).byte(0);
  for (const std::string& frame : frame_of_every_kind()) {
    MessageHeader header;
    std::memcpy(&header, frame.data(), sizeof header);
    if (header.kind < static_cast<uint16_t>(MessageKind::kAttach) || frame.size() > 255) continue;
    output.byte(6).byte(static_cast<uint32_t>(frame.size())).bytes(frame);
  }
  AttachBody attach{kClientAbiVersion, 7};
  const std::string frame = encode(Speaker{}, MessageKind::kAttach, 1, attach);
  return output.byte(7).byte(static_cast<uint32_t>(frame.size())).bytes(frame).text();
}

}  // namespace
}  // namespace optlease::fuzz

std::vector<std::string> fuzz_seeds() {
  using namespace optlease::fuzz;
  std::vector<std::string> seeds = {trainer_seed()};
  const auto of = [](Part part) { return Output().byte(static_cast<uint32_t>(part)); };
  for (const std::string& runs : pipeline_seeds()) {
    seeds.push_back(of(Part::kPipeline).bytes(runs).text());
  }
  Output machine = of(Part::kMachine);
  machine.byte(0).byte(1).byte(255).byte(1).byte(5).byte(9).byte(8).byte(3).byte(0).byte(5).byte(2);
  machine.byte(10).byte(0).byte(4).byte(2).byte(9).byte(3).byte(1).byte(5).byte(2).byte(10).byte(0);
  seeds.push_back(machine.byte(5).byte(2).text());
  return seeds;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace optlease::fuzz;
  Input input(data, size);
  const auto part = static_cast<Part>(input.byte() % static_cast<uint8_t>(Part::kCount));
  if (part == Part::kPipeline) {
    PipelineWorld world(input.byte());
    run(world, &input);
    world.finish();
  } else if (part == Part::kMachine) {
    Machine machine;
    run(machine, &input);
  } else {
    Trainer trainer(&input);
    run(trainer, &input);
  }
  return 0;
}
