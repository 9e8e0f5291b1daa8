// A real optlease-host-store process in a temporary run directory, with a launcher and fake actors
// that talk to it over sockets from this process.
#pragma once

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "actors/host_store/segments.h"
#include "actors/runtime/clock.h"
#include "actors/runtime/job_plan.h"
#include "actors/runtime/lifeline.h"
#include "tests/host_store/service_job.h"

namespace optlease {

class StoreProcess {
 public:
  static constexpr uint32_t kRanks = 2;
  static constexpr uint32_t kChunks = 7;

  StoreProcess() {
    char pattern[] = "/tmp/optlease-store-test.XXXXXX";
    OPTLEASE_CHECK(::mkdtemp(pattern) != nullptr, "mkdtemp");
    root_ = pattern;
    ::setenv("XDG_RUNTIME_DIR", root_.c_str(), 1);
    static int serial = 0;
    const std::string job = format("store-test-%d-%d", static_cast<int>(::getpid()), serial++);
    directory_ = std::make_unique<RunDirectory>(RunDirectory::of(job).value());
    const Status made = directory_->create();
    OPTLEASE_CHECK(made.is_ok(), "%s", made.text().c_str());
    plan_.segment = fake_segment_plan(job, kRanks, kChunks);
    plan_.steps = 1000;
    plan_.optimizer.groups = {fake_record(1).groups[0]};
    plan_.model.init = {{TensorInit{}}};
    plan_.restart.lease_ms = 2000;
    plan_.restart.quarantine_grace_ms = 20;
    std::ofstream(directory_->job_file()) << to_json(plan_);
    names_ = segment_names(*directory_, kRanks);
  }
  ~StoreProcess() {
    if (pid_ > 0) kill(SIGKILL);
    if (lifeline_ >= 0) ::close(lifeline_);
    actors_.clear();
    ChunkStore::unlink(names_);
    std::error_code ignored;
    std::filesystem::remove_all(root_, ignored);
  }

  const RunDirectory& directory() const { return *directory_; }
  // The job's plan, for who starts after this.
  void set_start_timeout(uint64_t ms) {
    plan_.restart.start_timeout_ms = ms;
    std::ofstream(directory_->job_file()) << to_json(plan_);
  }
  const SegmentNames& names() const { return names_; }

  // `lifeline`: the launcher's end of it.
  pid_t spawn(bool create, int* lifeline) {
    std::vector<std::string> words;
    if (create) words.emplace_back("--create");
    return spawn("optlease-host-store", words, "", lifeline);
  }
  // The same of any program of the job. `log`: the file that gets its words; empty: they stay ours.
  pid_t spawn(const char* name, const std::vector<std::string>& words, const std::string& log,
              int* lifeline) {
    LifelinePair pair = make_lifeline().value();
    const std::string program = std::string(OPTLEASE_BIN_DIR) + "/" + name;
    const std::string& job = directory_->job_name();
    const pid_t pid = ::fork();
    if (pid == 0) {
      const int kept = ::dup(pair.child_fd);  // without close-on-exec
      if (close_standard_) {
        for (const int fd : {0, 1, 2}) ::close(fd);
      }
      const std::string number = format("%d", kept);
      std::vector<const char*> argv = {program.c_str(), "--job",       job.c_str(), "--lifeline-fd",
                                       number.c_str(),  "--log-level", "error"};
      for (const std::string& word : words) argv.push_back(word.c_str());
      argv.push_back(nullptr);
      if (!log.empty() && std::freopen(log.c_str(), "w", stderr) == nullptr) ::_exit(126);
      if (!log.empty()) ::dup2(STDERR_FILENO, STDOUT_FILENO);
      ::execv(program.c_str(), const_cast<char* const*>(argv.data()));
      ::_exit(127);
    }
    ::close(pair.child_fd);
    *lifeline = pair.launcher_fd;
    return pid;
  }
  void start(bool create) {
    if (lifeline_ >= 0) ::close(lifeline_);
    pid_ = spawn(create, &lifeline_);
    tell_started();
  }
  // One that is expected to end by itself: its wait status.
  int run_to_end(bool create) {
    int lifeline = -1;
    const int status = wait(spawn(create, &lifeline));
    ::close(lifeline);
    return status;
  }
  pid_t pid() const { return pid_; }
  // Of every process that is started from now on: without standard descriptors.
  void close_standard() { close_standard_ = true; }
  // True once 0, 1 and 2 of a process are /dev/null; false where that does not come to be.
  static bool has_null_descriptors(pid_t pid) {
    const Deadline deadline = Deadline::after_ms(20000);
    std::error_code unreadable;
    while (!deadline.passed()) {
      int null = 0;
      for (const int fd : {0, 1, 2}) {
        const std::string link = format("/proc/%d/fd/%d", static_cast<int>(pid), fd);
        null += std::filesystem::read_symlink(link, unreadable) == "/dev/null" ? 1 : 0;
      }
      if (null == 3) return true;
      ::usleep(2000);
    }
    return false;
  }
  // Its exit status, as waitpid tells it.
  static int wait(pid_t pid) {
    int status = 0;
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
  }
  int kill(int signal) {
    ::kill(pid_, signal);
    const int status = wait(pid_);
    pid_ = 0;
    return status;
  }
  int wait_for_end() {
    const int status = wait(pid_);
    pid_ = 0;
    return status;
  }
  void close_lifeline() {
    ::close(lifeline_);
    lifeline_ = -1;
  }

