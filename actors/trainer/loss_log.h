// The file of losses: one JSON line {"step":t,"loss":x} a committed step, each exactly once over
// all lives of the trainer. A life that was killed between a commit and its line leaves a gap (or
// half a line); the next one fills it from the losses in the user blob. Used by the training loop.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shm/contract/status.h"

namespace optlease {

class LossLog {
 public:
  // Does nothing for ever: for trainers that were given no file.
  LossLog() = default;
  // Opens or creates `path`, cuts off half a line at its end, and writes the lines that are missing
  // of the steps up to `last_step`, whose losses are the tail of `losses`.
  static Result<LossLog> open(const std::string& path, int64_t last_step,
                              const std::vector<double>& losses);
  Status append(int64_t step, double loss);

 private:
  // Written with one write(2) a line, so that a kill cannot leave a line in a buffer.
  struct Closer {
    void operator()(int* fd) const;
  };
  LossLog(std::unique_ptr<int, Closer> fd, std::string path);
  Status add_missing(int64_t last_step, const std::vector<double>& losses);

  std::unique_ptr<int, Closer> fd_;
  std::string path_;
};

// {"step":3,"loss":5.4321} and a line's end; null for a loss that is not finite.
std::string loss_line(int64_t step, double loss);

}  // namespace optlease
