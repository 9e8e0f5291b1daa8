#include "tests/client/fake_job.h"

#include <stdlib.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <thread>

#include "actors/runtime/clock.h"
#include "actors/wire/codec.h"
#include "actors/wire/endpoints.h"
#include "actors/wire/socket.h"
#include "shm/shared_buffer.h"
#include "shm/vault.h"

namespace optlease {

namespace {

template <class T>
T must(Result<T> result) {
  OPTLEASE_CHECK(result.is_ok(), "%s", result.status().text().c_str());
  return std::move(result).value();
}
void must(const Status& status) { OPTLEASE_CHECK(status.is_ok(), "%s", status.text().c_str()); }

struct Buffer {
  std::string key;
  uint64_t bytes = 0;
  UniqueFd fd;
  MappedBuffer map;
};

struct Refusal {
  StatusCode code;
  std::string text;
  bool in_reply;
};

// A directory of its own for the sockets of one fake job.
std::string make_runtime_dir() {
  char pattern[] = "/tmp/optlease-test.XXXXXX";
  OPTLEASE_CHECK(::mkdtemp(pattern) != nullptr, "mkdtemp: %s", std::strerror(errno));
  ::setenv("XDG_RUNTIME_DIR", pattern, 1);
  return pattern;
}

}  // namespace

struct FakeJob::Impl {
  Impl(const JobPlan& job, uint32_t my_rank, Update rule)
      : plan(job),
        rank(my_rank),
        update(std::move(rule)),
        runtime_dir(make_runtime_dir()),
        directory(must(RunDirectory::of(job.segment.job_name))) {
    must(directory.create());
    std::ofstream(directory.job_file()) << to_json(plan);
    vault = std::make_unique<Vault>(must(Vault::listen(directory.vault_socket())));
    make_buffers();
    server = std::thread([this] { serve(); });
    put_buffers();
  }

  ~Impl() {
    if (late_put.joinable()) late_put.join();  // the server still serves it
    stopping = true;
    server.join();
    vault.reset();
    std::filesystem::remove_all(runtime_dir);
  }

  void make_buffers() {
    for (const SpaceSpec& space : plan.segment.spaces) {
      FakeSpace made;
      if (member_index(space, Rank{rank}) >= 0 && space.elements > 0) {
        made.elements = space.elements;
        made.params = add_buffer("param", space.name, space.elements * bytes_of(space.param_dtype));
        made.grads = add_buffer("grad", space.name, space.elements * bytes_of(space.grad_dtype));
      }
      spaces.push_back(made);
    }
  }

  void* add_buffer(const char* kind, const std::string& space, uint64_t bytes) {
    Buffer buffer{vault_key(kind, rank, space), bytes, must(create_memfd(kind, bytes)), {}};
    buffer.map = must(MappedBuffer::map(buffer.fd.get(), bytes));
    buffers.push_back(std::move(buffer));
    return buffers.back().map.data();
  }

  // Served by the other thread: never called on it.
  void put_buffers() {
    for (const Buffer& buffer : buffers)
      must(vault_put(directory.vault_socket(), buffer.key, buffer.bytes, buffer.fd.get(), 10000));
  }

  void serve() {
    SocketContext context;
    std::optional<Socket> router;
    while (!stopping) {
      const bool wanted = !down && now_ms() >= down_until_ms;
      if (wanted && !router) router = bind_router(context);
      if (!wanted) router.reset();
      PollSet set;
      if (router) set.sockets.push_back(&*router);
      set.fds.push_back(vault->fd());
      std::vector<bool> ready;
      must(poll_sockets(set, 5, &ready));
      const std::lock_guard lock(mutex);
      if (forget_buffers.exchange(false)) {
        vault.reset();  // its socket file goes with it
        vault = std::make_unique<Vault>(must(Vault::listen(directory.vault_socket())));
      }
      vault->serve(static_cast<uint64_t>(now_ms()));
      Message message;
      while (router && router->receive(&message))
        if (hear(message, &*router) == Life::kEnds) router.reset();
    }
  }

  Socket bind_router(SocketContext& context) {
    return must(Socket::bind(context, Socket::Type::kRouter, directory.actor_socket(Rank{rank})));
  }

  enum class Life { kGoesOn, kEnds };

