// A job's committed state as a tool sees it: its segments mapped read-only, with what
// the tools do with it (digest, export, questions about size). It takes no lock and no hold: the
// caller makes sure that nothing moves meanwhile, or accepts that.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "actors/wire/endpoints.h"
#include "shm/contract/dtype.h"
#include "shm/control_view.h"
#include "shm/digest.h"
#include "shm/element_reader.h"
#include "shm/found_state.h"
#include "shm/segment.h"

namespace optlease {

class JobState {
 public:
  // NotFound: there are no segments of this name. Corrupt or WrongVersion: they cannot be used.
  static Result<JobState> open(const RunDirectory& run);
  JobState(JobState&&) = default;

  const ControlView& view() const { return view_; }
  std::span<const ArenaView> arenas() const { return arena_views_; }
  // Ok where every chunk is at step_committed and can be read; else the words for a step that was
  // left half-way, or for a resident part that is not here.
  Status check_at_rest() const;
  // Bytes of control segment, arenas and resident segments.
  uint64_t bytes() const;

 private:
  JobState(Segment control, ControlView view) : control_(std::move(control)), view_(view) {}
  Segment control_;
  ControlView view_;
  std::vector<Segment> arenas_;
  std::vector<ResidentSegment> residents_;  // empty where the state has no such part
  Status residents_status_;
  std::vector<ArenaView> arena_views_;
};

// Called now and then while a long read goes on; an error ends the read.
using KeepGoing = std::function<Status()>;

// The whole state's digest, checksums verified, while `keep` is called about ten times a second.
Result<StateDigest> digest_job(const JobState& state, const KeepGoing& keep);

struct ExportOptions {
  std::string path;
  DType dtype = DType::kF32;  // kF32 or kBF16
};
// Writes the main weights of every space as one safetensors file, tensor by tensor, each chunk
// checked against its checksum; memory does not grow with the model. Tensor names that two spaces
// share are written as "<space>.<name>".
Status export_weights(const JobState& state, const ExportOptions& options, const KeepGoing& keep);

// What lies under the job's names, judged as found_state.h says. Maps nothing for longer.
FoundState find_state(const RunDirectory& run);
// Every name in shared memory that belongs to the job, its lock included, that exists now.
std::vector<std::string> segments_of_job(const RunDirectory& run);
// The bytes that those occupy.
uint64_t segment_bytes_of_job(const RunDirectory& run);

}  // namespace optlease
