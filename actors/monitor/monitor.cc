#include "actors/monitor/monitor.h"

#include <unistd.h>

#include <algorithm>
#include <vector>

#include "actors/monitor/attachment.h"
#include "actors/monitor/monitor_state.h"
#include "actors/monitor/render.h"
#include "actors/runtime/clock.h"
#include "actors/runtime/job_plan.h"
#include "actors/wire/endpoints.h"
#include "actors/wire/socket.h"

namespace optlease {
namespace {

constexpr int kPollMs = 100;
constexpr int64_t kLifeCheckMs = 500;

// Writes what the loop decides to show; remembers whether the reader of `out` has gone.
class Screen {
 public:
  Screen(FILE* out, bool is_terminal) : out_(out), is_terminal_(is_terminal) {}

  void show(const std::vector<std::string>& lines) {
    // Each line clears its own rest and the last clears what is below: no flicker of a whole clear.
    std::string text = is_terminal_ ? (is_first_ ? "\x1b[2J\x1b[H" : "\x1b[H") : "";
    if (!is_terminal_ && !is_first_) text += "\n";
    for (const std::string& line : lines) text += line + (is_terminal_ ? "\x1b[K\n" : "\n");
    if (is_terminal_) text += "\x1b[J";
    is_first_ = false;
    write(text);
  }
  void line(const std::string& text) { write(text + "\n"); }
  bool failed() const { return failed_; }

 private:
  void write(const std::string& text) {
    failed_ = failed_ || std::fwrite(text.data(), 1, text.size(), out_) != text.size() ||
              std::fflush(out_) != 0;
  }

  FILE* out_;
  bool is_terminal_;
  bool is_first_ = true;
  bool failed_ = false;
};

class Monitor {
 public:
  Monitor(const MonitorOptions& options, const RunDirectory& directory, const JobPlan& plan,
          JobAttachment attachment, FILE* out, FILE* err)
      : options_(options),
        directory_(directory),
        state_(options.job, plan.segment.world_size, plan.steps, plan.telemetry.interval_ms),
        attachment_(std::move(attachment)),
        screen_(out, options.is_terminal && !options.json),
        err_(err) {}

  ExitCode once() {
    const Deadline deadline = Deadline::after_ms(options_.timeout_ms);
    while (state_.ranks_heard() < state_.ranks().size() && !deadline.passed() && !interrupted()) {
      if (const Status status = step(deadline.remaining_ms(kPollMs)); !status) return fail(status);
    }
    if (state_.ranks_heard() == 0) return say_silent();
    if (options_.json) {
      screen_.line(snapshot_json());
    } else {
      screen_.show(render(state_, now_ms()));
    }
    return screen_.failed() ? ExitCode::kIo : ExitCode::kOk;
  }

  ExitCode follow() {
    int64_t next_draw_ms = 0;
    int64_t next_life_ms = 0;
    const Deadline first_words = Deadline::after_ms(options_.timeout_ms);
    while (!interrupted()) {
      const int64_t before_ms = now_ms();
      const int64_t wake_ms = std::max<int64_t>(next_draw_ms - before_ms, 0);
      if (const Status status = step(static_cast<int>(std::min<int64_t>(wake_ms, kPollMs)));
          !status) {
        return fail(status);
      }
      const int64_t now = now_ms();
      if (now >= next_draw_ms) {
        next_draw_ms = now + options_.interval_ms;
        if (!options_.json) screen_.show(render(state_, now));
      }
      if (screen_.failed()) return ExitCode::kIo;
      if (now < next_life_ms) continue;
      next_life_ms = now + kLifeCheckMs;
      if (has_ended()) return say_ended();
      // The run directory of a job that failed or was killed stays: nobody will ever answer there.
      const bool nobody = state_.ranks_heard() == 0 && !is_listening(directory_.launcher_socket());
      if (nobody && first_words.passed()) return say_silent();
    }
    return ExitCode::kOk;
  }

