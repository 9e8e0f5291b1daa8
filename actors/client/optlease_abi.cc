// The C interface over Client: arguments are checked, structs copied by size, errors put into
// words, and no exception or C++ type crosses.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <string_view>
#include <utility>

#include "actors/client/client.h"
#include "actors/client/optlease.h"
#include "actors/client/struct_copy.h"
#include "actors/runtime/exception_status.h"
#include "shm/contract/limits.h"

struct optlease_client {
  std::unique_ptr<optlease::Client> impl;
  pid_t owner_pid = 0;
  std::string last_error;
};

namespace {

using optlease::copy_in;
using optlease::copy_out;
using optlease::format;
using optlease::Result;
using optlease::Status;
using optlease::StatusCode;

#define OPTLEASE_SAME(c_name, code) \
  static_assert(static_cast<int>(c_name) == static_cast<int>(code), "frozen numbers")
OPTLEASE_SAME(OPTLEASE_OK, StatusCode::kOk);
OPTLEASE_SAME(OPTLEASE_INVALID_ARGUMENT, StatusCode::kInvalidArgument);
OPTLEASE_SAME(OPTLEASE_NOT_FOUND, StatusCode::kNotFound);
OPTLEASE_SAME(OPTLEASE_ALREADY_EXISTS, StatusCode::kAlreadyExists);
OPTLEASE_SAME(OPTLEASE_NO_SPACE, StatusCode::kNoSpace);
OPTLEASE_SAME(OPTLEASE_PERMISSION, StatusCode::kPermission);
OPTLEASE_SAME(OPTLEASE_CORRUPT, StatusCode::kCorrupt);
OPTLEASE_SAME(OPTLEASE_WRONG_VERSION, StatusCode::kWrongVersion);
OPTLEASE_SAME(OPTLEASE_STALE_EPOCH, StatusCode::kStaleEpoch);
OPTLEASE_SAME(OPTLEASE_STALE_INCARNATION, StatusCode::kStaleIncarnation);
OPTLEASE_SAME(OPTLEASE_STALE_LEASE, StatusCode::kStaleLease);
OPTLEASE_SAME(OPTLEASE_STALE_STEP, StatusCode::kStaleStep);
OPTLEASE_SAME(OPTLEASE_TIMEOUT, StatusCode::kTimeout);
OPTLEASE_SAME(OPTLEASE_BUSY, StatusCode::kBusy);
OPTLEASE_SAME(OPTLEASE_PEER_LOST, StatusCode::kPeerLost);
OPTLEASE_SAME(OPTLEASE_UNSUPPORTED, StatusCode::kUnsupported);
OPTLEASE_SAME(OPTLEASE_IO, StatusCode::kIo);
OPTLEASE_SAME(OPTLEASE_CANCELLED, StatusCode::kCancelled);
OPTLEASE_SAME(OPTLEASE_INTERNAL, StatusCode::kInternal);
OPTLEASE_SAME(OPTLEASE_F32, optlease::DType::kF32);
OPTLEASE_SAME(OPTLEASE_BF16, optlease::DType::kBF16);
OPTLEASE_SAME(OPTLEASE_F16, optlease::DType::kF16);
OPTLEASE_SAME(OPTLEASE_DEVICE_CPU, optlease::DeviceKind::kCpu);
OPTLEASE_SAME(OPTLEASE_DEVICE_CUDA, optlease::DeviceKind::kCuda);
OPTLEASE_SAME(OPTLEASE_NAME_BYTES, optlease::kNameBytes);
OPTLEASE_SAME(OPTLEASE_TENSOR_NAME_BYTES, optlease::kTensorNameBytes);
OPTLEASE_SAME(OPTLEASE_DIMS_MAX, optlease::kTensorDimsMax);
OPTLEASE_SAME(OPTLEASE_USER_BLOB_BYTES_MAX, optlease::kUserBlobBytesMax);
#undef OPTLEASE_SAME

// Sizes in ABI version 1, on every platform with 8-byte pointers. They never change; a struct that
// grows keeps its first size here.
constexpr uint32_t kAttachOptionsBytes1 = 24;
constexpr uint32_t kSpaceInfoBytes1 = 96;
constexpr uint32_t kSpaceInfoBytes2 = 104;  // device, device_ordinal
constexpr uint32_t kTensorInfoBytes1 = 280;
constexpr uint32_t kStepOptionsBytes1 = 56;
constexpr uint32_t kStepResultBytes1 = 24;
static_assert(sizeof(void*) == 8 && sizeof(optlease_attach_options) == kAttachOptionsBytes1 &&
                  offsetof(optlease_space_info, device) == kSpaceInfoBytes1 &&
                  sizeof(optlease_space_info) == kSpaceInfoBytes2 &&
                  sizeof(optlease_tensor_info) == kTensorInfoBytes1 &&
                  sizeof(optlease_step_options) == kStepOptionsBytes1 &&
                  sizeof(optlease_step_result) == kStepResultBytes1,
              "appending a field: keep the size of version 1 above and add the new one");

std::string& thread_error() {
  thread_local std::string text;
  return text;
}

optlease_status report(optlease_client* client, const Status& status) {
  if (status) return OPTLEASE_OK;
  thread_error() = status.message();
  if (client != nullptr) client->last_error = status.message();
  return static_cast<optlease_status>(status.code());
}

// `text` is short enough for a string's own storage: it allocates nothing, whatever is wrong.
void report_plainly(optlease_client* client, const char* text) noexcept {
  thread_error() = text;
  if (client != nullptr) client->last_error = text;
}

// Runs `body`, which returns a Status, so that nothing is thrown past the interface.
template <class Body>
optlease_status guarded(optlease_client* client, Body&& body) noexcept {
  try {
    return report(client, body());
  } catch (const std::bad_alloc&) {
    report_plainly(client, "out of memory");
    return OPTLEASE_NO_SPACE;
  } catch (const std::exception& error) {
    try {
      return report(client, optlease::status_of(error));
    } catch (...) {
      report_plainly(client, "out of memory");
      return OPTLEASE_INTERNAL;
    }
  } catch (...) {
    report_plainly(client, "unknown error");
    return OPTLEASE_INTERNAL;
  }
}

// As guarded, for a call on an attached client: refuses null and a forked child.
template <class Body>
optlease_status on_client(optlease_client* client, Body&& body) noexcept {
  if (client == nullptr)
    return guarded(nullptr, [] { return Status{StatusCode::kInvalidArgument, "client is NULL"}; });
  const pid_t pid = ::getpid();
  if (client->owner_pid != pid)
    return guarded(nullptr, [&] {
      return Status{
          StatusCode::kUnsupported,
          format("process %d was forked after process %d attached: a forked child must not "
                 "use its parent's client; attach in the process that trains",
                 static_cast<int>(pid), static_cast<int>(client->owner_pid))};
    });
  return guarded(client, [&] { return body(*client->impl); });
}

template <class T>
Status put(T* out, const char* name, T value) {
  if (out == nullptr) return {StatusCode::kInvalidArgument, format("%s is NULL", name)};
  *out = value;
  return Status::ok();
}

void copy_name(const std::string& name, char* out, size_t bytes) {
  const size_t length = std::min(name.size(), bytes - 1);
  std::memcpy(out, name.data(), length);
  out[length] = '\0';
}

Result<const optlease::SpaceSpec*> space_of(const optlease::Client& client, uint32_t space) {
  const auto& spaces = client.plan().segment.spaces;
  if (space >= spaces.size())
    return Status{StatusCode::kNotFound,
                  format("space %u of job '%s', which has %zu", space,
                         client.plan().segment.job_name.c_str(), spaces.size())};
  return &spaces[space];
}

// A number that the caller may leave to the configuration.
Status read_number(const optlease_step_options& options, uint32_t bit, const char* name,
                   double value, bool zero_allowed, double otherwise, double* out) {
  *out = otherwise;
  if ((options.given & bit) == 0) return Status::ok();
  if (!std::isfinite(value) || value < 0 || (value == 0 && !zero_allowed))
    return {StatusCode::kInvalidArgument,
            format("%s is %g: it must be finite and %s 0", name, value, zero_allowed ? ">=" : ">")};
  *out = value;
  return Status::ok();
}

Status read_ask(const optlease_step_options& options, optlease::StepAsk* ask) {
  constexpr uint32_t kKnown = OPTLEASE_STEP_LR | OPTLEASE_STEP_GRAD_SCALE | OPTLEASE_STEP_MAX_NORM;
  if ((options.given & ~kKnown) != 0)
    return {StatusCode::kUnsupported,
            format("given is 0x%x: this library knows only the bits 0x%x", options.given, kKnown)};
  const double as_configured = std::numeric_limits<double>::quiet_NaN();
  OPTLEASE_TRY(
      read_number(options, OPTLEASE_STEP_LR, "lr", options.lr, true, as_configured, &ask->lr));
  OPTLEASE_TRY(read_number(options, OPTLEASE_STEP_GRAD_SCALE, "grad_scale", options.grad_scale,
                           false, 1.0, &ask->grad_scale));
  OPTLEASE_TRY(read_number(options, OPTLEASE_STEP_MAX_NORM, "max_norm", options.max_norm, true,
                           as_configured, &ask->max_norm));
  if (options.blob == nullptr && options.blob_bytes != 0)
    return {StatusCode::kInvalidArgument,
            format("blob is NULL and blob_bytes is %llu",
                   static_cast<unsigned long long>(options.blob_bytes))};
  if (options.blob_bytes > OPTLEASE_USER_BLOB_BYTES_MAX)
    return {
        StatusCode::kInvalidArgument,
        format("the user blob has %llu bytes, at most %u are kept: keep large state in files of "
               "your own and their names here",
               static_cast<unsigned long long>(options.blob_bytes), OPTLEASE_USER_BLOB_BYTES_MAX)};
  if (options.blob != nullptr)
    ask->blob = std::string_view(static_cast<const char*>(options.blob), options.blob_bytes);
  return Status::ok();
}

}  // namespace

