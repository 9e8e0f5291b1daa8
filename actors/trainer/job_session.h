// The trainer's side of the C interface: an attachment with its buffers as floats, whatever their
// element types and wherever they lie: this trainer computes on the CPU, so it keeps copies of
// buffers that are a GPU's. Used by the training loop. All it knows of Optlease is optlease.h, and
// how bytes get to a GPU and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "actors/client/optlease.h"
#include "actors/device_memory/device_memory.h"
#include "actors/trainer/model_table.h"
#include "shm/contract/status.h"

namespace optlease {

struct SessionOptions {
  std::optional<std::string> job;  // otherwise from the environment, here and below
  std::optional<uint32_t> rank;
  uint64_t attach_timeout_ms = 0;  // 0: as the job says
  uint64_t step_timeout_ms = 0;    // 0: the client library's default
};

class JobSession {
 public:
  static Result<JobSession> attach(const SessionOptions& options);

  uint32_t rank() const { return rank_; }
  uint32_t world_size() const { return world_size_; }
  int64_t job_steps() const { return job_steps_; }
  int64_t last_step() const;
  Result<std::string> user_blob() const;
  // Of the spaces that this rank is a member of.
  Result<std::vector<TensorRow>> tensors() const;

  // [space], null for spaces that are not this rank's. As of the last step; converted where they
  // are not FP32.
  Result<const std::vector<const float*>*> read_params();
  // [space], zeroed, to be added to.
  const std::vector<float*>& zeroed_grads();
  // Tells that the gradients of the next step are being computed.
  Status prepare();
  // Hands the gradients over, converted where they are not FP32, and waits for the step.
  Result<optlease_step_result> step(std::optional<double> lr, const std::string& blob);

 private:
  struct Space {
    uint32_t param_dtype = 0;
    uint32_t grad_dtype = 0;
    uint64_t elements = 0;
    uint32_t tensor_count = 0;
    bool is_member = false;
    const void* params = nullptr;  // host memory: the buffers, or the copies of a GPU's
    void* grads = nullptr;
    const void* device_params = nullptr;  // null where the buffers are host memory
    void* device_grads = nullptr;
    std::vector<std::byte> params_copy;
    std::vector<std::byte> grads_copy;
    std::vector<float> params_f32;  // empty where the buffer itself is FP32
    std::vector<float> grads_f32;
  };
  struct Detacher {
    void operator()(optlease_client* client) const;
  };

  explicit JobSession(optlease_client* client) : client_(client) {}
  Status read_job();
  Status read_space(uint32_t index);
  Status find_buffers(uint32_t index, const optlease_space_info& info);
  Status status_of(optlease_status code) const;

  std::unique_ptr<optlease_client, Detacher> client_;
  uint32_t rank_ = 0;
  uint32_t world_size_ = 0;
  int64_t job_steps_ = 0;
  uint64_t step_timeout_ms_ = 0;
  std::optional<DeviceMemory> device_;  // of a job on GPUs
  std::vector<Space> spaces_;
  std::vector<const float*> params_;
  std::vector<float*> grads_;
};

}  // namespace optlease
