#include "tests/gpu/collectives_roles.h"

#include <cuda_runtime_api.h>
#include <fcntl.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>

#include "actors/gpu_actor/gloo_collectives.h"
#include "actors/gpu_actor/nccl_collectives.h"
#include "shm/shared_buffer.h"
#include "tests/gpu/collectives_rank.h"
#include "tests/gpu_actor/group_data.h"
#include "tests/gpu_actor/rank_processes.h"

namespace optlease {

FileBoard::FileBoard(const std::string& folder) {
  const std::string path = folder + "/board";
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  constexpr size_t kBytes = kWords * sizeof(std::atomic<int64_t>);
  OPTLEASE_CHECK(fd && ::ftruncate(fd.get(), kBytes) == 0, "%s", path.c_str());
  void* at = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  OPTLEASE_CHECK(at != MAP_FAILED, "mmap of %s", path.c_str());
  words_ = static_cast<std::atomic<int64_t>*>(at);
}

FileBoard::~FileBoard() { ::munmap(words_, kWords * sizeof(std::atomic<int64_t>)); }

bool FileBoard::await(int word, int64_t at_least) {
  for (int i = 0; i < 15000 && words_[word].load() < at_least; ++i) sleep_ms(2);
  return words_[word].load() >= at_least;
}

namespace {

void require_facts(Collectives* group, uint32_t rank, uint32_t world, uint32_t step) {
  const uint64_t mine[3] = {rank, step, ~0ull};
  std::vector<uint64_t> all(world * 3);
  const Status status = group->all_gather_fixed({step, 0}, mine, sizeof mine, all.data());
  RANK_REQUIRE(status.is_ok(), "%s", status.text().c_str());
  for (uint32_t i = 0; i < world; ++i)
    RANK_REQUIRE(all[3 * i] == i && all[3 * i + 1] == step && all[3 * i + 2] == ~0ull, "%u", i);
}

// One shard a rank: `shard` elements each. Runs until a call fails; counts on the board.
Status reduce_until_failure(Collectives* group, const ShardMap& map, const RankArgs& args,
                            FileBoard* board) {
  const std::vector<uint8_t> needs(map.members.size(), 1);
  GpuBytes grads(elements_of(map) * 2, 0);
  GpuBytes shard(map.ranges[args.rank].size() * 4, 0);
  for (Step step = 1;; ++step) {
    const ReduceScatterCall call{
        {step, 0}, &map, needs, DType::kBF16, grads.data(), reinterpret_cast<float*>(shard.data())};
    const Status status = group->reduce_scatter(call);
    if (!status.is_ok()) return status;
    (*board)[kRounds + static_cast<int>(args.rank)] = step;
  }
}

const ShardMap kBig = map_of({64u << 20, 64u << 20});  // 256 MiB of gradients: some milliseconds

void role_world_of_one(const RankArgs& args) {
  const auto group = make_group(args);
  require_connect(group.get(), args, 1, 1);
  for (const uint64_t elements : {300u, 1u << 20, (40u << 20) + 67})
    for (const DType dtype : kDTypes)
      require_step(group.get(), map_of({elements}), 1, 0, {1}, dtype);
  require_facts(group.get(), 0, 1, 1);
  RANK_REQUIRE(!std::filesystem::exists(args.folder + "/group"), "a world of one touches no file");
  group->abort(1);
  const uint64_t mine = 0;
  uint64_t out;
  const Status status = group->all_gather_fixed({2, 0}, &mine, 8, &out);
  RANK_REQUIRE(status.code() == StatusCode::kCancelled, "%s", status.text().c_str());
  require_connect(group.get(), args, 2, 1);
  require_step(group.get(), map_of({1000}), 3, 0, {1}, DType::kBF16);
}

void role_alone(const RankArgs& args) {
  const auto group = make_group(args);
  std::thread other([&] {
    sleep_ms(100);
    group->abort(1);
  });
  Status status = group->connect(1, Rank(0), 2, kTimeoutMs);
  other.join();
  RANK_REQUIRE(status.code() == StatusCode::kCancelled, "%s", status.text().c_str());
  status = group->connect(1, Rank(0), 2, kTimeoutMs);
  RANK_REQUIRE(status.code() == StatusCode::kCancelled, "%s", status.text().c_str());
  status = group->connect(2, Rank(0), 2, 300);
  RANK_REQUIRE(status.code() == StatusCode::kTimeout, "%s", status.text().c_str());
  RANK_REQUIRE(status.message().find("for rank 1") != std::string::npos, "%s",
               status.text().c_str());
  require_connect(group.get(), args, 3, 1);
  require_step(group.get(), map_of({5000}), 1, 0, {1}, DType::kF32);
}

void role_one_gpu(const RankArgs& args) {
  RankArgs shared = args;
  shared.rank = 0;
  const auto group = make_group(shared);
  const Status status = group->connect(1, Rank(args.rank), 2, kTimeoutMs);
  // The other one may have left by the time that this one looks.
  RANK_REQUIRE(status.code() == StatusCode::kUnsupported || status.code() == StatusCode::kPeerLost,
               "%s", status.text().c_str());
  FileBoard board(args.folder);
  if (status.code() == StatusCode::kUnsupported) board[kGo] += 1;
}

void role_bits(const RankArgs& args) {
  FileBoard board(args.folder);
  const std::vector<uint64_t> sizes[] = {
      {100, 37}, {0, 130}, {64, 0}, {4096, 4096}, {(1u << 20) + 67, 1u << 20}};
  for (const uint64_t scratch : {uint64_t{256} << 10, uint64_t{64} << 20}) {
    RankArgs here = args;
    here.folder += "/" + std::to_string(scratch);
    std::filesystem::create_directories(here.folder);
    const auto group = make_group(here, scratch);
    require_connect(group.get(), here, 1, 2);
    Step step = 0;
    for (const auto& each : sizes)
      for (const DType dtype : kDTypes)
        for (const uint32_t mask : {3u, 1u, 2u, 0u})
          require_step(group.get(), map_of(each), ++step, args.rank,
                       {static_cast<uint8_t>(mask & 1), static_cast<uint8_t>(mask >> 1)}, dtype);
    ShardMap single = map_of({200});
    single.members[0] = Rank(1);
    require_step(group.get(), single, ++step, args.rank, {1}, DType::kBF16);
    for (uint32_t i = 1; i <= 50; ++i) require_facts(group.get(), args.rank, 2, i);
    board[kReport + static_cast<int>(args.rank)] = 0;
    board[kRounds + static_cast<int>(args.rank)] += 1;
    RANK_REQUIRE(board.await(kRounds + 1 - static_cast<int>(args.rank),
                             board[kRounds + static_cast<int>(args.rank)]),
                 "the peer");
  }
  meet(&board, args.rank, 2);
}

// The same gradients through Gloo and through NCCL.
void role_like_gloo(const RankArgs& args) {
  FileBoard board(args.folder);
  const ShardMap map = map_of({(9u << 20) + 64, 5u << 20});
  const std::vector<uint8_t> needs = {1, 1};
  const auto gloo = make_gloo_collectives(args.folder + "/gloo");
  require_connect(gloo.get(), args, 1, 2);
  const auto nccl = make_group(args);
  require_connect(nccl.get(), args, 1, 2);
  ThroughTheGpu gpu(nccl.get(), Rank(args.rank));
  for (const DType dtype : kDTypes) {
    const auto grads = gradient_of(args.rank, 5, elements_of(map), dtype);
    const uint64_t mine = map.ranges[args.rank].size();
    std::vector<float> sums[2] = {std::vector<float>(mine), std::vector<float>(mine, 1)};
    Collectives* groups[2] = {gloo.get(), &gpu};
    for (int i = 0; i < 2; ++i) {
      const Status status =
          groups[i]->reduce_scatter({{5, 0}, &map, needs, dtype, grads.data(), sums[i].data()});
      RANK_REQUIRE(status.is_ok(), "%s", status.text().c_str());
    }
    RANK_REQUIRE(std::memcmp(sums[0].data(), sums[1].data(), mine * 4) == 0, "%s", name_of(dtype));
  }
  meet(&board, args.rank, 2);
}

// What ranks of a loss exchange: small shards that are compared, and large ones in which they are
// killed (half a GiB of gradients: some milliseconds).
ShardMap shards(uint32_t world, uint64_t elements) {
  return map_of(std::vector<uint64_t>(world, elements));
}
constexpr uint64_t kLossElements = 256u << 20;

void require_loss_step(Collectives* group, const RankArgs& args, uint32_t world, bool last) {
  require_step(group, shards(world, 70'003), last ? 9 : 1, args.rank,
               std::vector<uint8_t>(world, 1), last ? DType::kF32 : DType::kBF16);
}

// Reduces until a peer is killed, says so, and goes on under the next epoch with a new peer.
void role_survivor(const RankArgs& args) {
  FileBoard board(args.folder);
  const auto world = static_cast<uint32_t>(board[kWorld].load());
  const ShardMap big = shards(world, kLossElements / world);
  const auto group = make_group(args);
  for (uint64_t epoch = 1; epoch <= 3; ++epoch) {
    require_connect(group.get(), args, epoch, world);
    require_loss_step(group.get(), args, world, false);
    const Status status = reduce_until_failure(group.get(), big, args, &board);
    RANK_REQUIRE(status.code() == StatusCode::kPeerLost, "%s", status.text().c_str());
    std::printf("[note] rank %u, epoch %llu: %s\n", args.rank,
                static_cast<unsigned long long>(epoch), status.text().c_str());
    const Status still = group->all_gather_fixed({1, 0}, &epoch, 8, nullptr);
    RANK_REQUIRE(still.code() == StatusCode::kPeerLost, "%s", still.text().c_str());
    board[kReport + static_cast<int>(args.rank)] = static_cast<int64_t>(epoch);
  }
  require_connect(group.get(), args, 4, world);
  require_loss_step(group.get(), args, world, true);
  board[kGo] += 1;
  RANK_REQUIRE(board.await(kGo, world - 1), "the other survivors");
}

void role_victim(const RankArgs& args) {
  FileBoard board(args.folder);
  const auto world = static_cast<uint32_t>(board[kWorld].load());
  const auto group = make_group(args);
  require_connect(group.get(), args, args.epoch, world);
  const bool last = args.epoch == 4;
  require_loss_step(group.get(), args, world, last);
  if (last) {
    RANK_REQUIRE(board.await(kGo, world - 1), "the survivors");
    return;
  }
  const ShardMap big = shards(world, kLossElements / world);
  const Status status = reduce_until_failure(group.get(), big, args, &board);
  RANK_REQUIRE(false, "it lives on: %s", status.text().c_str());
}

// Rank 0 aborts what rank 1 does not answer; both go on under the next epoch.
void role_abort(const RankArgs& args) {
  FileBoard board(args.folder);
  const auto group = make_group(args);
  require_connect(group.get(), args, 4, 2);
  require_step(group.get(), map_of({3000, 3000}), 1, args.rank, {1, 1}, DType::kBF16);
  if (args.rank == 1) {
    RANK_REQUIRE(board.await(kGo, 1), "rank 0 is still in its call");
  } else {
    std::chrono::steady_clock::time_point aborted;
    std::thread other([&] {
      sleep_ms(100);
      group->abort(3);  // an earlier epoch: means nothing to this one
      sleep_ms(100);
      aborted = std::chrono::steady_clock::now();
      group->abort(4);
    });
    const Status status = reduce_until_failure(group.get(), kBig, args, &board);
    const auto ended = std::chrono::steady_clock::now();
    other.join();
    RANK_REQUIRE(status.code() == StatusCode::kCancelled, "%s", status.text().c_str());
    std::printf("[figure] abort to the call's return: %.1f ms\n",
                std::chrono::duration<double, std::milli>(ended - aborted).count());
    board[kGo] = 1;
  }
  require_connect(group.get(), args, 5, 2);
  require_step(group.get(), map_of({3000, 3000}), 2, args.rank, {1, 1}, DType::kBF16);
  meet(&board, args.rank, 2);
}

void role_stopped(const RankArgs& args) {
  FileBoard board(args.folder);
  const auto group = make_group(args);
  require_connect(group.get(), args, 1, 2, args.rank == 0 ? 2000 : kTimeoutMs);
  const Status status = reduce_until_failure(group.get(), kBig, args, &board);
  RANK_REQUIRE(status.code() == StatusCode::kTimeout, "%s", status.text().c_str());
}

void role_epochs(const RankArgs& args) {
  FileBoard board(args.folder);
  const auto group = make_group(args);
  const auto fds = [] {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return std::distance(begin(all), end(all));
  };
  const auto free_bytes = [] {
    size_t unused = 0, total = 0;
    must(cudaMemGetInfo(&unused, &total), "cudaMemGetInfo");
    return unused;
  };
  std::ptrdiff_t fds_then = 0;
  size_t free_then = 0;
  constexpr uint64_t kEpochs = 16;
  for (uint64_t epoch = 1; epoch <= kEpochs; ++epoch) {
    require_connect(group.get(), args, epoch, 2);
    require_step(group.get(), map_of({5000, 5000}), 1, args.rank, {1, 1}, DType::kBF16);
    require_facts(group.get(), args.rank, 2, 1);
    if (epoch == 6) fds_then = fds();
    if (epoch == 6) free_then = free_bytes();
  }
  RANK_REQUIRE(fds() <= fds_then + 4, "%td descriptors, then %td", fds_then, fds());
  RANK_REQUIRE(free_bytes() + (64u << 20) > free_then, "%zu bytes free, then %zu", free_then,
               free_bytes());
  meet(&board, args.rank, 2);
}

void role_bandwidth(const RankArgs& args) {
  FileBoard board(args.folder);
  const auto group = make_group(args);
  require_connect(group.get(), args, 1, 2);
  const uint64_t elements = 256u << 20;  // 512 MiB of BF16
  const ShardMap map = map_of({elements / 2, elements / 2});
  const std::vector<uint8_t> needs = {1, 1};
  GpuBytes all(elements * 2, 0);
  GpuBytes shard(elements / 2 * 4, 0);
  const char* names[2] = {"reduce-scatter", "all-gather"};
  for (int kind = 0; kind < 2; ++kind) {
    double best_ms = 1e9;
    for (Step step = 1; step <= 12; ++step) {
      require_facts(group.get(), args.rank, 2, static_cast<uint32_t>(step));  // start together
      const auto started = std::chrono::steady_clock::now();
      const Status status =
          kind == 0 ? group->reduce_scatter({{step, 0},
                                             &map,
                                             needs,
                                             DType::kBF16,
                                             all.data(),
                                             reinterpret_cast<float*>(shard.data())})
                    : group->all_gather({{step, 0}, &map, needs, DType::kBF16, all.data()});
      RANK_REQUIRE(status.is_ok(), "%s", status.text().c_str());
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - started;
      best_ms = std::min(best_ms, took.count());
    }
    if (args.rank == 0)
      std::printf("[figure] %s of 512 MiB BF16 over 2 GPUs: best of 12 %.2f ms, bus %.0f GB/s\n",
                  names[kind], best_ms, static_cast<double>(elements) * 2 / 2 * 1e-6 / best_ms);
  }
  meet(&board, args.rank, 2);
}

}  // namespace

int run_rank(const RankArgs& args) {
  if (args.role == "count") {
    int devices = 0;
    return cudaGetDeviceCount(&devices) == cudaSuccess ? std::min(devices, 64) : 0;
  }
  set_nccl_defaults();
  const std::map<std::string, void (*)(const RankArgs&)> roles = {
      {"world_of_one", role_world_of_one},
      {"alone", role_alone},
      {"one_gpu", role_one_gpu},
      {"bits", role_bits},
      {"like_gloo", role_like_gloo},
      {"survivor", role_survivor},
      {"victim", role_victim},
      {"abort", role_abort},
      {"overlap", role_overlap},
      {"overlap_abort", role_overlap_abort},
      {"stopped", role_stopped},
      {"epochs", role_epochs},
      {"bandwidth", role_bandwidth}};
  const auto role = roles.find(args.role);
  RANK_REQUIRE(role != roles.end(), "role %s", args.role.c_str());
  role->second(args);
  std::fflush(stdout);
  return 0;
}

}  // namespace optlease
