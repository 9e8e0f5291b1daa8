// Moves the windows of one step through the device: lease -> copy in -> update -> copy out ->
// commit, several windows at once, in chunk order. It decides nothing about steps: the actor starts
// a run and hands it grants, replies and the time; the pipeline asks for leases and commits through
// PipelinePort. One thread; nothing here waits.
//
// A slot's resident part never travels: kUpdate copies the committed one over the shadow one within
// the device and updates it there, together with what is staged.
//
// Three kinds of run: kUpdate (leases, staging, the update rule), kInitialise (leases; the initial
// state is written straight into the shadow slots and published from there), kRepublish (no lease:
// parameters from the rank's own committed main weights, whose slots nobody else can retire).
//
// Before an update run its first windows may be prefetched, as many as there are staging buffers:
// leased and copied in, no more. start() goes on from there, or they are given back. Nothing is
// computed and no shadow slot is written before start().
//
// Staging buffers are taken in turn. The copy into one waits on the device, not here, for its last
// user: windows are enqueued ahead, and this thread's latency costs nothing while leases are there.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "actors/gpu_actor/device.h"
#include "actors/gpu_actor/resident_slots.h"
#include "actors/gpu_actor/shard_sums.h"
#include "actors/runtime/job_plan.h"
#include "shm/chunk_window.h"
#include "shm/contract/geometry.h"
#include "shm/contract/messages.h"

namespace optlease {

enum class RunKind { kUpdate, kInitialise, kRepublish };

// What the pipeline asks of its actor.
class PipelinePort {
 public:
  virtual ~PipelinePort() = default;
  virtual void request_lease(Step step, uint32_t first_chunk, uint32_t chunk_count) = 0;
  virtual void request_commit(const CommitRequestBody& body,
                              const std::vector<SlotEntry>& shadow) = 0;
  // Nothing of it was written, or will be.
  virtual void return_lease(uint64_t lease_id) = 0;
  virtual void at_phase(RehearsePhase phase, Step step) = 0;
  // True while the last commit of the step waits for a rehearsed moment that comes before it.
  virtual bool keeps_last_commit(Step step) = 0;
  // The committed bytes do not sum to their checksum.
  virtual void corrupt_chunk(const CorruptChunkBody& body) = 0;
};

// Where a space's flat buffers are, as the device addresses them.
struct SpaceBuffers {
  char* params = nullptr;             // whole space, param_dtype
  const float* grad_shard = nullptr;  // this rank's shard, summed over the members
  uint64_t grad_first_word = 0;       // its first element's word index in checksums
  ElementRange shard;
  DType param_dtype = DType::kF32;
  AdamFactors factors;  // of the step in hand, coefficient included
};

// What the summed gradients of an update run must be, read chunk by chunk as they are used.
struct GradCheck {
  std::vector<uint64_t> of_chunk;  // ShardSums'
  std::string place;               // where they lie, in words
};

// Fills main weights of [range) of a space; exp_avg and exp_avg_sq are zeroed by the pipeline.
using FillInitial = std::function<Status(uint32_t space, ElementRange range, float* main)>;

struct PipelineLimits {
  uint32_t window_chunks = 1;
  uint32_t staging_buffers = 3;
  uint32_t leases_ahead = 3;  // windows leased or being leased at once
};

struct PipelineCounters {
  uint64_t commits = 0;            // chunks
  double lease_wait_seconds = 0;   // windows left to start, and nothing in flight
  uint64_t deferred = 0;           // windows whose lease waited for credit
  double credit_wait_seconds = 0;  // of those, from asked to granted, summed over windows
  double stall_seconds = 0;        // windows left to start, some in flight, none being copied in
};

// When the last run did what, on the clock that the actor hands in. A direction is busy from the
// moment at which its next copy could begin to the one at which the actor saw its end: right to the
// time in which the actor wakes, for each copy alone and not as a sum.
struct RunTimes {
  uint64_t begun_us = 0;         // start(); windows may have been read ahead of it
  uint64_t first_window_us = 0;  // the first window was updated: both directions have work now
  uint64_t computed_us = 0;      // the last one was: every parameter is final
  uint64_t ended_us = 0;         // the last commit was acknowledged; 0: not over
  double in_busy_seconds = 0;
  double in_busy_seconds_before = 0;  // of it, before first_window_us
  double out_busy_seconds = 0;
};

class WindowPipeline {
 public:
  // `window` and `device` outlive the pipeline; staging is already allocated.
  WindowPipeline(Device& device, const ChunkWindow& window, Rank rank, const ArenaSpec& arena,
                 const ResidentSlots& resident, PipelineLimits limits, PipelinePort& port);

  // REQUIRES: idle(). `chunks` ascending: those that the update run of `step` will have.
  void prefetch(Step step, const std::vector<uint32_t>& chunks);
  // Gives back what is prefetched; nothing where that is nothing.
  void release_prefetch();
  // The step whose windows are prefetched, or kNoStep.
  Step prefetching() const { return prefetching_ ? step_ : kNoStep; }

  // REQUIRES: idle(). `chunks` ascending; `spaces` by space index. An update run of the step that
  // is prefetched begins with what is in staging. `grads` is an update run's; others read none.
  void start(RunKind kind, Step step, const std::vector<uint32_t>& chunks,
             std::vector<SpaceBuffers> spaces, GradCheck grads, FillInitial fill);
  void on_grant(const LeaseGrantBody& body, const std::vector<GrantEntry>& entries,
                uint64_t now_us);
  void on_commit_reply(const CommitReplyBody& body);
  // The store had no slot free or the step is not open yet: ask again a little later.
  void on_lease_busy(uint64_t now_us);
  // Looks at tickets, starts what can start, asks for what is needed.
  void advance(uint64_t now_us);