  struct Link {
    Socket socket;
    std::unique_ptr<FakeActor> actor;
  };
  Socket connect(const std::string& routing_id) {
    SocketOptions options;
    options.routing_id = routing_id;
    return Socket::connect(context_, Socket::Type::kDealer, directory_->store_socket(), options)
        .value();
  }
  void add_actors() {
    for (uint32_t r = 0; r < kRanks; ++r) {
      auto actor = std::make_unique<FakeActor>(Rank{r}, Incarnation{1}, names_.control,
                                               plan_.segment.window_chunks);
      Socket socket = connect(actor->peer());
      actors_.push_back({std::move(socket), std::move(actor)});
    }
    tell_started();
  }
  // As the launcher does where an actor was killed: lost, reaped, and its successor starts.
  void replace_actor(uint32_t rank, Incarnation incarnation) {
    for (const MessageKind kind : {MessageKind::kIncarnationLost, MessageKind::kIncarnationReaped,
                                   MessageKind::kIncarnationStarted}) {
      const bool starts = kind == MessageKind::kIncarnationStarted;
      const IncarnationBody body{rank, 0, starts ? incarnation.value : incarnation.value - 1};
      const Status sent = launcher_->send({"", encode(Speaker{}, kind, 100, body)});
      OPTLEASE_CHECK(sent.is_ok(), "%s", sent.text().c_str());
    }
    auto actor = std::make_unique<FakeActor>(Rank{rank}, incarnation, names_.control,
                                             plan_.segment.window_chunks);
    Socket socket = connect(actor->peer());
    actors_[rank] = {std::move(socket), std::move(actor)};
  }
  FakeActor& actor(uint32_t rank) { return *actors_[rank].actor; }
  Socket& socket(uint32_t rank) { return actors_[rank].socket; }

  // One turn of every actor's loop; `last_step` is the last they ask for.
  void turn(Step last_step) {
    const bool ticks = now_ms() >= next_tick_ms_;
    if (ticks) next_tick_ms_ = now_ms() + 10;
    PollSet set;
    for (Link& link : actors_) {
      if (ticks) link.actor->tick(last_step);
      set.sockets.push_back(&link.socket);
    }
    std::vector<bool> ready;
    OPTLEASE_CHECK(poll_sockets(set, 2, &ready).is_ok(), "poll");
    for (Link& link : actors_) {
      Message message;
      while (link.socket.receive(&message)) link.actor->on_frame(message.frame);
      for (const std::string& frame : link.actor->take_outgoing()) {
        (void)link.socket.send({"", frame}).is_ok();  // a lost frame is repeated by the next tick
      }
    }
  }
  bool run_until_published(Step step, int64_t timeout_ms = 60000) {
    const Deadline deadline = Deadline::after_ms(timeout_ms);
    while (!deadline.passed()) {
      bool done = true;
      for (Link& link : actors_) done = done && link.actor->published() >= step;
      if (done) return true;
      turn(step);
    }
    return false;
  }
  // What the segment says, without the store.
  std::string check(Step step) {
    const ControlView& view = *actor(0).view();
    const Step written = fake_step_is_skipped(step) ? step - 1 : step;
    if (view.step_committed() != step) return "the committed step";
    if (view.header().steps_skipped.load() != static_cast<uint64_t>(step) / kSkipEvery) {
      return "the skipped steps";
    }
    for (uint32_t r = 0; r < kRanks; ++r) {
      std::set<uint32_t> slots;
      for (uint32_t c = 0; c < kChunks; ++c) {
        const SlotEntry entry = view.entries(Rank{r}, ChunkIndex{c})[0];
        if (view.version(Rank{r}, ChunkIndex{c}) != step) return format("version of %u.%u", r, c);
        if (entry.checksum != fake_checksum(Rank{r}, c, written))
          return format("sum of %u.%u", r, c);
        if (!slots.insert(entry.slot).second)
          return format("slot %u of rank %u twice", entry.slot, r);
      }
      if (view.blob(Rank{r}, step) != fake_blob(Rank{r}, step)) return "a blob";
    }
    return {};
  }
  // A request of the launcher and its answer; empty where none comes.
  template <class Body>
  std::string ask(const std::string& routing_id, MessageKind kind, const Body& body) {
    Socket socket = connect(routing_id);
    return ask_frame(socket, encode(Speaker{}, kind, 1, body));
  }
  std::string ask_status() {
    Socket socket = connect("tool.1");
    return ask_frame(socket, encode_empty(Speaker{}, MessageKind::kStatusQuery, 1));
  }
  static std::string ask_frame(Socket& socket, const std::string& frame) {
    if (!socket.send({"", frame}).is_ok()) return {};
    const Deadline deadline = Deadline::after_ms(20000);
    Message message;
    while (!deadline.passed()) {
      std::vector<bool> ready;
      (void)poll_sockets({.sockets = {&socket}, .fds = {}}, 20, &ready).is_ok();
      if (socket.receive(&message)) return message.frame;
    }
    return {};
  }

 private:
  // As the launcher does after each start of the store: over a new connection, since what an old
  // one sends before it notices the death is lost.
  void tell_started() {
    launcher_.reset();
    // The store may not have seen yet that the one before is gone, and would ignore its name.
    launcher_.emplace(connect(private_routing_id("launcher")));
    for (uint32_t r = 0; r < kRanks; ++r) {
      (void)launcher_
          ->send({"",
                  encode(Speaker{}, MessageKind::kIncarnationStarted, r, IncarnationBody{r, 0, 1})})
          .is_ok();
    }
  }

  std::string root_;
  std::unique_ptr<RunDirectory> directory_;
  SegmentNames names_;
  JobPlan plan_;
  pid_t pid_ = 0;
  int lifeline_ = -1;
  int64_t next_tick_ms_ = 0;
  bool close_standard_ = false;
  SocketContext context_;
  std::optional<Socket> launcher_;
  std::vector<Link> actors_;
};

}  // namespace optlease