uint32_t optlease_abi_version(void) { return OPTLEASE_ABI_VERSION; }

const char* optlease_status_name(optlease_status status) {
  return optlease::name_of(static_cast<StatusCode>(status));
}

const char* optlease_last_error(const optlease_client* client) {
  // A forked child leaves its parent's client as it is: what went wrong there is the thread's word.
  const bool own = client != nullptr && client->owner_pid == ::getpid();
  return own ? client->last_error.c_str() : thread_error().c_str();
}

optlease_status optlease_attach(const optlease_attach_options* options, optlease_client** out) {
  return guarded(nullptr, [&]() -> Status {
    if (out == nullptr) return {StatusCode::kInvalidArgument, "out is NULL"};
    *out = nullptr;
    optlease_attach_options ours{};
    ours.rank = OPTLEASE_RANK_FROM_ENVIRONMENT;
    if (options != nullptr)
      OPTLEASE_TRY(copy_in(options, kAttachOptionsBytes1, "optlease_attach_options", &ours));
    const auto job = optlease::job_name_or_environment(ours.job);
    if (!job) return job.status();
    const auto rank = optlease::rank_or_environment(ours.rank);
    if (!rank) return rank.status();
    auto client = std::make_unique<optlease_client>();
    auto impl = optlease::Client::attach(job.value(), rank.value(), ours.timeout_ms);
    if (!impl) return impl.status();
    client->impl = std::move(impl.value());
    client->owner_pid = ::getpid();
    *out = client.release();
    return Status::ok();
  });
}