  Life hear(const Message& message, Socket* router) {
    const auto decoded = decode(message.frame);
    OPTLEASE_CHECK(decoded.is_ok(), "%s", decoded.status().text().c_str());
    const Decoded& request = decoded.value();
    const MessageKind kind = request.kind;
    if (kind == MessageKind::kStepRequest) return hear_step(request, message.peer, router);
    if (kind == MessageKind::kAttach) {
      hear_attach(request, message.peer, router);
    } else if (kind == MessageKind::kPrepare) {
      ++seen.prepares;
      seen.prepared = request.as<StepBody>().step;
    } else {
      OPTLEASE_CHECK(kind == MessageKind::kDetach, "a trainer sent %s", name_of(kind));
      ++seen.detaches;
    }
    return Life::kGoesOn;
  }

  void hear_attach(const Decoded& request, const std::string& peer, Socket* router) {
    ++seen.attaches;
    seen.attach = request.as<AttachBody>();
    if (silent) return;
    if (refused(request, peer, router)) return;
    AttachedBody body{committed, static_cast<uint32_t>(blob.size()), blob.empty() ? 0u : 1u};
    answer(router, peer,
           encode(speaker(), MessageKind::kAttached, request.header.sequence, body, blob));
  }

  Life hear_step(const Decoded& request, const std::string& peer, Socket* router) {
    ++seen.step_requests;
    const auto body = request.as<StepRequestBody>();
    seen.step = body;
    if (silent) return Life::kGoesOn;
    if (refused(request, peer, router)) return Life::kGoesOn;
    const bool is_new = body.step == committed + 1;
    if (is_new && crash && !crash->after_commit) return die();
    if (is_new) apply(body, request.payload);
    if (is_new && crash) return die();
    reply(request, peer, router, body.step <= committed ? StatusCode::kOk : StatusCode::kStaleStep,
          body.step <= committed ? "" : "that step is not the next one");
    return Life::kGoesOn;
  }

  void apply(const StepRequestBody& body, std::string_view payload) {
    last_skipped = skip_next;
    skip_next = false;
    if (!last_skipped) update(body, spaces);
    committed = body.step;
    if (body.keep_blob == 0) blob = payload;
    ++seen.steps_applied;
  }

  Life die() {
    down_until_ms = now_ms() + crash->down_ms;
    crash.reset();
    return Life::kEnds;
  }

  bool refused(const Decoded& request, const std::string& peer, Socket* router) {
    if (refusals.empty()) return false;
    const Refusal refusal = refusals.front();
    refusals.pop_front();
    if (refusal.in_reply) {
      reply(request, peer, router, refusal.code, refusal.text);
      return true;
    }
    RefusedBody body{request.header.kind, static_cast<uint16_t>(refusal.code),
                     static_cast<uint32_t>(refusal.text.size())};
    answer(router, peer,
           encode(speaker(), MessageKind::kRefused, request.header.sequence, body, refusal.text));
    return true;
  }

  void reply(const Decoded& request, const std::string& peer, Socket* router, StatusCode code,
             const std::string& text) {
    StepReplyBody body{};
    body.step = request.as<StepRequestBody>().step;
    body.grad_norm = 2.5;
    body.skipped = last_skipped ? 1 : 0;
    body.status = static_cast<uint16_t>(code);
    body.text_bytes = static_cast<uint32_t>(text.size());
    answer(router, peer,
           encode(speaker(), MessageKind::kStepReply, request.header.sequence, body, text));
  }

  void answer(Socket* router, const std::string& peer, const std::string& frame) {
    if (noisy) {
      must(router->send({peer, "no frame of ours"}));
      StepReplyBody other{};
      other.step = 999;
      must(router->send({peer, encode(speaker(), MessageKind::kStepReply, 1u << 30, other)}));
      AttachedBody attached{999, 0, 0};
      must(router->send({peer, encode(speaker(), MessageKind::kAttached, 1u << 30, attached)}));
    }
    const Status sent = router->send({peer, frame});
    // A trainer that was killed hears nothing.
    OPTLEASE_CHECK(sent || sent.code() == StatusCode::kNotFound, "%s", sent.text().c_str());
  }

  Speaker speaker() const { return {rank, 1, 1}; }

  struct Crash {
    bool after_commit;
    uint32_t down_ms;
  };

  // Constant after construction.
  const JobPlan plan;
  const uint32_t rank;
  const Update update;
  const std::string runtime_dir;
  const RunDirectory directory;
  std::vector<Buffer> buffers;
  std::vector<FakeSpace> spaces;

