// One job of a soak: started, killed where its page says, started again until it is over, and then
// compared with the undisturbed run of its shape and looked through for what it left.
#pragma once

#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/soak/shapes.h"
#include "tests/soak/tally.h"
#include "tests/support/system_job.h"

namespace optlease::soak {

// The two pages of a soak: of its jobs' processes and of its tools. Made once; a job resets them.
class Pages {
 public:
  explicit Pages(const std::string& directory);
  KillRow& of(const KillPoint& row);
  KillPage& job() { return *job_; }
  KillPage& tools() { return *tools_; }
  void reset();
  const std::string& job_path() const { return job_path_; }
  const std::string& tools_path() const { return tools_path_; }

 private:
  std::string job_path_, tools_path_;
  KillPage* job_ = nullptr;
  KillPage* tools_ = nullptr;
  std::map<const KillPoint*, KillRow*> rows_;
};

class SoakJob {
 public:
  // `more`: overrides beside the shape's.
  SoakJob(Pages& pages, Tally& tally, const Shape& shape, std::vector<std::string> more = {});

  // --- the job's life ---
  void start();
  // False once the job is over. A launcher that has ended is followed by the next one: over its
  // state where there is one.
  bool goes_on();
  // To its end, with no kill any more.
  void finish();
  // Of a job that a killed launcher has left: `optlease clean`, killed at each of `rows`.
  void clean_away(const std::vector<const KillPoint*>& rows);

  // --- kills ---
  // An order at the row's point: the `occurrence`-th visit from now.
  void arm(const KillPoint& row, uint64_t occurrence);
  // Takes all orders back but those for the end of the job.
  void disarm();
  // Until the order of `row` is carried out (true), its launcher has ended or time is over.
  bool await(const KillPoint& row, int timeout_ms);
  // SIGKILL to a process, by role; a random one where there are several. False where none is there.
  bool kill_from_outside(Who who, std::mt19937_64& random);
  // SIGKILL to all processes of the job, as near to one instant as can be.
  void kill_all();
  // SIGSTOP, and SIGCONT after `stopped_ms`; `times` times, with as long between them.
  void stop_for(Who who, int stopped_ms, int times, std::mt19937_64& random);
  // Until a step is committed that began after now. Counts how long it took since the last death,
  // as a recovery of `who`.
  void await_progress(Who who, const std::string& phase);
  void after_random(Who who, const std::string& phase, bool waits) {
    if (waits && goes_on()) await_progress(who, phase);
  }
  // Until that many more steps are committed (true), or the job is over.
  bool await_steps(uint64_t steps);
  // A command of this job, killed where the tools' page says.
  CommandResult tool(const std::vector<std::string>& args);
  // One that comes while the end is removed keeps it: it is then cleaned away.
  void stop_and_keep();

  // After the end: digest, commits, what is left. Then the kills count as ended right.
  void check(const Reference& reference);
  const Json& last_report() const { return report_; }
  uint64_t commits_seen() const;
  const Shape& shape() const { return shape_; }
  bool launcher_alive() { return job_.launcher_alive(); }

 private:
  void launch(const std::vector<std::string>& flags);
  void on_launcher_end(const CommandResult& result);
  void begin_again();
  void clean();
  void await_all_gone();
  void look_at_survivors();
  void count_visits(bool ended_right);
  uint64_t steps_seen() const;
  std::vector<pid_t> pids_of(Who who);

  Pages& pages_;
  Tally& tally_;
  const Shape& shape_;
  SystemJob job_;
  Json report_;
  bool over_ = false;
  bool kept_ = false;     // it came to its end, with the state kept: that end is compared
  bool cleaned_ = false;  // before its end: nothing can be compared
  bool resumes_ = false;
  bool keep_asked_ = false;  // of this launch
  int64_t death_ms_ = 0;     // of whoever died last
  int recoveries_ = 0;
  uint64_t void_commits_ = 0;       // of states that were begun anew
  uint64_t uncertain_commits_ = 0;  // a kill from outside may fall between a word and its count
  std::map<std::string, std::pair<size_t, size_t>> open_files_;  // first and last seen of a life
};

// Shared memory that is taken, in a /dev/shm of our own; 0 where that could not be mounted.
uint64_t shm_bytes_taken();
bool has_own_shm();

}  // namespace optlease::soak