optlease_status optlease_detach(optlease_client* client) {
  if (client == nullptr) return OPTLEASE_OK;
  const optlease_status status = on_client(client, [](optlease::Client& impl) {
    impl.say_detach();
    return Status::ok();
  });
  // A forked child leaves the client alone: its sockets have threads that exist in the parent only.
  if (status != OPTLEASE_UNSUPPORTED) delete client;
  return status;
}

optlease_status optlease_rank(optlease_client* client, uint32_t* rank) {
  return on_client(client, [&](optlease::Client& impl) { return put(rank, "rank", impl.rank()); });
}

optlease_status optlease_world_size(optlease_client* client, uint32_t* world_size) {
  return on_client(client, [&](optlease::Client& impl) {
    return put(world_size, "world_size", impl.plan().segment.world_size);
  });
}

optlease_status optlease_job_steps(optlease_client* client, int64_t* steps) {
  return on_client(client,
                   [&](optlease::Client& impl) { return put(steps, "steps", impl.plan().steps); });
}

optlease_status optlease_space_count(optlease_client* client, uint32_t* count) {
  return on_client(client, [&](optlease::Client& impl) {
    return put(count, "count", static_cast<uint32_t>(impl.plan().segment.spaces.size()));
  });
}

optlease_status optlease_space(optlease_client* client, uint32_t space, optlease_space_info* info) {
  return on_client(client, [&](optlease::Client& impl) -> Status {
    const auto found = space_of(impl, space);
    if (!found) return found.status();
    const optlease::SpaceSpec& spec = *found.value();
    const int member = optlease::member_index(spec, optlease::Rank{impl.rank()});
    optlease_space_info ours{};
    ours.param_dtype = static_cast<uint32_t>(spec.param_dtype);
    ours.grad_dtype = static_cast<uint32_t>(spec.grad_dtype);
    ours.member_count = static_cast<uint32_t>(spec.members.size());
    ours.member_index = member >= 0 ? static_cast<uint32_t>(member) : OPTLEASE_NOT_A_MEMBER;
    ours.tensor_count = static_cast<uint32_t>(spec.tensors.size());
    ours.elements = spec.elements;
    copy_name(spec.name, ours.name, sizeof ours.name);
    ours.device = static_cast<uint32_t>(impl.place().kind);
    ours.device_ordinal = impl.place().ordinal;
    return copy_out(ours, kSpaceInfoBytes1, "optlease_space_info", info);
  });
}

