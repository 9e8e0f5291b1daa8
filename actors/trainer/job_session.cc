#include "actors/trainer/job_session.h"

#include <algorithm>
#include <utility>

#include "kernels/formats.h"
#include "shm/contract/dtype.h"

namespace optlease {

namespace {

template <DType kDType>
void load(const void* from, std::vector<float>* to) {
  const auto* stored = static_cast<const typename Format<kDType>::Storage*>(from);
  for (size_t i = 0; i < to->size(); ++i) (*to)[i] = Format<kDType>::load(stored[i]);
}

template <DType kDType>
void store(const std::vector<float>& from, void* to) {
  auto* stored = static_cast<typename Format<kDType>::Storage*>(to);
  for (size_t i = 0; i < from.size(); ++i) stored[i] = Format<kDType>::store(from[i]);
}

bool is_known(uint32_t dtype) {
  return dtype == OPTLEASE_F32 || dtype == OPTLEASE_BF16 || dtype == OPTLEASE_F16;
}

}  // namespace

void JobSession::Detacher::operator()(optlease_client* client) const {
  optlease_detach(client);  // fails only in a forked child, and this program forks none
}

Status JobSession::status_of(optlease_status code) const {
  if (code == OPTLEASE_OK) return Status::ok();
  return {static_cast<StatusCode>(code), optlease_last_error(client_.get())};
}

Result<JobSession> JobSession::attach(const SessionOptions& options) {
  optlease_attach_options ask{};
  ask.struct_bytes = sizeof ask;
  ask.job = options.job ? options.job->c_str() : nullptr;
  ask.rank =
      options.rank ? static_cast<int32_t>(*options.rank) : int32_t{OPTLEASE_RANK_FROM_ENVIRONMENT};
  ask.timeout_ms = options.attach_timeout_ms;
  optlease_client* client = nullptr;
  if (const optlease_status code = optlease_attach(&ask, &client); code != OPTLEASE_OK)
    return Status{static_cast<StatusCode>(code), optlease_last_error(nullptr)};
  JobSession session(client);
  session.step_timeout_ms_ = options.step_timeout_ms;
  OPTLEASE_TRY(session.read_job());
  return session;
}

Status JobSession::read_job() {
  uint32_t space_count = 0;
  OPTLEASE_TRY(status_of(optlease_rank(client_.get(), &rank_)));
  OPTLEASE_TRY(status_of(optlease_world_size(client_.get(), &world_size_)));
  OPTLEASE_TRY(status_of(optlease_job_steps(client_.get(), &job_steps_)));
  OPTLEASE_TRY(status_of(optlease_space_count(client_.get(), &space_count)));
  spaces_.resize(space_count);
  params_.resize(space_count);
  grads_.resize(space_count);
  for (uint32_t i = 0; i < space_count; ++i) OPTLEASE_TRY(read_space(i));
  return Status::ok();
}

Status JobSession::read_space(uint32_t index) {
  optlease_space_info info{};
  info.struct_bytes = sizeof info;
  OPTLEASE_TRY(status_of(optlease_space(client_.get(), index, &info)));
  Space& space = spaces_[index];
  space.is_member = info.member_index != OPTLEASE_NOT_A_MEMBER;
  if (!space.is_member || info.elements == 0) return Status::ok();
  if (!is_known(info.param_dtype) || !is_known(info.grad_dtype))
    return {StatusCode::kUnsupported, format("space '%s' has element types %u and %u, which this "
                                             "trainer does not know",
                                             info.name, info.param_dtype, info.grad_dtype)};
  space.param_dtype = info.param_dtype;
  space.grad_dtype = info.grad_dtype;
  space.elements = info.elements;
  space.tensor_count = info.tensor_count;
  OPTLEASE_TRY(find_buffers(index, info));
  if (space.param_dtype != OPTLEASE_F32) space.params_f32.resize(space.elements);
  if (space.grad_dtype != OPTLEASE_F32) space.grads_f32.resize(space.elements);
  params_[index] = space.param_dtype == OPTLEASE_F32 ? static_cast<const float*>(space.params)
                                                     : space.params_f32.data();
  grads_[index] =
      space.grad_dtype == OPTLEASE_F32 ? static_cast<float*>(space.grads) : space.grads_f32.data();
  return Status::ok();
}

// Of a job on GPUs the copies take the buffers' place.
Status JobSession::find_buffers(uint32_t index, const optlease_space_info& info) {
  Space& space = spaces_[index];
  const void* params = optlease_params(client_.get(), index);
  void* grads = optlease_grads(client_.get(), index);
  if (params == nullptr || grads == nullptr)
    return {StatusCode::kInternal, optlease_last_error(client_.get())};
  space.params = params;
  space.grads = grads;
  if (info.device == OPTLEASE_DEVICE_CPU) return Status::ok();
  if (!device_) {
    auto device = DeviceMemory::open({static_cast<DeviceKind>(info.device), info.device_ordinal});
    if (!device) return device.status();
    device_.emplace(std::move(device).value());
  }
  space.device_params = params;
  space.device_grads = grads;
  space.params_copy.resize(space.elements * bytes_of(static_cast<DType>(space.param_dtype)));
  space.grads_copy.resize(space.elements * bytes_of(static_cast<DType>(space.grad_dtype)));
  space.params = space.params_copy.data();
  space.grads = space.grads_copy.data();
  return Status::ok();
}

int64_t JobSession::last_step() const {
  int64_t step = 0;
  OPTLEASE_CHECK(optlease_last_step(client_.get(), &step) == OPTLEASE_OK, "%s",
                 optlease_last_error(client_.get()));
  return step;
}

Result<std::string> JobSession::user_blob() const {
  size_t bytes = 0;
  OPTLEASE_TRY(status_of(optlease_user_blob(client_.get(), nullptr, &bytes)));
  std::string blob(bytes, '\0');
  OPTLEASE_TRY(status_of(optlease_user_blob(client_.get(), blob.data(), &bytes)));
  return blob;
}

Result<std::vector<TensorRow>> JobSession::tensors() const {
  std::vector<TensorRow> rows;
  for (uint32_t s = 0; s < spaces_.size(); ++s)
    for (uint32_t t = 0; t < spaces_[s].tensor_count; ++t) {
      optlease_tensor_info info{};
      info.struct_bytes = sizeof info;
      OPTLEASE_TRY(status_of(optlease_tensor(client_.get(), s, t, &info)));
      rows.push_back({info.name, {info.shape, info.shape + info.dims}, s, info.flat_offset});
    }
  return rows;
}

Result<const std::vector<const float*>*> JobSession::read_params() {
  for (Space& space : spaces_) {
    if (space.device_params != nullptr)
      OPTLEASE_TRY(device_->copy_to_host(space.params_copy.data(), space.device_params,
                                         space.params_copy.size()));
    if (space.param_dtype == OPTLEASE_BF16) load<DType::kBF16>(space.params, &space.params_f32);
    if (space.param_dtype == OPTLEASE_F16) load<DType::kF16>(space.params, &space.params_f32);
  }
  return &params_;
}

const std::vector<float*>& JobSession::zeroed_grads() {
  for (size_t i = 0; i < spaces_.size(); ++i)
    if (grads_[i] != nullptr) std::fill_n(grads_[i], spaces_[i].elements, 0.0f);
  return grads_;
}

Status JobSession::prepare() { return status_of(optlease_prepare(client_.get(), last_step() + 1)); }

Result<optlease_step_result> JobSession::step(std::optional<double> lr, const std::string& blob) {
  for (Space& space : spaces_) {
    if (space.grad_dtype == OPTLEASE_BF16) store<DType::kBF16>(space.grads_f32, space.grads);
    if (space.grad_dtype == OPTLEASE_F16) store<DType::kF16>(space.grads_f32, space.grads);
    if (space.device_grads != nullptr)
      OPTLEASE_TRY(device_->copy_to_device(space.device_grads, space.grads_copy.data(),
                                           space.grads_copy.size()));
  }
  optlease_step_options ask{};
  ask.struct_bytes = sizeof ask;
  if (lr) {
    ask.given = OPTLEASE_STEP_LR;
    ask.lr = *lr;
  }
  ask.blob = blob.data();
  ask.blob_bytes = blob.size();
  ask.timeout_ms = step_timeout_ms_;
  optlease_step_result result{};
  result.struct_bytes = sizeof result;
  OPTLEASE_TRY(status_of(optlease_step(client_.get(), &ask, &result)));
  return result;
}

}  // namespace optlease
