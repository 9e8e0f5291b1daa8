#include "actors/trainer/byte_model.h"

#include <algorithm>
#include <cmath>

#include "actors/trainer/matmul.h"
#include "shm/contract/status.h"

namespace optlease {

namespace {

void fill_rows(const float* row, uint64_t columns, uint64_t rows, float* out) {
  for (uint64_t i = 0; i < rows; ++i) std::copy_n(row, columns, out + i * columns);
}

// sums[j] += column j of in[rows, columns], rows ascending.
void add_column_sums(const float* in, uint64_t rows, uint64_t columns, float* sums) {
  for (uint64_t i = 0; i < rows; ++i)
    for (uint64_t j = 0; j < columns; ++j) sums[j] += in[i * columns + j];
}

}  // namespace

ByteModel::ByteModel(const ByteModelShape& shape, uint64_t batch) : shape_(shape), batch_(batch) {
  const uint64_t inputs = shape.context * shape.embed;
  inputs_.resize(batch * inputs);
  hidden_.resize(batch * shape.hidden);
  logits_.resize(batch * kByteValues);
  hidden_grads_.resize(batch * shape.hidden);
  input_grads_.resize(batch * inputs);
  weight_transpose_.resize(shape.hidden * std::max(inputs, kByteValues));
  grads_transpose_.resize(batch * std::max(shape.hidden, kByteValues));
}

double ByteModel::forward_backward(const ByteModelTensors<const float>& params,
                                   const ByteModelTensors<float>& grads,
                                   std::span<const uint8_t> contexts,
                                   std::span<const uint8_t> targets) {
  OPTLEASE_CHECK(contexts.size() == batch_ * shape_.context && targets.size() == batch_,
                 "%zu context bytes and %zu targets for a batch of %llu", contexts.size(),
                 targets.size(), static_cast<unsigned long long>(batch_));
  forward(params, contexts);
  const double loss = softmax_loss(targets);
  backward(params, grads, contexts);
  return loss;
}

void ByteModel::forward(const ByteModelTensors<const float>& params,
                        std::span<const uint8_t> contexts) {
  const uint64_t inputs = shape_.context * shape_.embed;
  for (uint64_t i = 0; i < contexts.size(); ++i)
    std::copy_n(params.embed + contexts[i] * shape_.embed, shape_.embed,
                inputs_.data() + i * shape_.embed);

  transpose(params.hidden_weight, weight_transpose_.data(), shape_.hidden, inputs);
  fill_rows(params.hidden_bias, shape_.hidden, batch_, hidden_.data());
  multiply_add(inputs_.data(), weight_transpose_.data(), hidden_.data(), batch_, inputs,
               shape_.hidden);
  for (float& value : hidden_) value = std::tanh(value);

  transpose(params.out_weight, weight_transpose_.data(), kByteValues, shape_.hidden);
  fill_rows(params.out_bias, kByteValues, batch_, logits_.data());
  multiply_add(hidden_.data(), weight_transpose_.data(), logits_.data(), batch_, shape_.hidden,
               kByteValues);
}

// Turns logits_ into the gradient of the mean loss: (softmax - one_hot) / batch.
double ByteModel::softmax_loss(std::span<const uint8_t> targets) {
  double total = 0;
  const float scale = 1.0f / static_cast<float>(batch_);
  for (uint64_t i = 0; i < batch_; ++i) {
    const std::span<float> row(logits_.data() + i * kByteValues, kByteValues);
    // Subtracting the largest logit changes no probability and keeps exp from overflowing.
    const float largest = *std::max_element(row.begin(), row.end());
    const float target_logit = row[targets[i]] - largest;
    double sum = 0;
    for (float& value : row) {
      value = std::exp(value - largest);
      sum += value;
    }
    total += std::log(sum) - target_logit;
    const float inverse = static_cast<float>(1.0 / sum);
    for (float& value : row) value *= inverse;
    row[targets[i]] -= 1.0f;
    for (float& value : row) value *= scale;
  }
  return total / static_cast<double>(batch_);
}

void ByteModel::backward(const ByteModelTensors<const float>& params,
                         const ByteModelTensors<float>& grads, std::span<const uint8_t> contexts) {
  const uint64_t inputs = shape_.context * shape_.embed;
  transpose(logits_.data(), grads_transpose_.data(), batch_, kByteValues);
  multiply_add(grads_transpose_.data(), hidden_.data(), grads.out_weight, kByteValues, batch_,
               shape_.hidden);
  add_column_sums(logits_.data(), batch_, kByteValues, grads.out_bias);

  std::fill(hidden_grads_.begin(), hidden_grads_.end(), 0.0f);
  multiply_add(logits_.data(), params.out_weight, hidden_grads_.data(), batch_, kByteValues,
               shape_.hidden);
  for (uint64_t i = 0; i < hidden_grads_.size(); ++i)  // d tanh(x) = 1 - tanh(x)^2
    hidden_grads_[i] *= 1.0f - hidden_[i] * hidden_[i];

  transpose(hidden_grads_.data(), grads_transpose_.data(), batch_, shape_.hidden);
  multiply_add(grads_transpose_.data(), inputs_.data(), grads.hidden_weight, shape_.hidden, batch_,
               inputs);
  add_column_sums(hidden_grads_.data(), batch_, shape_.hidden, grads.hidden_bias);

  std::fill(input_grads_.begin(), input_grads_.end(), 0.0f);
  multiply_add(hidden_grads_.data(), params.hidden_weight, input_grads_.data(), batch_,
               shape_.hidden, inputs);
  for (uint64_t i = 0; i < contexts.size(); ++i) {
    float* row = grads.embed + contexts[i] * shape_.embed;
    for (uint64_t j = 0; j < shape_.embed; ++j) row[j] += input_grads_[i * shape_.embed + j];
  }
}

}  // namespace optlease
