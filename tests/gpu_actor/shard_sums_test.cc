// The checksums of a rank's summed gradients by chunk: how the pass for the norm and a later
// reading on the device agree, and what a reading says of bits that changed.
#include "actors/gpu_actor/shard_sums.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <cstring>
#include <random>

#include "actors/runtime/clock.h"
#include "kernels/reduce_cpu.h"

namespace optlease {
namespace {

// Two shards, as of two spaces: chunks of kChunk, the last ones short; the first word of the second
// is counted behind the first.
constexpr uint64_t kChunk = 5ull << 20;  // more than is read at once
constexpr uint64_t kShards[] = {2 * kChunk + 77, kChunk + 64};
constexpr const char* kPlace = "the memory of device test:3";

class ShardSumsTest : public testing::Test {
 protected:
  ShardSumsTest() {
    std::mt19937 random(20261130);
    for (std::vector<float>& shard : shards_) {
      for (float& value : shard) {
        value = static_cast<float>(static_cast<int32_t>(random())) * 0x1p-40f;
      }
    }
  }
  // As the collective worker does it.
  ShardSums made() const {
    ShardSums sums{7, {}};
    uint64_t first_word = 0;
    for (const std::vector<float>& shard : shards_) {
      std::vector<uint64_t> of_chunk((shard.size() + kChunk - 1) / kChunk);
      (void)grad_stats(shard.data(), 128, shard.size(), 1,
                       {of_chunk.data(), kChunk, 0, first_word});
      sums.of_chunk.insert(sums.of_chunk.end(), of_chunk.begin(), of_chunk.end());
      first_word += shard.size();
    }
    return sums;
  }
  std::vector<GradRange> ranges() const {
    std::vector<GradRange> ranges;
    uint64_t first_word = 0;
    for (const std::vector<float>& shard : shards_) {
      for (uint64_t at = 0; at < shard.size(); at += kChunk) {
        const uint64_t count = std::min<uint64_t>(kChunk, shard.size() - at);
        ranges.push_back({shard.data() + at, count, first_word + at});
      }
      first_word += shard.size();
    }
    return ranges;
  }
  // Until it is over; *turns counts the answers "not yet".
  Status read(SumsCheck* check, int* turns) {
    const Deadline deadline = Deadline::after_ms(60'000);
    Result<bool> over = check->advance();
    for (*turns = 0; over.is_ok() && !over.value(); over = check->advance()) {
      if (deadline.passed()) return {StatusCode::kTimeout, "the reading does not end"};
      ++*turns;
      pollfd waiting{device_->completion_fd(), POLLIN, 0};
      poll(&waiting, 1, 1000);
      device_->drain_completions();
    }
    return over.status();
  }

  std::vector<float> shards_[2] = {std::vector<float>(kShards[0]), std::vector<float>(kShards[1])};
  std::unique_ptr<Device> device_ = std::move(make_device("cpu", Rank(0))).value();
};

TEST_F(ShardSumsTest, ReadAgainAreThoseThatWereMadeChunkByChunk) {
  const ShardSums first = made();
  SumsCheck check(*device_, Rank(5), first.digest(), ranges(), kPlace);
  int turns = 0;
  const Status status = read(&check, &turns);
  ASSERT_TRUE(status.is_ok()) << status.text();
  EXPECT_GE(turns, 1) << "the caller waited";
  EXPECT_EQ(check.sums().step, 7);
  EXPECT_EQ(check.sums().of_chunk, first.of_chunk);
}

TEST_F(ShardSumsTest, TellApartEveryBitAndTheSpaces) {
  const SumsDigest recorded = made().digest();
  const auto expect_refused = [&](const std::string& what) {
    SumsCheck check(*device_, Rank(5), recorded, ranges(), kPlace);
    int turns = 0;
    const Status status = read(&check, &turns);
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << what;
    for (const std::string& words :
         {std::string("rank 5"), std::string("open step 7"), std::string(kPlace),
          std::string("--fresh"),
          format("%016llx", static_cast<unsigned long long>(recorded.digest)),
          format("%016llx", static_cast<unsigned long long>(made().digest().digest))}) {
      EXPECT_NE(status.message().find(words), std::string::npos) << words << ": " << status.text();
    }
  };
  for (std::vector<float>& shard : shards_) {
    for (const uint64_t at : {uint64_t{0}, kChunk - 1, kChunk, uint64_t{shard.size() - 1}}) {
      auto* bytes = reinterpret_cast<unsigned char*>(&shard[at]);
      bytes[at % 4] ^= 0x10;
      expect_refused(format("element %llu", static_cast<unsigned long long>(at)));
      bytes[at % 4] ^= 0x10;
    }
  }
  std::swap(shards_[0][3], shards_[1][3]);
  expect_refused("the same places of two spaces");
}

TEST_F(ShardSumsTest, OfARankWithoutShardsAreNothingAndReadAtOnce) {
  const ShardSums none{4, {}};
  EXPECT_EQ(none.digest().digest, 0u);
  EXPECT_EQ(why_invalid(none.digest()), nullptr);
  SumsCheck check(*device_, Rank(5), none.digest(), {}, kPlace);
  const Result<bool> over = check.advance();
  ASSERT_TRUE(over.is_ok());
  EXPECT_TRUE(over.value());
  EXPECT_TRUE(check.sums().of_chunk.empty());
}

}  // namespace
}  // namespace optlease
