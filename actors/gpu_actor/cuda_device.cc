#include "actors/gpu_actor/cuda_device.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "actors/gpu_actor/cuda_status.h"
#include "actors/gpu_actor/cuda_wait.h"
#include "actors/gpu_actor/leave_process.h"
#include "actors/runtime/clock.h"
#include "shm/contract/limits.h"

namespace optlease {
namespace {

constexpr uint32_t kEventCount = 256;          // made at once; a pipeline holds three a window
constexpr uint64_t kBounceBytes = 4ull << 20;  // a direction
constexpr uint64_t kStagingAlignBytes = 256;
constexpr uint32_t kResultCount = 2 * kLeasesInFlightMax * kWindowChunksMax;

// On the driver's thread. A full counter already means "readable": EAGAIN loses nothing.
void wake(void* fd) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written =
      write(static_cast<int>(reinterpret_cast<intptr_t>(fd)), &one, sizeof one);
}

}  // namespace

Result<std::unique_ptr<Device>> CudaDevice::create(Rank rank, const CudaDeviceOptions& options) {
  std::unique_ptr<CudaDevice> device(new CudaDevice(options));
  OPTLEASE_TRY(device->open(rank));
  return std::unique_ptr<Device>(std::move(device));
}

Status CudaDevice::open(Rank rank) {
  completion_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (completion_fd_ < 0) return {StatusCode::kIo, format("eventfd: %s", std::strerror(errno))};
  int count = 0;
  OPTLEASE_TRY(cuda_status(cudaGetDeviceCount(&count), "cudaGetDeviceCount",
                           "ranks.device is 'cuda': this machine needs a GPU and its driver"));
  if (count == 0) {
    return {StatusCode::kUnsupported, "ranks.device is 'cuda', and no GPU is visible here"};
  }
  const int ordinal = static_cast<int>(rank.value % static_cast<uint32_t>(count));
  const std::string which = format(" (rank %u, GPU %d of %d)", rank.value, ordinal, count);
  OPTLEASE_TRY(cuda_status(cudaSetDevice(ordinal), "cudaSetDevice" + which));
  device_ = ordinal;
  int multiprocessors = 0;
  OPTLEASE_TRY(
      cuda_status(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, ordinal),
                  "cudaDeviceGetAttribute" + which));
  multiprocessors_ = static_cast<uint32_t>(multiprocessors);
  char address[32] = {};
  OPTLEASE_TRY(cuda_status(cudaDeviceGetPCIBusId(address, sizeof address, ordinal),
                           "cudaDeviceGetPCIBusId" + which));
  pci_address_ = address;
  OPTLEASE_TRY(cuda_status(preload_adam_cuda(), "loading the update kernels" + which,
                           "this build has code for compute capability 8.0, 9.0 and 10.0"));
  OPTLEASE_TRY(open_streams());
  return open_memory();
}

Status CudaDevice::open_streams() {
  for (Stream& stream : streams_) {
    for (cudaStream_t* made : {&stream.work, &stream.news}) {
      OPTLEASE_TRY(cuda_status(cudaStreamCreateWithFlags(made, cudaStreamNonBlocking),
                               "cudaStreamCreateWithFlags"));
    }
  }
  for (uint32_t i = 0; i < kEventCount; ++i) {
    cudaEvent_t event = nullptr;
    OPTLEASE_TRY(cuda_status(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                             "cudaEventCreateWithFlags"));
    spare_events_.push_back(event);
  }
  return Status::ok();
}

