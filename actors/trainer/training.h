// The training loop of the example trainer: attach, go on from the committed step, and for each
// step compute gradients, ask for the update and log the loss. Used by main.cc.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "actors/trainer/job_session.h"
#include "actors/trainer/learning_rate.h"
#include "shm/contract/status.h"

namespace optlease {

struct TrainingOptions {
  SessionOptions session;
  std::string text_path;
  uint64_t batch = 64;             // samples a rank and step
  int64_t steps = 0;               // 0: as the job says
  uint64_t seed = 0;               // of the sample order
  std::optional<LearningRate> lr;  // otherwise as the job says
  std::string loss_path;           // empty: no loss file; "{rank}" is replaced
};

// Returns Ok once the last step is committed. Whatever ends it earlier, a new call goes on from the
// last committed step and gives the same losses as an undisturbed run.
Status train(TrainingOptions options);

}  // namespace optlease
