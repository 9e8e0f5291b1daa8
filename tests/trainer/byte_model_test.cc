// The model's mathematics: matrix products, gradients against finite differences in double, and
// that following them lowers the loss.
#include "actors/trainer/byte_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "actors/trainer/corpus.h"
#include "actors/trainer/matmul.h"
#include "tests/trainer/small_model.h"

namespace optlease {
namespace {

TEST(TrainerMatmul, GivesTheBitsOfThePlainLoopAtEverySize) {
  std::mt19937 random(7);
  for (const uint64_t m : {1, 3, 4, 9})
    for (const uint64_t k : {1, 5, 64})
      for (const uint64_t n : {1, 15, 16, 17, 50}) {
        std::vector<float> a(m * k), b(k * n), c(m * n);
        for (auto* all : {&a, &b, &c})
          for (float& v : *all) v = static_cast<float>(random() % 2001) / 1000.0f - 1.0f;
        std::vector<float> expected = c;
        for (uint64_t i = 0; i < m; ++i)
          for (uint64_t j = 0; j < n; ++j) {
            float sum = 0;
            for (uint64_t p = 0; p < k; ++p) sum += a[i * k + p] * b[p * n + j];
            expected[i * n + j] += sum;
          }
        multiply_add(a.data(), b.data(), c.data(), m, k, n);
        EXPECT_EQ(std::memcmp(c.data(), expected.data(), c.size() * sizeof(float)), 0)
            << m << " x " << k << " x " << n;
      }
}

TEST(TrainerMatmul, TransposesAnyShape) {
  for (const uint64_t rows : {1, 31, 33})
    for (const uint64_t columns : {1, 32, 70}) {
      std::vector<float> in(rows * columns), out(rows * columns);
      for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i);
      transpose(in.data(), out.data(), rows, columns);
      for (uint64_t r = 0; r < rows; ++r)
        for (uint64_t c = 0; c < columns; ++c) ASSERT_EQ(out[c * rows + r], in[r * columns + c]);
    }
}

// The same model written plainly, in double: what the gradients are checked against.
double reference_loss(const std::vector<double>& params, const ByteModelShape& s,
                      const Batch& batch) {
  const auto at = tensors_in(params.data(), s);
  double total = 0;
  for (size_t n = 0; n < batch.targets.size(); ++n) {
    std::vector<double> hidden(s.hidden), logits(kByteValues);
    for (uint64_t h = 0; h < s.hidden; ++h) {
      double sum = at.hidden_bias[h];
      for (uint64_t c = 0; c < s.context; ++c)
        for (uint64_t e = 0; e < s.embed; ++e)
          sum += at.hidden_weight[h * s.context * s.embed + c * s.embed + e] *
                 at.embed[batch.contexts[n * s.context + c] * s.embed + e];
      hidden[h] = std::tanh(sum);
    }
    double sum = 0;
    for (uint64_t v = 0; v < kByteValues; ++v) {
      logits[v] = at.out_bias[v];
      for (uint64_t h = 0; h < s.hidden; ++h)
        logits[v] += at.out_weight[v * s.hidden + h] * hidden[h];
      sum += std::exp(logits[v]);
    }
    total += std::log(sum) - logits[batch.targets[n]];
  }
  return total / static_cast<double>(batch.targets.size());
}

Batch some_batch(uint64_t size) {
  auto corpus = Corpus::of(small_text(), kSmallShape.context, 3);
  EXPECT_TRUE(corpus.is_ok());
  Batch batch;
  corpus.value().fill(0, size, 0, 1, &batch);
  return batch;
}

TEST(ByteModel, LossIsThatOfTheReferenceInDouble) {
  const std::vector<float> params = seeded_params(kSmallShape, 11, 0.5f);
  const Batch batch = some_batch(8);
  std::vector<float> grads(params.size());
  ByteModel model(kSmallShape, 8);
  const double loss =
      model.forward_backward(tensors_in(params.data(), kSmallShape),
                             tensors_in(grads.data(), kSmallShape), batch.contexts, batch.targets);
  const double expected =
      reference_loss(std::vector<double>(params.begin(), params.end()), kSmallShape, batch);
  EXPECT_NEAR(loss, expected, 1e-5);
}

TEST(ByteModel, GradientsAreTheFiniteDifferencesOfTheLoss) {
  const std::vector<float> params = seeded_params(kSmallShape, 12, 0.5f);
  const Batch batch = some_batch(4);
  std::vector<float> grads(params.size());
  ByteModel model(kSmallShape, 4);
  model.forward_backward(tensors_in(params.data(), kSmallShape),
                         tensors_in(grads.data(), kSmallShape), batch.contexts, batch.targets);
  std::vector<double> moved(params.begin(), params.end());
  uint64_t not_zero = 0;
  for (size_t i = 0; i < params.size(); ++i) {
    constexpr double kStep = 1e-5;
    const double at = moved[i];
    moved[i] = at + kStep;
    const double above = reference_loss(moved, kSmallShape, batch);
    moved[i] = at - kStep;
    const double below = reference_loss(moved, kSmallShape, batch);
    moved[i] = at;
    const double expected = (above - below) / (2 * kStep);
    ASSERT_NEAR(grads[i], expected, 1e-6 + 1e-4 * std::abs(expected)) << "parameter " << i;
    if (std::abs(expected) > 1e-4) ++not_zero;
  }
  EXPECT_GT(not_zero, 1000u);
}

TEST(ByteModel, AddsToTheGradientsThatAreThere) {
  const std::vector<float> params = seeded_params(kSmallShape, 13, 0.5f);
  const Batch batch = some_batch(4);
  std::vector<float> once(params.size()), onto_one(params.size(), 1.0f);
  ByteModel model(kSmallShape, 4);
  for (auto* grads : {&once, &onto_one})
    model.forward_backward(tensors_in(params.data(), kSmallShape),
                           tensors_in(grads->data(), kSmallShape), batch.contexts, batch.targets);
  for (size_t i = 0; i < once.size(); ++i) ASSERT_NEAR(onto_one[i], once[i] + 1.0f, 1e-6) << i;
}

TEST(ByteModel, GivesTheSameBitsEachTime) {
  const std::vector<float> params = seeded_params(kSmallShape, 14, 0.5f);
  const Batch batch = some_batch(6);
  std::vector<float> first(params.size()), second(params.size());
  ByteModel model(kSmallShape, 6);
  const double loss_1 =
      model.forward_backward(tensors_in(params.data(), kSmallShape),
                             tensors_in(first.data(), kSmallShape), batch.contexts, batch.targets);
  ByteModel other(kSmallShape, 6);  // and nothing depends on scratch that another step left
  const double loss_2 =
      other.forward_backward(tensors_in(params.data(), kSmallShape),
                             tensors_in(second.data(), kSmallShape), batch.contexts, batch.targets);
  EXPECT_EQ(loss_1, loss_2);
  EXPECT_EQ(std::memcmp(first.data(), second.data(), first.size() * sizeof(float)), 0);
  std::fill(second.begin(), second.end(), 0.0f);
  model.forward_backward(tensors_in(params.data(), kSmallShape),
                         tensors_in(second.data(), kSmallShape), batch.contexts, batch.targets);
  EXPECT_EQ(std::memcmp(first.data(), second.data(), first.size() * sizeof(float)), 0);
}

TEST(ByteModel, LearnsASmallTextWithPlainAdam) {
  std::vector<float> params = seeded_params(kSmallShape, 15, 0.1f);
  std::vector<float> grads(params.size()), mean(params.size()), square(params.size());
  auto corpus = Corpus::of(small_text(), kSmallShape.context, 5);
  ASSERT_TRUE(corpus.is_ok());
  ByteModel model(kSmallShape, 32);
  Batch batch;
  double first = 0, last = 0;
  for (int step = 1; step <= 500; ++step) {
    corpus.value().fill(static_cast<uint64_t>(step) * 32, 32, 0, 1, &batch);
    std::fill(grads.begin(), grads.end(), 0.0f);
    last = model.forward_backward(tensors_in<const float>(params.data(), kSmallShape),
                                  tensors_in(grads.data(), kSmallShape), batch.contexts,
                                  batch.targets);
    if (step == 1) first = last;
    const double correct_1 = 1 - std::pow(0.9, step), correct_2 = 1 - std::pow(0.999, step);
    for (size_t i = 0; i < params.size(); ++i) {
      mean[i] += 0.1f * (grads[i] - mean[i]);
      square[i] += 0.001f * (grads[i] * grads[i] - square[i]);
      params[i] -= static_cast<float>(0.01 * (mean[i] / correct_1) /
                                      (std::sqrt(square[i] / correct_2) + 1e-8));
    }
  }
  EXPECT_NEAR(first, std::log(256.0), 0.1);  // nothing known: all bytes alike
  EXPECT_LT(last, 0.4 * first);
}

}  // namespace
}  // namespace optlease