Status CudaDevice::open_memory() {
  OPTLEASE_TRY(cuda_status(cudaMalloc(reinterpret_cast<void**>(&scratch_), sizeof *scratch_),
                           format("cudaMalloc of %zu bytes", sizeof *scratch_)));
  OPTLEASE_TRY(cuda_status(prepare_adam_cuda(target()), "preparing the update kernels"));
  OPTLEASE_TRY(cuda_status(cudaHostAlloc(reinterpret_cast<void**>(&results_),
                                         sizeof *results_ * kResultCount, cudaHostAllocMapped),
                           format("cudaHostAlloc of %zu bytes", sizeof *results_ * kResultCount)));
  for (BounceBuffer* bounce : {&bounce_in_, &bounce_out_}) {
    OPTLEASE_TRY(cuda_status(
        bounce->allocate(kBounceBytes),
        format("cudaHostAlloc of %llu bytes", static_cast<unsigned long long>(kBounceBytes)),
        "look at RLIMIT_MEMLOCK and the cgroup's memory limit"));
  }
  return Status::ok();
}

// What the driver has not finished calls functions of this object and copies from and to memory
// that its owners are about to unmap.
Status CudaDevice::finish() {
  OPTLEASE_TRY(failure_);
  const Deadline deadline = Deadline::after_ms(static_cast<int64_t>(options_.finish_ms));
  for (Stream& stream : streams_) {
    for (cudaStream_t open : {stream.work, stream.news}) {
      if (open == nullptr) continue;
      const auto left = static_cast<uint64_t>(deadline.remaining_ms());
      OPTLEASE_TRY(wait_for_stream(open, left, "the end of what is enqueued"));
    }
  }
  return Status::ok();
}

CudaDevice::~CudaDevice() {
  if (const Status finished = finish(); !finished.is_ok()) leave_process(finished);
  arena_.reset();
  for (Stream& stream : streams_) {
    for (cudaEvent_t event : stream.recorded) (void)cudaEventDestroy(event);
    for (cudaStream_t open : {stream.work, stream.news}) {
      if (open != nullptr) (void)cudaStreamDestroy(open);
    }
  }
  for (cudaEvent_t event : spare_events_) (void)cudaEventDestroy(event);
  if (staging_ != nullptr) (void)cudaFree(staging_);
  if (scratch_ != nullptr) (void)cudaFree(scratch_);
  if (results_ != nullptr) (void)cudaFreeHost(results_);
  if (completion_fd_ >= 0) close(completion_fd_);
  (void)cudaGetLastError();
}

Status CudaDevice::allocate_staging(uint32_t count, uint64_t bytes_each) {
  OPTLEASE_CHECK(staging_ == nullptr, "staging is made once; %u buffers exist", staging_count_);
  if (count == 0 || bytes_each == 0) return Status::ok();
  const uint64_t stride =
      (bytes_each + kStagingAlignBytes - 1) / kStagingAlignBytes * kStagingAlignBytes;
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, stride * count);
  if (error != cudaSuccess) {
    size_t free_bytes = 0, total_bytes = 0;
    (void)cudaMemGetInfo(&free_bytes, &total_bytes);
    return cuda_status(
        error,
        format("cudaMalloc of %u staging buffers, %llu bytes each, with %zu of %zu "
               "bytes free on GPU %d",
               count, static_cast<unsigned long long>(stride), free_bytes, total_bytes, device_),
        "lower offload.chunk_size_mb, window_chunks or staging_buffers");
  }
  staging_ = static_cast<char*>(memory);
  staging_stride_ = stride;
  staging_count_ = count;
  return Status::ok();
}

char* CudaDevice::staging(uint32_t buffer) {
  OPTLEASE_CHECK(buffer < staging_count_, "staging buffer %u of %u", buffer, staging_count_);
  return staging_ + buffer * staging_stride_;
}

Status CudaDevice::adopt_host_memory(const HostMemory& memory) {
  OPTLEASE_CHECK(arena_ == nullptr, "host memory is adopted once");
  if (memory.slot_count == 0) return Status::ok();
  if (memory.base == nullptr || reinterpret_cast<uintptr_t>(memory.base) % kPageBytes != 0 ||
      memory.slot_bytes == 0 || memory.slot_bytes % kPageBytes != 0) {
    return {StatusCode::kInvalidArgument, format("slots of %llu bytes at %p are not whole pages",
                                                 static_cast<unsigned long long>(memory.slot_bytes),
                                                 static_cast<void*>(memory.base))};
  }
  arena_ = std::make_unique<PinnedArena>(memory, device_, options_.pins);
  return Status::ok();
}

