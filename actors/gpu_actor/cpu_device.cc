#include "actors/gpu_actor/cpu_device.h"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>

#include "kernels/checksum.h"

namespace optlease {
namespace {

uint64_t now_ns() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

}  // namespace

Result<std::unique_ptr<Device>> CpuDevice::create() {
  const int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (fd < 0) return Status(StatusCode::kIo, format("eventfd: %s", std::strerror(errno)));
  std::unique_ptr<CpuDevice> device(new CpuDevice(fd));
  OPTLEASE_TRY(device->start());
  return std::unique_ptr<Device>(std::move(device));
}

CpuDevice::CpuDevice(int completion_fd) : completion_fd_(completion_fd) {}

// Not in the constructor: what was started is ended by the destructor.
Status CpuDevice::start() {
  try {
    for (Stream& stream : streams_) stream.thread = std::thread([this, &stream] { run(stream); });
  } catch (const std::system_error& error) {
    return {StatusCode::kNoSpace, format("a stream's thread cannot be started: %s", error.what())};
  }
  return Status::ok();
}

CpuDevice::~CpuDevice() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  for (Stream& stream : streams_) stream.more.notify_all();
  for (Stream& stream : streams_) {
    if (stream.thread.joinable()) stream.thread.join();
  }
  for (char* buffer : staging_) munmap(buffer, staging_bytes_each_);
  close(completion_fd_);
}

void CpuDevice::run(Stream& stream) {
  while (true) {
    std::function<void()> work;
    {
      std::unique_lock lock(mutex_);
      stream.more.wait(lock, [&] { return stopping_ || !stream.work.empty(); });
      if (stream.work.empty()) return;
      work = std::move(stream.work.front());
      stream.work.pop_front();
    }
    work();
  }
}

void CpuDevice::enqueue(StreamKind kind, std::function<void()> work) {
  Stream& stream = at(kind);
  {
    std::lock_guard lock(mutex_);
    stream.work.push_back(std::move(work));
  }
  stream.more.notify_one();
}

Status CpuDevice::allocate_staging(uint32_t count, uint64_t bytes_each) {
  OPTLEASE_CHECK(staging_.empty(), "staging is made once; %zu buffers exist", staging_.size());
  staging_bytes_each_ = bytes_each;
  for (uint32_t i = 0; i < count && bytes_each > 0; ++i) {
    // Populated now: the first step must not be the one that pays for, or fails on, these pages.
    void* buffer = mmap(nullptr, bytes_each, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (buffer == MAP_FAILED) {
      return {
          StatusCode::kNoSpace,
          format("staging buffer %u of %u, %llu bytes each: %s; lower offload.chunk_size_mb, "
                 "window_chunks or staging_buffers",
                 i + 1, count, static_cast<unsigned long long>(bytes_each), std::strerror(errno))};
    }
    staging_.push_back(static_cast<char*>(buffer));
    staging_bytes_ += bytes_each;
  }
  return Status::ok();
}

char* CpuDevice::staging(uint32_t buffer) {
  OPTLEASE_CHECK(buffer < staging_.size(), "staging buffer %u of %zu", buffer, staging_.size());
  return staging_[buffer];
}

void CpuDevice::copy(StreamKind stream, void* destination, const void* source, uint64_t bytes) {
  count_copy(stream != StreamKind::kCopyOut, bytes);
  (stream == StreamKind::kCopyOut ? bytes_out_ : bytes_in_) += bytes;
  enqueue(stream, [=] { std::memcpy(destination, source, bytes); });
}

void CpuDevice::copy_within(void* destination, const void* source, uint64_t bytes) {
  enqueue(StreamKind::kCompute, [=] { std::memcpy(destination, source, bytes); });
}

void CpuDevice::update(const AdamChunk& chunk, const AdamFactors& factors, ChunkSums* sums) {
  enqueue(StreamKind::kCompute, [this, chunk, factors, sums] {
    const uint64_t start = now_ns();
    const ChunkSums added = adam_update(chunk, factors);
    sums->read += added.read;
    sums->written += added.written;
    sums->grad += added.grad;
    kernel_ns_ += now_ns() - start;
  });
}

void CpuDevice::republish(const AdamChunk& chunk, ChunkSums* sums) {
  enqueue(StreamKind::kCompute, [chunk, sums] {
    const uint64_t read = optlease::republish(chunk);
    sums->read += read;
    sums->written += read;
  });
}

void CpuDevice::sum_gradient(const float* grad, uint64_t elements, uint64_t first_word,
                             ChunkSums* sums) {
  enqueue(StreamKind::kCompute, [=] { sums->grad += checksum_words(grad, elements, first_word); });
}

void CpuDevice::run_on_host(StreamKind stream, std::function<void()> work) {
  enqueue(stream, std::move(work));
}

Ticket CpuDevice::signal(StreamKind kind) {
  Stream& stream = at(kind);
  const Ticket ticket{kind, ++stream.issued};
  enqueue(kind, [this, &stream, ticket] {
    {
      std::lock_guard lock(mutex_);
      stream.done.store(ticket.value, std::memory_order_release);
    }
    ticket_reached_.notify_all();
    const uint64_t one = 1;
    // A full counter already means "readable": EAGAIN loses nothing.
    [[maybe_unused]] const ssize_t written = write(completion_fd_, &one, sizeof one);
  });
  return ticket;
}

void CpuDevice::wait(StreamKind waiter, Ticket ticket) {
  const Stream& source = at(ticket.stream);
  enqueue(waiter, [this, &source, ticket] {
    std::unique_lock lock(mutex_);
    ticket_reached_.wait(lock, [&] { return source.done.load() >= ticket.value; });
  });
}

bool CpuDevice::reached(Ticket ticket) {
  return at(ticket.stream).done.load(std::memory_order_acquire) >= ticket.value;
}

void CpuDevice::drain_completions() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(completion_fd_, &count, sizeof count);
}

DeviceCounters CpuDevice::counters() const {
  return {bytes_in_.load(), bytes_out_.load(), 0, static_cast<double>(kernel_ns_.load()) * 1e-9};
}

}  // namespace optlease
