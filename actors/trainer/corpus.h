// The text that the example trainer learns, and the order in which its positions are visited. Used
// by the training loop. It holds the whole text in memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shm/contract/status.h"

namespace optlease {

// The bytes of a file or, for a directory, of all *.md files under it in the order of their paths.
// Symbolic links to directories are not followed.
Result<std::string> read_text(const std::string& path);

// A seeded order in which every position of the text comes once an epoch: sample n is at
// (multiplier * n + offset) mod positions, with a new multiplier and offset each epoch. Any sample
// can be asked for at any time, so a restarted trainer needs nothing but n.
class SampleOrder {
 public:
  // REQUIRES: positions >= 1.
  SampleOrder(uint64_t seed, uint64_t positions);
  uint64_t position_of(uint64_t sample) const;

 private:
  uint64_t seed_;
  uint64_t positions_;
};

// The samples of one rank at one step: ranks take turns, so that no two see the same sample.
struct Batch {
  std::vector<uint8_t> contexts;  // batch * context bytes
  std::vector<uint8_t> targets;   // batch bytes
};

class Corpus {
 public:
  // InvalidArgument where the text is no longer than one context.
  static Result<Corpus> of(std::string text, uint64_t context, uint64_t seed);

  // Samples first_sample + i * world_size + rank for i in 0..batch-1.
  void fill(uint64_t first_sample, uint64_t batch, uint32_t rank, uint32_t world_size,
            Batch* out) const;
  uint64_t text_hash() const { return text_hash_; }

 private:
  Corpus(std::string text, uint64_t context, uint64_t seed);

  std::string text_;
  uint64_t context_;
  SampleOrder order_;
  uint64_t text_hash_;
};

}  // namespace optlease
