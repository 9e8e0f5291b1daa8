#include "launcher/bench/bench_floor.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "actors/runtime/clock.h"
#include "launcher/process.h"
#include "shm/contract/geometry.h"
#include "shm/contract/limits.h"
#include "shm/eintr.h"
#include "shm/processes.h"

namespace optlease {
namespace {

constexpr uint64_t kRoundBytesMax = 1ull << 30;  // far beyond what caches hold
constexpr int kEndMs = 10'000;
constexpr uint64_t kStartMs = 20'000;         // a process, on a busy machine
constexpr uint64_t kContextMs = 5'000;        // a rank's device context; drivers make one at a time
constexpr uint64_t kBytesPerMsMin = 500'000;  // 0.5 GB/s: a link that is slower is no link

struct FloorProcess {
  size_t index = 0;  // into the setups
  Child child;
  UniqueFd socket;
  bool reaped = false;
};

// The floor processes of one measurement. The destructor leaves none.
class FloorGroup {
 public:
  explicit FloorGroup(FloorOutcome* outcome) : outcome_(*outcome) {}
  ~FloorGroup();
  FloorGroup(const FloorGroup&) = delete;
  FloorGroup& operator=(const FloorGroup&) = delete;

  bool open(const std::vector<FloorSetup>& setups, const std::string& program);
  // The same datagram to all.
  bool tell(const std::string& datagram);
  // One reply of each, in the order of processes(); empty where something went wrong.
  std::vector<FloorReply> replies(int timeout_ms);
  std::vector<FloorProcess>& processes() { return processes_; }

 private:
  bool fail(ExitCode code, const std::string& text);
  bool start(const FloorSetup& setup, size_t index, const std::string& program);
  bool send(FloorProcess& process, const std::string& datagram);
  bool receive(FloorProcess& process, FloorReply* reply);
  bool died(FloorProcess& process);
  // Who has not answered, and whether it could.
  std::string silent_text(const std::vector<std::optional<FloorReply>>& heard,
                          int timeout_ms) const;

  FloorOutcome& outcome_;
  std::vector<FloorProcess> processes_;
  UniqueFd signals_;
};

FloorGroup::~FloorGroup() {
  for (FloorProcess& process : processes_) process.socket = UniqueFd();  // it ends by itself
  const Deadline deadline = Deadline::after_ms(outcome_.code == ExitCode::kOk ? kEndMs : 0);
  for (FloorProcess& process : processes_) {
    if (process.reaped || process.child.reap_within(deadline.remaining_ms())) continue;
    process.child.signal_group(SIGKILL);
    (void)process.child.reap_within(kEndMs);
  }
}

bool FloorGroup::fail(ExitCode code, const std::string& text) {
  outcome_.code = code;
  outcome_.text = text;
  return false;
}

bool FloorGroup::open(const std::vector<FloorSetup>& setups, const std::string& program) {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, number);
  signals_ = UniqueFd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_) return fail(ExitCode::kIo, "no signalfd for the stop signals");
  for (size_t r = 0; r < setups.size(); ++r) {
    if (setups[r].copies > 0 && !start(setups[r], r, program)) return false;
  }
  return true;
}

bool FloorGroup::start(const FloorSetup& setup, size_t index, const std::string& program) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return fail(ExitCode::kNoResources, format("socketpair: %s", strerror(errno)));
  }
  FloorProcess process;
  process.index = index;
  process.socket = UniqueFd(ends[0]);
  const UniqueFd theirs(ends[1]);
  SpawnRequest request;
  request.argv = {program, "--control-fd", std::to_string(theirs.get())};
  request.kept_fds = {theirs.get()};
  auto child = spawn(request);
  if (!child) return fail(exit_code_for_file(child.status()), child.status().message());
  process.child = std::move(child).value();
  processes_.push_back(std::move(process));
  return send(processes_.back(), to_json(setup));
}

bool FloorGroup::send(FloorProcess& process, const std::string& datagram) {
  const auto call = [&] {
    return ::send(process.socket.get(), datagram.data(), datagram.size(), MSG_NOSIGNAL);
  };
  return retry_eintr(call) == static_cast<ssize_t>(datagram.size()) || died(process);
}

bool FloorGroup::tell(const std::string& datagram) {
  return std::all_of(processes_.begin(), processes_.end(),
                     [&](FloorProcess& process) { return send(process, datagram); });
}

// Its socket closed without a word.
bool FloorGroup::died(FloorProcess& process) {
  const auto exit = process.child.reap_within(kEndMs);
  process.reaped = exit.has_value();
  const bool by_code = exit && !exit->by_signal && exit->code != 0;
  return fail(by_code ? static_cast<ExitCode>(exit->code) : ExitCode::kInternal,
              format("the floor process of rank %zu ended: %s", process.index,
                     exit ? text_of(*exit).c_str() : "it hangs"));
}

bool FloorGroup::receive(FloorProcess& process, FloorReply* reply) {
  std::string datagram(kFloorDatagramBytesMax, '\0');
  const ssize_t got = retry_eintr(
      [&] { return recv(process.socket.get(), datagram.data(), datagram.size(), MSG_DONTWAIT); });
  if (got <= 0) return died(process);
  datagram.resize(static_cast<size_t>(got));
  const auto read = floor_reply_from(datagram);
  if (!read) return fail(ExitCode::kInternal, read.status().message());
  *reply = read.value();
  if (reply->failure.empty()) return true;
  return fail(static_cast<ExitCode>(reply->exit_code),
              format("the floor of rank %zu: ", process.index) + reply->failure);
}

