// Finds the byte model in a job's tensor table: the shapes come from the job, not from the
// trainer's command line. Used by the training loop; pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "actors/trainer/byte_model.h"
#include "shm/contract/status.h"

namespace optlease {

// A row of the job's tensor table, of a space that this rank is a member of.
struct TensorRow {
  std::string name;
  std::vector<uint64_t> shape;
  uint32_t space = 0;
  uint64_t flat_offset = 0;  // elements within the space
};

struct TensorPlace {
  uint32_t space = 0;
  uint64_t flat_offset = 0;
};

struct ByteModelTable {
  ByteModelShape shape;
  TensorPlace embed;
  TensorPlace hidden_weight;
  TensorPlace hidden_bias;
  TensorPlace out_weight;
  TensorPlace out_bias;
};

// InvalidArgument, with what was found and what was wanted, where the rows are not exactly
//   embed.weight [256, E], hidden.weight [H, C*E], hidden.bias [H], out.weight [256, H],
//   out.bias [256]
// in any order and in any spaces.
Result<ByteModelTable> find_byte_model(const std::vector<TensorRow>& rows);

// Where the model's tensors are, given the first element of each space's flat buffer.
template <class T>
ByteModelTensors<T> tensors_at(const ByteModelTable& table, const std::vector<T*>& spaces) {
  const auto at = [&](const TensorPlace& place) { return spaces[place.space] + place.flat_offset; };
  return {at(table.embed), at(table.hidden_weight), at(table.hidden_bias), at(table.out_weight),
          at(table.out_bias)};
}

}  // namespace optlease
