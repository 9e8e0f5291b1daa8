// Every kill point of the source: of what class it is, in which process it lies, and what brings a
// process there. The soak (soak_test.cc) kills at each row and fails where one was never reached;
// `Pages` compares the table with the source in both directions.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "shm/kill_page.h"

namespace optlease::soak {

// A row is of one process: a point that two of them come to has two.
enum class Who { kLauncher, kStore, kActor, kTrainer, kTool };

// What brings a process to the point.
enum class When {
  kStep,               // steps go on
  kStart,              // it is started in a dead one's place
  kBegin,              // the job is started: state, buffers and sockets are made
  kResume,             // the job is started over a state that is there
  kActorDies,          // the launcher sees it, and tells the store
  kActorDiesInStep,    // in an open step, the rest of which is its successor's
  kActorDiesAtRecord,  // before all records are there
  kStoreDies,          // actors drain and attach again
  kTrainerDies,        // its successor attaches
  kHold,               // a tool reads the state of the running job
  kStop,               // `optlease stop --keep`
  kOver,               // after the last step: what the job had is removed
  kClean,              // `optlease clean` of what a killed job left
  kElsewhere,          // not in a job on the CPU device: the test that is named kills there
};

// What a job needs to have for it.
enum class Need { kNothing, kTrainers, kNoTrainers, kSkippedSteps, kResidentPart };

struct KillPoint {
  const char* point;
  const char* of_class;  // creation, reservation, recovery, lease, ...
  Who who;
  When when;
  Need need = Need::kNothing;
  const char* test = "";
};

std::span<const KillPoint> kill_points();
// REQUIRES: the table has it.
const KillPoint& kill_point(const char* point, Who who);

const char* name_of(Who who);
// The file that runs, by which a page knows a process.
const char* program_of(Who who);
// The rows of a page: for the processes of a job, or for tools, which are `optlease` as well.
std::vector<KillPlace> places_of(bool tools);

}  // namespace optlease::soak