  // Touched by both threads under the mutex, or atomic.
  mutable std::mutex mutex;
  FakeSeen seen;
  int64_t committed = 0;
  std::string blob;
  std::deque<Refusal> refusals;
  std::optional<Crash> crash;
  bool skip_next = false;
  bool last_skipped = false;
  bool silent = false;
  bool noisy = false;
  std::atomic<int64_t> down_until_ms{0};
  std::atomic<bool> down{false};
  std::atomic<bool> forget_buffers{false};
  std::atomic<bool> stopping{false};

  std::unique_ptr<Vault> vault;  // the server's once it runs
  std::thread server;
  std::thread late_put;
};

FakeJob::FakeJob(const JobPlan& plan, uint32_t rank, Update update)
    : impl_(std::make_unique<Impl>(plan, rank, std::move(update))) {}
FakeJob::~FakeJob() = default;

std::string FakeJob::run_directory() const { return impl_->directory.path(); }
std::vector<FakeSpace> FakeJob::spaces() const { return impl_->spaces; }

FakeSeen FakeJob::seen() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->seen;
}

int64_t FakeJob::step_committed() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->committed;
}

std::string FakeJob::blob() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->blob;
}

void FakeJob::crash_on_step(bool after_commit, uint32_t down_ms) {
  const std::lock_guard lock(impl_->mutex);
  impl_->crash = Impl::Crash{after_commit, down_ms};
}

void FakeJob::refuse(StatusCode code, const std::string& text, uint32_t times) {
  const std::lock_guard lock(impl_->mutex);
  impl_->refusals.insert(impl_->refusals.end(), times, Refusal{code, text, false});
}

void FakeJob::refuse_in_reply(StatusCode code, const std::string& text, uint32_t times) {
  const std::lock_guard lock(impl_->mutex);
  impl_->refusals.insert(impl_->refusals.end(), times, Refusal{code, text, true});
}

void FakeJob::skip_next_step() {
  const std::lock_guard lock(impl_->mutex);
  impl_->skip_next = true;
}

void FakeJob::set_down(bool down) { impl_->down = down; }

void FakeJob::set_silent(bool silent) {
  const std::lock_guard lock(impl_->mutex);
  impl_->silent = silent;
}

void FakeJob::set_noisy(bool noisy) {
  const std::lock_guard lock(impl_->mutex);
  impl_->noisy = noisy;
}

void FakeJob::set_committed(int64_t step, const std::string& blob) {
  const std::lock_guard lock(impl_->mutex);
  impl_->committed = step;
  impl_->blob = blob;
}

void FakeJob::hide_buffers(uint32_t after_ms) {
  if (impl_->late_put.joinable()) impl_->late_put.join();
  impl_->forget_buffers = true;
  while (impl_->forget_buffers) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  impl_->late_put = std::thread([impl = impl_.get(), after_ms] {
    std::this_thread::sleep_for(std::chrono::milliseconds(after_ms));
    impl->put_buffers();
  });
}

void FakeJob::remove_run_directory() { std::filesystem::remove_all(impl_->directory.path()); }

JobPlan three_space_plan(const std::string& job) {
  JobPlan plan;
  plan.steps = 50;
  plan.trainer.attach_timeout_ms = 20000;
  plan.optimizer.lr = 1e-3;
  plan.optimizer.groups.push_back(
      {1e-3, 0.9, 0.999, 1e-8, 0, static_cast<uint32_t>(Rule::kAdam), 0});
  plan.segment.job_name = job;
  plan.segment.world_size = 2;
  SpaceSpec dense;
  dense.name = "dense";
  dense.members = {Rank{0}, Rank{1}};
  dense.tensors = {{"w", {3, 4}, 0, 0, {}, {}}, {"b", {4}, 0, 0, {}, {}}, {"s", {}, 0, 0, {}, {}}};
  SpaceSpec experts;
  experts.name = "experts";
  experts.members = {Rank{1}};
  experts.tensors = {{"e", {6}, 0, 0, {}, {}}};
  SpaceSpec half;
  half.name = "half";
  half.members = {Rank{0}, Rank{1}};
  half.tensors = {{"h", {5}, 0, 0, {}, {}}};
  half.param_dtype = DType::kBF16;
  half.grad_dtype = DType::kF16;
  plan.segment.spaces = {dense, experts, half};
  must(lay_out(&plan.segment, 0));
  return plan;
}

}  // namespace optlease
