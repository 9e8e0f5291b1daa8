// All-gathers on real GPUs that run while the ranks still compute.
#include <thread>

#include "actors/gpu_actor/gather_feed.h"
#include "tests/gpu/collectives_rank.h"

namespace optlease {
namespace {

// A rank of two whose shard is computed piece by piece while a thread gathers.
struct ComputingRank {
  static constexpr uint64_t kPiece = (32u << 20) / sizeof(float);
  ComputingRank(Collectives* collectives, uint32_t rank)
      : group(collectives), mine(map.ranges[rank]), theirs(map.ranges[1 - rank]) {
    feed.begin({mine.begin});
    thread = std::thread([this] {
      status = group->all_gather({{1, 0}, &map, needs, DType::kF32, params.data(), &feed});
    });
  }
  static std::vector<float> values(ElementRange range) {
    std::vector<float> out(range.size());
    for (uint64_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<float>((range.begin + i) % 65521) + 0.5f;
    return out;
  }
  void compute(ElementRange range) {
    const std::vector<float> some = values(range);
    must(cudaMemcpy(params.data() + range.begin * 4, some.data(), some.size() * 4,
                    cudaMemcpyHostToDevice),
         "a window");
    feed.publish(0, range.end);
  }
  bool has(ElementRange range) {
    std::vector<float> found(range.size());
    must(cudaMemcpy(found.data(), params.data() + range.begin * 4, found.size() * 4,
                    cudaMemcpyDeviceToHost),
         "a look");
    return found == values(range);
  }
  void await_asked(uint64_t end) {
    for (int i = 0; i < 30000 && feed.asked(0) < end; ++i) sleep_ms(1);
    RANK_REQUIRE(feed.asked(0) >= end, "the gather has got to %llu",
                 static_cast<unsigned long long>(feed.asked(0)));
  }

  Collectives* group;
  const ShardMap map = map_of({16 * kPiece, 16 * kPiece - 100});
  const std::vector<uint8_t> needs = {1, 1};
  const ElementRange mine, theirs;
  GpuBytes params{32 * kPiece * 4, 0};
  GatherFeed feed;
  Status status;
  std::thread thread;
};

}  // namespace

void role_overlap(const RankArgs& args) {
  FileBoard board(args.folder);
  const auto group = make_group(args);
  require_connect(group.get(), args, 1, 2);
  constexpr uint64_t kPiece = ComputingRank::kPiece;
  ComputingRank rank(group.get(), args.rank);
  if (args.rank == 0) {
    rank.compute(rank.mine);
    // Four rounds may be in the stream: in the fifth the first is over.
    rank.await_asked(rank.mine.begin + 5 * kPiece);
    RANK_REQUIRE(rank.has({rank.theirs.begin, rank.theirs.begin + kPiece}), "the first piece");
    // The looks at the first piece were copies beside rounds that wait on this device for the peer.
    board[kGo] = 1;
  } else {
    rank.compute({rank.mine.begin, rank.mine.begin + kPiece});
    RANK_REQUIRE(board.await(kGo, 1), "rank 0 has nothing of what is final");
    rank.compute({rank.mine.begin + kPiece, rank.mine.end});
  }
  rank.thread.join();
  RANK_REQUIRE(rank.status.is_ok(), "%s", rank.status.text().c_str());
  RANK_REQUIRE(rank.has(rank.mine) && rank.has(rank.theirs), "the whole");
  meet(&board, args.rank, 2);
}

// Rank 0's rounds wait on its device, rank 1's thread for windows that do not come.
void role_overlap_abort(const RankArgs& args) {
  FileBoard board(args.folder);
  const auto group = make_group(args);
  require_connect(group.get(), args, 1, 2);
  {
    ComputingRank rank(group.get(), args.rank);
    if (args.rank == 0) rank.compute(rank.mine);
    rank.await_asked(rank.mine.begin + 1);
    sleep_ms(200);
    group->abort(1);
    rank.feed.look_now();
    rank.thread.join();
    RANK_REQUIRE(rank.status.code() == StatusCode::kCancelled, "%s", rank.status.text().c_str());
  }
  require_connect(group.get(), args, 2, 2);
  require_step(group.get(), map_of({3000, 3000}), 2, args.rank, {1, 1}, DType::kBF16);
  meet(&board, args.rank, 2);
}

}  // namespace optlease