  // No run is under way; a prefetch is none.
  bool idle() const { return windows_.empty() || prefetching_; }
  // Every window of the update run is computed from sound bytes: its parameters are final. The
  // last copies out and commits may still be on their way.
  bool computed() const { return !idle() && computed_ == windows_.size(); }
  // Forgets the run. What is enqueued still runs and may still write shadow slots: say Hello again
  // only once drained().
  void abandon();
  bool drained();
  // Nothing enqueued writes a slot. A prefetch only reads: it may wait for its step for long.
  bool writes_nothing() { return prefetching_ || drained(); }
  // Which window waits for what: for diagnosis.
  std::string describe() const;
  // When the run last moved; the actor's deadline.
  uint64_t last_progress_us() const { return last_progress_us_; }
  const PipelineCounters& counters() const { return counters_; }
  const RunTimes& times() const { return times_; }
  Status failure() const { return failure_; }
  // Version whose values of this chunk this incarnation wrote to the parameter buffer; kNoStep
  // while a run is about to write them (again).
  Step published(uint32_t chunk) const { return published_[chunk]; }
  void set_published(uint32_t chunk, Step step) { published_[chunk] = step; }

 private:
  enum class State {
    kWanted,
    kRequested,
    kGranted,
    kStaged,  // prefetched: copied in, or being copied in, and nothing more
    kCopyIn,
    kCompute,
    kCopyOut,
    kCommitting,
    kDone
  };
  struct Window {
    uint32_t first_chunk = 0;
    uint32_t chunk_count = 0;
    State state = State::kWanted;
    uint64_t lease_id = 0;
    std::vector<GrantEntry> entries;
    std::vector<ChunkSums> sums;
    std::vector<Status> fills;
    uint32_t buffer = 0;
    Ticket buffer_free;  // what its copy in waits for
    Ticket copied_in, computed, copied_out;
    uint64_t asked_us = 0;        // the lease or the commit, last
    uint64_t first_asked_us = 0;  // the lease
  };

  void give_back(Step step, uint64_t lease_id);
  bool fits(const Window& window, uint32_t chunk_count,
            const std::vector<GrantEntry>& entries) const;
  void begin(RunKind kind, Step step, const std::vector<uint32_t>& chunks);
  void build_windows(const std::vector<uint32_t>& chunks);
  std::span<Window> open_windows();
  void clear_if_over();
  void request_leases(uint64_t now_us);
  void start_granted(uint64_t now_us);
  void stage_granted();
  void open_prefetched();
  void copy_in(Window& window);
  void update_staged(Window& window);
  void start_initialise(Window& window);
  void start_republish(Window& window);
  uint32_t take_buffer(Window& window);
  void publish_staged(Window& window, uint32_t buffer);
  ChunkLayout layout_of_chunk(uint32_t chunk) const;
  void poll_window(Window& window, uint64_t now_us);
  void finish_compute(Window& window, uint64_t now_us);
  void send_commit(Window& window, uint64_t now_us);
  bool take_computed(Window& window);
  void note_published(const Window& window);
  bool sums_hold(const Window& window);
  bool state_sums_hold(const GrantEntry& entry, const ChunkSums& sums);
  bool grad_sum_holds(uint32_t chunk, const ChunkSums& sums);
  void account_time(uint64_t now_us);
  void note_directions();
  // The ranges of a chunk that kernels take one by one: `staged` is its travelling part, `resident`
  // its device's slot.
  std::vector<AdamChunk> staged_parts(uint32_t chunk, char* staged, char* resident) const;
  bool rehearsed(const Window& window) const;

  Device& device_;
  const ChunkWindow& window_;
  Rank rank_;
  const ArenaSpec& arena_;
  ResidentSlots resident_;
  PipelineLimits limits_;
  PipelinePort& port_;

  RunKind kind_ = RunKind::kUpdate;
  Step step_ = kNoStep;
  std::vector<SpaceBuffers> spaces_;
  GradCheck grads_;
  FillInitial fill_;
  std::vector<Window> windows_;
  std::vector<Window> abandoned_;  // enqueued work still writes into their sums
  bool draining_ = false;
  std::vector<Ticket> buffer_free_;  // by staging buffer: when its last user is done with it
  uint32_t next_buffer_ = 0;
  bool prefetching_ = false;
  Step returned_of_ = kNoStep;  // leases that were returned unused are remembered of this step
  std::set<uint64_t> returned_;
  bool told_prepared_ = false;             // that rehearsed moment, for this step
  std::vector<uint32_t> prefetch_chunks_;  // of the run that is to come
  std::vector<Step> published_;
  size_t finished_ = 0;
  size_t computed_ = 0;
  // All windows before first_open_ are done; none from first_untouched_ on has been asked for or
  // started.
  size_t first_open_ = 0, first_untouched_ = 0;
  uint64_t retry_leases_at_us_ = 0;
  uint64_t last_advance_us_ = 0;
  uint64_t last_progress_us_ = 0;
  Ticket last_tickets_[kStreamCount];
  PipelineCounters counters_;
  RunTimes times_;
  bool copying_in_ = false, copying_out_ = false;  // since the last advance
  Status failure_;
};

}  // namespace optlease