optlease_status optlease_tensor(optlease_client* client, uint32_t space, uint32_t tensor,
                                optlease_tensor_info* info) {
  return on_client(client, [&](optlease::Client& impl) -> Status {
    const auto found = space_of(impl, space);
    if (!found) return found.status();
    const auto& tensors = found.value()->tensors;
    if (tensor >= tensors.size())
      return {StatusCode::kNotFound, format("tensor %u of space '%s', which has %zu", tensor,
                                            found.value()->name.c_str(), tensors.size())};
    const optlease::TensorSpec& spec = tensors[tensor];
    optlease_tensor_info ours{};
    ours.dims = static_cast<uint32_t>(spec.shape.size());
    std::copy(spec.shape.begin(), spec.shape.end(), ours.shape);
    ours.flat_offset = spec.flat_offset;
    ours.elements = spec.elements;
    copy_name(spec.name, ours.name, sizeof ours.name);
    return copy_out(ours, kTensorInfoBytes1, "optlease_tensor_info", info);
  });
}

const void* optlease_params(optlease_client* client, uint32_t space) {
  const void* found = nullptr;
  on_client(client, [&](optlease::Client& impl) {
    const auto data = impl.params(space);
    if (data) found = data.value();
    return data.status();
  });
  return found;
}

void* optlease_grads(optlease_client* client, uint32_t space) {
  void* found = nullptr;
  on_client(client, [&](optlease::Client& impl) {
    const auto data = impl.grads(space);
    if (data) found = data.value();
    return data.status();
  });
  return found;
}

optlease_status optlease_step(optlease_client* client, const optlease_step_options* options,
                              optlease_step_result* result) {
  return on_client(client, [&](optlease::Client& impl) -> Status {
    optlease_step_options ours{};
    if (options != nullptr)
      OPTLEASE_TRY(copy_in(options, kStepOptionsBytes1, "optlease_step_options", &ours));
    // Checked before the step is asked for: a step must not be lost for want of a place to tell it.
    if (result != nullptr)
      if (const auto bytes =
              optlease::caller_bytes(result, kStepResultBytes1, "optlease_step_result");
          !bytes)
        return bytes.status();
    optlease::StepAsk ask;
    OPTLEASE_TRY(read_ask(ours, &ask));
    const auto reply =
        impl.step(ask, ours.timeout_ms != 0 ? ours.timeout_ms : OPTLEASE_STEP_TIMEOUT_MS_DEFAULT);
    if (!reply) return reply.status();
    if (result == nullptr) return Status::ok();
    optlease_step_result told{};
    told.skipped = reply.value().skipped;
    told.step = reply.value().step;
    told.grad_norm = reply.value().grad_norm;
    return copy_out(told, kStepResultBytes1, "optlease_step_result", result);
  });
}

optlease_status optlease_prepare(optlease_client* client, int64_t step) {
  return on_client(client, [&](optlease::Client& impl) { return impl.prepare(step); });
}

optlease_status optlease_last_step(optlease_client* client, int64_t* step) {
  return on_client(client,
                   [&](optlease::Client& impl) { return put(step, "step", impl.last_step()); });
}

optlease_status optlease_user_blob(optlease_client* client, void* buffer, size_t* bytes) {
  return on_client(client, [&](optlease::Client& impl) -> Status {
    if (bytes == nullptr) return {StatusCode::kInvalidArgument, "bytes is NULL"};
    const size_t room = *bytes;
    const std::string& blob = impl.blob();
    *bytes = blob.size();
    if (buffer == nullptr || blob.empty()) return Status::ok();
    if (room < blob.size())
      return {StatusCode::kInvalidArgument,
              format("the user blob has %zu bytes, the buffer %zu", blob.size(), room)};
    std::memcpy(buffer, blob.data(), blob.size());
    return Status::ok();
  });
}