PinProgress CudaDevice::pinning() const {
  return arena_ == nullptr ? PinProgress{} : arena_->progress();
}

HostPins CudaDevice::host_pins() const {
  const PinProgress now = pinning();
  return {now.pinned_bytes, now.refused_bytes};
}

// True where the call succeeded; else the device has failed and does nothing more.
bool CudaDevice::works(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return true;
  const Status failed =
      cuda_status(error, format("%s on GPU %d", call, device_),
                  "the actor ends and its successor begins anew; if this comes back, look at the "
                  "driver's log for Xid messages");
  if (failure_.is_ok()) failure_ = failed;
  return false;
}

void CudaDevice::copy(StreamKind kind, void* destination, const void* source, uint64_t bytes) {
  OPTLEASE_CHECK(kind != StreamKind::kCompute, "copies of %llu bytes go on copy streams",
                 static_cast<unsigned long long>(bytes));
  if (bytes == 0 || !failure_.is_ok()) return;
  const bool in = kind == StreamKind::kCopyIn;
  count_copy(in, bytes);
  (in ? counters_.bytes_in : counters_.bytes_out) += bytes;
  char* to = static_cast<char*>(destination);
  const char* from = static_cast<const char*>(source);
  // A slot that is larger than a pinned piece is several of them.
  for (uint64_t done = 0; done < bytes;) {
    const char* host = (in ? from : to) + done;
    const uint64_t left = bytes - done;
    const uint64_t part = arena_ == nullptr ? left : arena_->in_one_piece(host, left);
    copy_piece(kind, to + done, from + done, part);
    done += part;
  }
}

void CudaDevice::copy_piece(StreamKind kind, char* destination, const char* source,
                            uint64_t bytes) {
  if (!failure_.is_ok()) return;
  const bool in = kind == StreamKind::kCopyIn;
  const cudaStream_t stream = at(kind).work;
  if (arena_ != nullptr && arena_->covers(in ? source : destination, bytes)) {
    works(cudaMemcpyAsync(destination, source, bytes,
                          in ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, stream),
          in ? "cudaMemcpyAsync to the GPU" : "cudaMemcpyAsync from the GPU");
    return;
  }
  counters_.bounced_bytes += bytes;
  count_bounce(bytes);
  works(in ? bounce_in_.copy_in(stream, host_calls_, destination, source, bytes)
           : bounce_out_.copy_out(stream, host_calls_, destination, source, bytes),
        "a copy through the bounce buffer");
}

void CudaDevice::copy_within(void* destination, const void* source, uint64_t bytes) {
  if (bytes == 0 || !failure_.is_ok()) return;
  works(cudaMemcpyAsync(destination, source, bytes, cudaMemcpyDeviceToDevice,
                        at(StreamKind::kCompute).work),
        "cudaMemcpyAsync within the GPU");
}

AdamCudaTarget CudaDevice::target() {
  return {at(StreamKind::kCompute).work, scratch_, multiprocessors_};
}

AdamCudaResult* CudaDevice::await(ChunkSums* sums) {
  OPTLEASE_CHECK(awaited_.size() < kResultCount, "%zu chunks are in flight", awaited_.size());
  const auto slot = static_cast<uint32_t>(launches_++ % kResultCount);
  awaited_.push_back({at(StreamKind::kCompute).issued + 1, slot, sums});
  return &results_[slot];
}

void CudaDevice::update(const AdamChunk& chunk, const AdamFactors& factors, ChunkSums* sums) {
  if (!failure_.is_ok()) return;
  works(adam_update_cuda(target(), chunk, factors, await(sums)), "launching the update kernel");
}

void CudaDevice::republish(const AdamChunk& chunk, ChunkSums* sums) {
  if (!failure_.is_ok()) return;
  works(republish_cuda(target(), chunk, await(sums)), "launching the republish kernel");
}

