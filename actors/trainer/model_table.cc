#include "actors/trainer/model_table.h"

#include <algorithm>

namespace optlease {

namespace {

constexpr const char* kWanted =
    "embed.weight [256, E], hidden.weight [H, C*E], hidden.bias [H], out.weight [256, H], "
    "out.bias [256]";
constexpr size_t kTensorCount = 5;

std::string text_of(const std::vector<uint64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

std::string text_of(const std::vector<TensorRow>& rows) {
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = 0; i < std::min(rows.size(), kShown); ++i)
    text += (i == 0 ? "" : ", ") + rows[i].name + " " + text_of(rows[i].shape);
  if (rows.size() > kShown) text += format(" and %zu more", rows.size() - kShown);
  return text.empty() ? "none" : text;
}

Status not_the_model(const std::string& why, const std::vector<TensorRow>& rows) {
  return {StatusCode::kInvalidArgument,
          format("the job's tensors are not this trainer's model: %s. It trains %s; the job has %s",
                 why.c_str(), kWanted, text_of(rows).c_str())};
}

const TensorRow* find(const std::vector<TensorRow>& rows, const char* name) {
  const auto row = std::find_if(rows.begin(), rows.end(),
                                [&](const TensorRow& candidate) { return candidate.name == name; });
  return row == rows.end() ? nullptr : &*row;
}

}  // namespace

Result<ByteModelTable> find_byte_model(const std::vector<TensorRow>& rows) {
  ByteModelTable table;
  struct Wanted {
    const char* name;
    size_t dims;
    TensorPlace* place;
    const TensorRow* row;
  } wanted[kTensorCount] = {{"embed.weight", 2, &table.embed, nullptr},
                            {"hidden.weight", 2, &table.hidden_weight, nullptr},
                            {"hidden.bias", 1, &table.hidden_bias, nullptr},
                            {"out.weight", 2, &table.out_weight, nullptr},
                            {"out.bias", 1, &table.out_bias, nullptr}};
  for (Wanted& tensor : wanted) {
    tensor.row = find(rows, tensor.name);
    if (tensor.row == nullptr)
      return not_the_model(format("this rank has no tensor %s", tensor.name), rows);
    if (tensor.row->shape.size() != tensor.dims)
      return not_the_model(format("%s has %zu dimensions", tensor.name, tensor.row->shape.size()),
                           rows);
    *tensor.place = {tensor.row->space, tensor.row->flat_offset};
  }
  if (rows.size() != kTensorCount)
    return not_the_model(format("there are %zu tensors", rows.size()), rows);

  const uint64_t embed = wanted[0].row->shape[1];
  const uint64_t hidden = wanted[1].row->shape[0];
  const uint64_t inputs = wanted[1].row->shape[1];
  if (embed == 0 || hidden == 0 || inputs == 0) return not_the_model("a dimension is 0", rows);
  if (inputs % embed != 0)
    return not_the_model("hidden.weight's second dimension is no multiple of embed.weight's", rows);
  const std::vector<uint64_t> shapes[kTensorCount] = {
      {kByteValues, embed}, {hidden, inputs}, {hidden}, {kByteValues, hidden}, {kByteValues}};
  for (size_t i = 0; i < kTensorCount; ++i)
    if (wanted[i].row->shape != shapes[i])
      return not_the_model(format("%s is not %s", wanted[i].name, text_of(shapes[i]).c_str()),
                           rows);
  table.shape = {inputs / embed, embed, hidden};
  return table;
}

}  // namespace optlease
