// A small language model over bytes with a hand-written backward pass (Bengio et al. 2003, without
// the direct connections): the last C bytes are looked up in an embedding table, pass one tanh
// layer, and give the logits of the next byte. Used by the training loop and its tests; it owns
// scratch memory only, never parameters or gradients. Deterministic; one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace optlease {

inline constexpr uint64_t kByteValues = 256;

struct ByteModelShape {
  uint64_t context = 0;  // C, bytes that predict the next one
  uint64_t embed = 0;    // E, numbers a byte
  uint64_t hidden = 0;   // H
};

// Parameters or gradients, row-major.
template <class T>
struct ByteModelTensors {
  T* embed = nullptr;          // [256, E]
  T* hidden_weight = nullptr;  // [H, C*E]
  T* hidden_bias = nullptr;    // [H]
  T* out_weight = nullptr;     // [256, H]
  T* out_bias = nullptr;       // [256]
};

class ByteModel {
 public:
  ByteModel(const ByteModelShape& shape, uint64_t batch);

  const ByteModelShape& shape() const { return shape_; }
  uint64_t batch() const { return batch_; }

  // Mean cross entropy in nats of the batch, and its gradients added to `grads`. Rounding is that
  // of FP32 sums over C*E, H, 256 and the batch; the loss is summed in double.
  // REQUIRES: contexts has batch*C bytes, targets batch.
  double forward_backward(const ByteModelTensors<const float>& params,
                          const ByteModelTensors<float>& grads, std::span<const uint8_t> contexts,
                          std::span<const uint8_t> targets);

 private:
  void forward(const ByteModelTensors<const float>& params, std::span<const uint8_t> contexts);
  double softmax_loss(std::span<const uint8_t> targets);
  void backward(const ByteModelTensors<const float>& params, const ByteModelTensors<float>& grads,
                std::span<const uint8_t> contexts);

  // Constant after construction.
  ByteModelShape shape_;
  uint64_t batch_;

  // Scratch; sized once. B = batch.
  std::vector<float> inputs_;            // [B, C*E]
  std::vector<float> hidden_;            // [B, H], after tanh
  std::vector<float> logits_;            // [B, 256]; then the loss's gradient by them
  std::vector<float> hidden_grads_;      // [B, H]
  std::vector<float> input_grads_;       // [B, C*E]
  std::vector<float> weight_transpose_;  // of whichever weight is in use
  std::vector<float> grads_transpose_;   // of logits_ or hidden_grads_
};

}  // namespace optlease