void CudaDevice::sum_gradient(const float* grad, uint64_t elements, uint64_t first_word,
                              ChunkSums* sums) {
  if (!failure_.is_ok()) return;
  works(sum_gradient_cuda(target(), grad, elements, first_word, await(sums)),
        "launching the kernel that sums gradients");
}

void CudaDevice::run_on_host(StreamKind stream, std::function<void()> work) {
  if (!failure_.is_ok()) return;
  works(host_calls_.enqueue(at(stream).work, std::move(work)), "cudaLaunchHostFunc");
}

Ticket CudaDevice::signal(StreamKind kind) {
  Stream& stream = at(kind);
  if (!failure_.is_ok()) return {kind, ++stream.issued};
  if (spare_events_.empty()) {
    cudaEvent_t event = nullptr;
    works(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    spare_events_.push_back(event);
  }
  const cudaEvent_t event = spare_events_.back();
  spare_events_.pop_back();
  stream.recorded.push_back(event);
  // Not on the stream of the copies: a host function there would hold up the next one.
  void* fd = reinterpret_cast<void*>(static_cast<intptr_t>(completion_fd_));
  if (works(cudaEventRecord(event, stream.work), "cudaEventRecord") &&
      works(cudaStreamWaitEvent(stream.news, event, 0), "cudaStreamWaitEvent")) {
    works(cudaLaunchHostFunc(stream.news, wake, fd), "cudaLaunchHostFunc");
  }
  return {kind, ++stream.issued};
}

void CudaDevice::wait(StreamKind waiter, Ticket ticket) {
  const Stream& source = at(ticket.stream);
  OPTLEASE_CHECK(ticket.value <= source.issued, "ticket %llu of %llu",
                 static_cast<unsigned long long>(ticket.value),
                 static_cast<unsigned long long>(source.issued));
  if (ticket.value <= source.done || !failure_.is_ok()) return;
  const cudaEvent_t event = source.recorded[ticket.value - source.done - 1];
  works(cudaStreamWaitEvent(at(waiter).work, event, 0), "cudaStreamWaitEvent");
}

bool CudaDevice::reached(Ticket ticket) {
  Stream& stream = at(ticket.stream);
  if (ticket.value > stream.done) look(stream);
  if (ticket.value > stream.done) return false;
  // What waited for the compute stream shows that it is as far, too. Also where a question about
  // another ticket, answered with no, has already seen this one: its sums are not delivered yet.
  if (ticket.stream != StreamKind::kCompute) look(at(StreamKind::kCompute));
  deliver_sums();
  return failure_.is_ok();
}

void CudaDevice::look(Stream& stream) {
  while (failure_.is_ok() && !stream.recorded.empty()) {
    const cudaError_t error = query_event(stream.recorded.front());
    if (error == cudaErrorNotReady) return;
    if (!works(error, "cudaEventQuery")) return;
    spare_events_.push_back(stream.recorded.front());
    stream.recorded.pop_front();
    ++stream.done;
  }
}

void CudaDevice::deliver_sums() {
  const uint64_t done = at(StreamKind::kCompute).done;
  while (!awaited_.empty() && awaited_.front().ticket <= done) {
    const AdamCudaResult& result = results_[awaited_.front().slot];
    awaited_.front().into->read += result.read;
    awaited_.front().into->written += result.written;
    awaited_.front().into->grad += result.grad;
    counters_.kernel_seconds += static_cast<double>(result.kernel_ns) * 1e-9;
    awaited_.pop_front();
  }
}

DeviceMemoryUse CudaDevice::memory_use() const {
  size_t free_bytes = 0, total_bytes = 0;
  if (cudaMemGetInfo(&free_bytes, &total_bytes) != cudaSuccess) {
    (void)cudaGetLastError();  // a number that is not known, and no failure of the streams
    return {};
  }
  return {total_bytes - free_bytes, total_bytes};
}

void CudaDevice::drain_completions() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(completion_fd_, &count, sizeof count);
}

}  // namespace optlease
