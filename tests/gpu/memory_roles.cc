#include "tests/gpu/memory_roles.h"

#include <cuda_runtime_api.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "actors/device_memory/device_memory.h"
#include "actors/gpu_actor/rank_buffers.h"
#include "actors/runtime/clock.h"

namespace optlease {
namespace {

constexpr uint64_t kPieceBytes = 64ull << 20;

// Each role returns its exit code; words go to stderr.
#define ROLE_CHECK(condition, ...)                                        \
  do {                                                                    \
    if (!(condition)) {                                                   \
      std::fprintf(stderr, "memory_test:%d: %s: ", __LINE__, #condition); \
      std::fprintf(stderr, __VA_ARGS__);                                  \
      std::fputc('\n', stderr);                                           \
      return 1;                                                           \
    }                                                                     \
  } while (false)

// The word at `index` of a buffer filled with `seed`.
uint64_t word_at(uint64_t seed, uint64_t index) {
  uint64_t z = seed * 0x9e3779b97f4a7c15ull + index;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  return z ^ (z >> 27);
}

void fill_piece(std::vector<uint64_t>* piece, uint64_t seed, uint64_t first) {
  for (size_t i = 0; i < piece->size(); ++i) (*piece)[i] = word_at(seed, first + i);
}

// Visits a buffer of `bytes` (a multiple of 8) piece by piece.
template <class Visit>
Status for_each_piece(uint64_t bytes, Visit visit) {
  for (uint64_t at = 0; at < bytes; at += kPieceBytes) {
    OPTLEASE_TRY(visit(at, std::min(kPieceBytes, bytes - at)));
  }
  return Status::ok();
}

Status fill(const DeviceMemory& memory, void* device, uint64_t bytes, uint64_t seed) {
  return for_each_piece(bytes, [&](uint64_t at, uint64_t size) {
    std::vector<uint64_t> piece(size / 8);
    fill_piece(&piece, seed, at / 8);
    return memory.copy_to_device(static_cast<char*>(device) + at, piece.data(), size);
  });
}

Status expect_filled(const DeviceMemory& memory, const void* device, uint64_t bytes,
                     uint64_t seed) {
  return for_each_piece(bytes, [&](uint64_t at, uint64_t size) -> Status {
    std::vector<uint64_t> read(size / 8), wanted(size / 8);
    OPTLEASE_TRY(memory.copy_to_host(read.data(), static_cast<const char*>(device) + at, size));
    fill_piece(&wanted, seed, at / 8);
    if (read == wanted) return Status::ok();
    const auto differing = std::mismatch(read.begin(), read.end(), wanted.begin());
    const auto index = static_cast<uint64_t>(differing.first - read.begin());
    return {StatusCode::kCorrupt, format("word %llu is %016llx, not %016llx",
                                         static_cast<unsigned long long>(at / 8 + index),
                                         static_cast<unsigned long long>(*differing.first),
                                         static_cast<unsigned long long>(*differing.second))};
  });
}

// Makes the buffer, fills it, puts it into the vault and waits to be killed.
int make_role(const RoleArgs& args) {
  const Result<DeviceMemory> memory = DeviceMemory::open({DeviceKind::kCuda, args.ordinal});
  ROLE_CHECK(memory.is_ok(), "%s", memory.status().text().c_str());
  const Result<UniqueFd> fd = memory.value().create(args.key, args.bytes);
  ROLE_CHECK(fd.is_ok(), "%s", fd.status().text().c_str());
  const auto mapped = memory.value().map(fd.value().get(), args.bytes);
  ROLE_CHECK(mapped.is_ok(), "%s", mapped.status().text().c_str());
  const Status filled = fill(memory.value(), mapped.value().data(), args.bytes, args.seed);
  ROLE_CHECK(filled.is_ok(), "%s", filled.text().c_str());
  const Status put = vault_put(args.vault, args.key, args.bytes, fd.value().get(), kRoleTimeoutMs);
  ROLE_CHECK(put.is_ok(), "%s", put.text().c_str());
  for (;;) ::pause();
}

// Maps the vault's buffer, expects `seed` in it and, with `next`, fills it anew.
int check_role(const RoleArgs& args, bool next) {
  const Result<VaultEntry> entry = vault_get(args.vault, args.key, kRoleTimeoutMs);
  ROLE_CHECK(entry.is_ok(), "%s", entry.status().text().c_str());
  ROLE_CHECK(entry.value().bytes == args.bytes, "the vault says another size");
  const int64_t start_us = now_us();
  const Result<DeviceMemory> memory = DeviceMemory::open({DeviceKind::kCuda, args.ordinal});
  ROLE_CHECK(memory.is_ok(), "%s", memory.status().text().c_str());
  const int64_t opened_us = now_us();
  const auto mapped = memory.value().map(entry.value().fd.get(), args.bytes);
  const int64_t mapped_us = now_us();
  ROLE_CHECK(mapped.is_ok(), "%s", mapped.status().text().c_str());
  std::printf("%s: %.3f GiB: context %.1f ms, import and mapping %.2f ms\n", args.key.c_str(),
              static_cast<double>(args.bytes) / (1ull << 30),
              static_cast<double>(opened_us - start_us) * 1e-3,
              static_cast<double>(mapped_us - opened_us) * 1e-3);
  std::fflush(stdout);
  void* data = mapped.value().data();
  const Status held = expect_filled(memory.value(), data, args.bytes, args.seed);
  ROLE_CHECK(held.is_ok(), "%s", held.text().c_str());
  if (!next) return 0;
  const Status filled = fill(memory.value(), data, args.bytes, args.seed + 1);
  ROLE_CHECK(filled.is_ok(), "%s", filled.text().c_str());
  ::raise(SIGKILL);
  return 1;
}

// On a machine with several GPUs: the vault's memory lies on another one than this process's.
int refuse_place_role(const RoleArgs& args) {
  const Result<VaultEntry> entry = vault_get(args.vault, args.key, kRoleTimeoutMs);
  ROLE_CHECK(entry.is_ok(), "%s", entry.status().text().c_str());
  const Result<DeviceMemory> memory = DeviceMemory::open({DeviceKind::kCuda, args.ordinal});
  ROLE_CHECK(memory.is_ok(), "%s", memory.status().text().c_str());
  const Status mapped = memory.value().map(entry.value().fd.get(), args.bytes).status();
  ROLE_CHECK(mapped.code() == StatusCode::kInvalidArgument, "%s", mapped.text().c_str());
  ROLE_CHECK(mapped.message().find("CUDA_VISIBLE_DEVICES") != std::string::npos, "%s",
             mapped.text().c_str());
  return 0;
}

// New memory is zero, although the same memory was just full of ones.
int zero_role(const RoleArgs& args) {
  const Result<DeviceMemory> opened = DeviceMemory::open({DeviceKind::kCuda, 0});
  ROLE_CHECK(opened.is_ok(), "%s", opened.status().text().c_str());
  const DeviceMemory& memory = opened.value();
  for (int life = 0; life < 3; ++life) {
    const Result<UniqueFd> fd = memory.create("zero", args.bytes);
    ROLE_CHECK(fd.is_ok(), "%s", fd.status().text().c_str());
    const auto mapped = memory.map(fd.value().get(), args.bytes);
    ROLE_CHECK(mapped.is_ok(), "%s", mapped.status().text().c_str());
    const Status zero = for_each_piece(args.bytes, [&](uint64_t at, uint64_t size) -> Status {
      char* place = static_cast<char*>(mapped.value().data()) + at;
      std::vector<char> bytes(size, 1);
      OPTLEASE_TRY(memory.copy_to_host(bytes.data(), place, size));
      if (bytes != std::vector<char>(size, 0)) return {StatusCode::kCorrupt, "not zero"};
      bytes.assign(size, -1);
      return memory.copy_to_device(place, bytes.data(), size);
    });
    ROLE_CHECK(zero.is_ok(), "life %d: %s", life, zero.text().c_str());
  }
  return 0;
}

// What cannot be mapped or made is refused in words, and nothing sticks.
int refuse_role(const RoleArgs&) {
  const Result<DeviceMemory> opened = DeviceMemory::open({DeviceKind::kCuda, 0});
  ROLE_CHECK(opened.is_ok(), "%s", opened.status().text().c_str());
  const DeviceMemory& memory = opened.value();
  const uint64_t unit = memory.allocation_bytes(1);
  const Result<UniqueFd> fd = memory.create("small", unit);
  ROLE_CHECK(fd.is_ok(), "%s", fd.status().text().c_str());
  const Status large = memory.map(fd.value().get(), unit + 1).status();
  std::printf("too small: %s\n", large.text().c_str());
  ROLE_CHECK(!large.is_ok(), "%llu bytes of %llu were mapped",
             static_cast<unsigned long long>(2 * unit), static_cast<unsigned long long>(unit));
  const Result<UniqueFd> memfd = create_memfd("host", 2 * unit);
  ROLE_CHECK(memfd.is_ok(), "%s", memfd.status().text().c_str());
  const Status host = memory.map(memfd.value().get(), unit).status();
  std::printf("a memfd: %s\n", host.text().c_str());
  ROLE_CHECK(!host.is_ok(), "a memfd was mapped as GPU memory");
  const Result<DeviceRoom> room = memory.room();
  ROLE_CHECK(room.is_ok(), "%s", room.status().text().c_str());
  const Status vast = memory.create("vast", room.value().total_bytes + unit).status();
  std::printf("too large: %s\n", vast.text().c_str());
  ROLE_CHECK(vast.code() == StatusCode::kNoSpace, "%s", vast.text().c_str());
  ROLE_CHECK(vast.message().find("'vast'") != std::string::npos, "%s", vast.text().c_str());
  const auto mapped = memory.map(fd.value().get(), unit);
  ROLE_CHECK(mapped.is_ok(), "%s", mapped.status().text().c_str());
  const Status filled = fill(memory, mapped.value().data(), unit, 3);
  ROLE_CHECK(filled.is_ok(), "%s", filled.text().c_str());
  ROLE_CHECK(cudaGetLastError() == cudaSuccess, "an error stuck");
  return 0;
}

// Buffers come and go; the device's free memory is what it was, and the caller's device too.
int leak_role(const RoleArgs& args) {
  ROLE_CHECK(cudaSetDevice(0) == cudaSuccess, "cudaSetDevice");
  const Result<int> last = [] {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess
               ? Result<int>(count - 1)
               : Result<int>(Status(StatusCode::kIo, "cudaGetDeviceCount"));
  }();
  ROLE_CHECK(last.is_ok(), "%s", last.status().text().c_str());
  const Result<DeviceMemory> opened = DeviceMemory::open({DeviceKind::kCuda, last.value()});
  ROLE_CHECK(opened.is_ok(), "%s", opened.status().text().c_str());
  const DeviceMemory& memory = opened.value();
  uint64_t free_before = 0;
  for (int i = 0; i < 60; ++i) {
    const Result<UniqueFd> fd = memory.create("leak", args.bytes);
    ROLE_CHECK(fd.is_ok(), "round %d: %s", i, fd.status().text().c_str());
    const auto first = memory.map(fd.value().get(), args.bytes);
    const auto second = memory.map(fd.value().get(), args.bytes);
    ROLE_CHECK(first.is_ok() && second.is_ok(), "round %d", i);
    if (i == 9) free_before = memory.room().value().free_bytes;
  }
  const Result<UniqueFd> fd = memory.create("leak", args.bytes);
  const uint64_t free_after = memory.room().value().free_bytes;
  std::printf("free with one buffer: round 10 %llu, round 60 %llu\n",
              static_cast<unsigned long long>(free_before),
              static_cast<unsigned long long>(free_after));
  // Other programs may share the GPU; fifty leaked buffers would be far more.
  ROLE_CHECK(free_after + 10 * args.bytes > free_before, "buffers were not given back");
  int device = -1;
  ROLE_CHECK(cudaGetDevice(&device) == cudaSuccess && device == 0, "the current device is %d",
             device);
  return 0;
}

// One rank's buffers. `seed` 0: the first life, which saves the shards of step 5; else the life
// under the next launcher, which must find them.
int rank_role(const RoleArgs& args) {
  JobPlan plan;
  plan.segment.job_name = "gpu-memory";
  plan.segment.world_size = 1;
  plan.device = "cuda";
  SpaceSpec space;
  space.name = "dense";
  space.members = {Rank(0)};
  space.param_dtype = space.grad_dtype = DType::kBF16;
  TensorSpec tensor;
  tensor.name = "w";
  tensor.shape = {args.bytes / 4};
  space.tensors.push_back(tensor);
  plan.segment.spaces.push_back(space);
  const Status laid_out = lay_out(&plan.segment, 1 << 20);
  ROLE_CHECK(laid_out.is_ok(), "%s", laid_out.text().c_str());
  Result<DeviceMemory> memory = DeviceMemory::open({DeviceKind::kCuda, 0});
  ROLE_CHECK(memory.is_ok(), "%s", memory.status().text().c_str());
  RankBuffersSetup setup;
  setup.vault_socket = args.vault;
  setup.gradient_segment = args.key;
  setup.timeout_ms = kRoleTimeoutMs;
  setup.home = shard_home_of(DeviceKind::kCuda);
  setup.open_step = args.seed == 0 ? kNoStep : 5;
  Result<RankBuffers> buffers = RankBuffers::open(plan, setup, std::move(memory).value());
  ROLE_CHECK(buffers.is_ok(), "%s", buffers.status().text().c_str());
  RankSpace& mine = buffers.value().spaces().front();
  const DeviceMemory& device = buffers.value().memory();
  if (args.seed != 0) {
    const Status held = expect_filled(device, mine.grad_shard, args.bytes, 77);
    ROLE_CHECK(held.is_ok(), "%s", held.text().c_str());
    return 0;
  }
  const Status filled = fill(device, mine.grad_shard, args.bytes, 77);
  ROLE_CHECK(filled.is_ok(), "%s", filled.text().c_str());
  const int64_t start_us = now_us();
  const Status saved = buffers.value().save_shards(5);
  ROLE_CHECK(saved.is_ok(), "%s", saved.text().c_str());
  std::printf("saving a shard of %.0f MiB took %.1f ms\n",
              static_cast<double>(args.bytes) / (1 << 20),
              static_cast<double>(now_us() - start_us) * 1e-3);
  return 0;
}

}  // namespace

int run_role(const std::string& role, const RoleArgs& args) {
  if (role == "make") return make_role(args);
  if (role == "check") return check_role(args, false);
  if (role == "check-and-fill") return check_role(args, true);
  if (role == "refuse-place") return refuse_place_role(args);
  if (role == "zero") return zero_role(args);
  if (role == "refuse") return refuse_role(args);
  if (role == "leak") return leak_role(args);
  if (role == "rank") return rank_role(args);
  std::fprintf(stderr, "memory_test: no role %s\n", role.c_str());
  return 2;
}

}  // namespace optlease