  void watch(const std::atomic<bool>* interrupted_flag) { interrupted_ = interrupted_flag; }

 private:
  bool interrupted() const { return interrupted_ != nullptr && interrupted_->load(); }

  // One round: ask, wait, take in.
  Status step(int timeout_ms) {
    attachment_.ask(state_, now_ms());
    std::vector<JobAttachment::Update> updates;
    OPTLEASE_TRY(attachment_.receive(timeout_ms, &updates));
    for (const JobAttachment::Update& update : updates) {
      const Status taken = state_.on_frame(update.rank, update.source, update.frame, now_ms());
      if (!taken || !options_.json || options_.once) continue;
      // Written anew: whatever the frame looked like, this is one line.
      screen_.line(to_json(*state_.ranks()[update.rank].last));
    }
    return Status::ok();
  }

  // The ranks that answered, as one document on one line.
  std::string snapshot_json() const {
    std::string ranks;
    for (const auto& rank : state_.ranks()) {
      if (!rank.last) continue;
      if (!ranks.empty()) ranks += ",";
      ranks += to_json(*rank.last);
    }
    // A job's name needs no escaping: why_invalid_job_name allows letters, digits, '_' and '-'.
    return "{\"job\":\"" + options_.job + "\",\"ranks\":[" + ranks + "]}";
  }

  bool has_ended() {
    return life_.ended(::access(directory_.job_file().c_str(), F_OK) == 0,
                       is_listening(directory_.launcher_socket()));
  }

  ExitCode say_silent() {
    std::fprintf(
        err_, "optlease-monitor: no actor of job %s answered within %d ms; is it running? (%s)\n",
        options_.job.c_str(), options_.timeout_ms, directory_.path().c_str());
    return ExitCode::kNotRunning;
  }

  ExitCode say_ended() {
    if (!options_.json) {
      screen_.show(render(state_, now_ms()));
      screen_.line("job " + options_.job + " has ended");
    } else {
      std::fprintf(err_, "optlease-monitor: job %s has ended\n", options_.job.c_str());
    }
    return ExitCode::kOk;
  }

  ExitCode fail(const Status& status) {
    std::fprintf(err_, "optlease-monitor: %s\n", status.text().c_str());
    return exit_code_for(status);
  }

  const MonitorOptions& options_;
  const RunDirectory& directory_;
  MonitorState state_;
  JobAttachment attachment_;
  Screen screen_;
  FILE* err_;
  JobLife life_;
  const std::atomic<bool>* interrupted_ = nullptr;
};

ExitCode refuse(FILE* err, const Status& status, ExitCode code) {
  std::fprintf(err, "optlease-monitor: %s\n", status.message().c_str());
  return code;
}

}  // namespace

ExitCode run_monitor(const MonitorOptions& options, const std::atomic<bool>* interrupted, FILE* out,
                     FILE* err) {
  const Result<RunDirectory> directory = RunDirectory::of(options.job);
  if (!directory) return refuse(err, directory.status(), ExitCode::kUsage);
  const Status own = directory.value().check();
  if (!own && own.code() != StatusCode::kNotFound) return refuse(err, own, exit_code_for(own));
  const Result<JobPlan> plan = read_job_plan(directory.value().job_file());
  if (!plan) {
    const bool is_absent = plan.status().code() == StatusCode::kNotFound;
    return refuse(err, plan.status(),
                  is_absent ? ExitCode::kNotRunning : exit_code_for(plan.status()));
  }
  SocketContext context;
  Result<JobAttachment> attachment =
      JobAttachment::attach(context, directory.value(), plan.value().segment.world_size);
  if (!attachment) return refuse(err, attachment.status(), exit_code_for(attachment.status()));
  Monitor monitor(options, directory.value(), plan.value(), std::move(attachment).value(), out,
                  err);
  monitor.watch(interrupted);
  return options.once ? monitor.once() : monitor.follow();
}

}  // namespace optlease