std::string FloorGroup::silent_text(const std::vector<std::optional<FloorReply>>& heard,
                                    int timeout_ms) const {
  std::string text =
      format("the floor did not answer within %.1f s: ", static_cast<double>(timeout_ms) * 1e-3);
  const char* between = "";
  for (size_t i = 0; i < processes_.size(); ++i) {
    if (heard[i]) continue;
    text += between + format("rank %zu, ", processes_[i].index) +
            describe_process(static_cast<int>(processes_[i].child.pid()));
    between = "; ";
  }
  return text;
}

std::vector<FloorReply> FloorGroup::replies(int timeout_ms) {
  const Deadline deadline = Deadline::after_ms(timeout_ms);
  std::vector<std::optional<FloorReply>> heard(processes_.size());
  while (std::count(heard.begin(), heard.end(), std::nullopt) > 0) {
    std::vector<pollfd> set{{signals_.get(), POLLIN, 0}};
    for (size_t i = 0; i < processes_.size(); ++i) {
      set.push_back({heard[i] ? -1 : processes_[i].socket.get(), POLLIN, 0});
    }
    const int ready = poll(set.data(), set.size(), deadline.remaining_ms(1000));
    if (ready < 0 && errno != EINTR) {
      fail(ExitCode::kIo, format("poll: %s", strerror(errno)));
      return {};
    }
    if (ready > 0 && set[0].revents != 0) {
      fail(ExitCode::kInterrupted, "interrupted");
      return {};
    }
    for (size_t i = 0; ready > 0 && i < processes_.size(); ++i) {
      if (set[i + 1].revents == 0) continue;
      if (!receive(processes_[i], &heard[i].emplace())) return {};
    }
    if (ready <= 0 && deadline.passed()) {
      fail(ExitCode::kTimeout, silent_text(heard, timeout_ms));
      return {};
    }
  }
  std::vector<FloorReply> out;
  out.reserve(heard.size());
  for (const auto& reply : heard) out.push_back(*reply);
  return out;
}

double& rate_of(RankFloor& floor, FloorDirection direction) {
  switch (direction) {
    case FloorDirection::kIn:
      return floor.in_alone;
    case FloorDirection::kOut:
      return floor.out_alone;
    case FloorDirection::kBoth:
      break;
  }
  return floor.both;
}

}  // namespace

std::vector<FloorSetup> floor_setups(const JobPlan& plan) {
  std::vector<FloorSetup> setups;
  for (uint32_t r = 0; r < plan.segment.world_size; ++r) {
    FloorSetup setup;
    setup.device = plan.device;
    setup.rank = r;
    const ArenaSpec arena = arena_of(plan.segment, Rank(r));
    for (const ChunkSpec& chunk : arena.chunks) {
      const ChunkLayout layout = layout_of(arena.split, chunk.range.size());
      setup.copy_bytes = std::max(setup.copy_bytes, layout.host_bytes);
    }
    setup.slot_bytes = (setup.copy_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    if (setup.copy_bytes != 0) {
      const uint64_t fitting = std::max<uint64_t>(1, kRoundBytesMax / setup.copy_bytes);
      setup.copies = static_cast<uint32_t>(std::min<uint64_t>(arena.chunks.size(), fitting));
    }
    setups.push_back(setup);
  }
  return setups;
}

FloorPatience floor_patience(const std::vector<FloorSetup>& setups, uint64_t measure_ms) {
  // Ranks share the memory's rate. Each order has a round that begins just before its time is up,
  // the setup the reserving of the memory and its first rounds.
  uint64_t bytes = 0, context_ms = 0;
  for (const FloorSetup& setup : setups) {
    bytes += 2 * setup.memory_bytes();
    if (setup.device != "cpu") context_ms += kContextMs;
  }
  const uint64_t copy_ms = kStartMs + bytes / kBytesPerMsMin;
  return {.setup_ms = static_cast<int>(copy_ms + context_ms),
          .order_ms = static_cast<int>(copy_ms + measure_ms)};
}

FloorOutcome measure_floor(const std::vector<FloorSetup>& setups, uint64_t measure_ms,
                           const std::string& program_directory) {
  FloorOutcome outcome;
  outcome.ranks.resize(setups.size());
  FloorGroup group(&outcome);
  if (!group.open(setups, program_directory + "/optlease-floor")) return outcome;
  const FloorPatience patience = floor_patience(setups, measure_ms);
  const auto ready = group.replies(patience.setup_ms);
  if (ready.size() != group.processes().size()) return outcome;
  for (size_t i = 0; i < ready.size(); ++i) {
    outcome.ranks[group.processes()[i].index].pin_seconds =
        static_cast<double>(ready[i].pinned_ms) * 1e-3;
  }
  for (const auto direction : {FloorDirection::kBoth, FloorDirection::kIn, FloorDirection::kOut}) {
    if (!group.tell(to_json(FloorOrder{direction, measure_ms}))) return outcome;
    const auto replies = group.replies(patience.order_ms);
    if (replies.size() != group.processes().size()) return outcome;
    for (size_t i = 0; i < replies.size(); ++i) {
      const size_t rank = group.processes()[i].index;
      const double seconds = std::max(replies[i].round_seconds, 1e-9);
      rate_of(outcome.ranks[rank], direction) =
          static_cast<double>(setups[rank].round_bytes()) / seconds;
      outcome.ranks[rank].bounced_bytes += replies[i].bounced_bytes;
    }
  }
  outcome.code = ExitCode::kOk;
  return outcome;
}

}  // namespace optlease
