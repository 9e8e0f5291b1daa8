#include "actors/wire/codec.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/support/test_seed.h"

namespace optlease {
namespace {

LeaseRequestBody lease_request() {
  LeaseRequestBody body{};
  body.step = 3;
  body.first_chunk = 5;
  body.chunk_count = 2;
  return body;
}

TEST(Codec, CarriesHeaderBodyAndPayload) {
  StepReadyBody body{};
  body.step = 9;
  body.blob_bytes = 4;
  const std::string frame = encode({3, 17, 21}, MessageKind::kStepReady, 1ull << 40, body,
                                   std::string_view("a\0b\xff", 4));
  const Result<Decoded> decoded = decode(frame);
  ASSERT_TRUE(decoded.is_ok()) << decoded.status().text();
  const Decoded& message = decoded.value();
  EXPECT_EQ(message.kind, MessageKind::kStepReady);
  EXPECT_EQ(message.header.rank, 3u);
  EXPECT_EQ(message.header.incarnation, 17u);
  EXPECT_EQ(message.header.store_epoch, 21u);
  EXPECT_EQ(message.header.sequence, 1ull << 40);
  EXPECT_EQ(message.as<StepReadyBody>().step, 9);
  EXPECT_EQ(message.payload, std::string_view("a\0b\xff", 4));
}

TEST(Codec, CarriesEntriesAndEmptyBodies) {
  CommitRequestBody body{};
  body.lease_id = 77;
  body.step = 1;
  body.chunk_count = 1;
  body.entry_count = 2;
  const SlotEntry slots[2] = {{4, 0, 40}, {9, 0, 90}};
  const std::string frame =
      encode({}, MessageKind::kCommitRequest, 1, body,
             std::string_view(reinterpret_cast<const char*>(slots), sizeof slots));
  const Result<Decoded> decoded = decode(frame);
  ASSERT_TRUE(decoded.is_ok()) << decoded.status().text();
  const auto entries = decoded.value().entries<SlotEntry>();
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[1].slot, 9u);
  EXPECT_EQ(entries[1].checksum, 90u);

  const std::string empty = encode_empty({}, MessageKind::kStatusQuery, 8);
  EXPECT_EQ(empty.size(), sizeof(MessageHeader));
  EXPECT_TRUE(decode(empty).is_ok());
}

TEST(Codec, RefusesEveryTruncationAndEveryExtension) {
  const std::string frame = encode({}, MessageKind::kLeaseRequest, 1, lease_request());
  for (size_t size = 0; size < frame.size(); ++size) {
    const Result<Decoded> decoded = decode(std::string_view(frame).substr(0, size));
    ASSERT_FALSE(decoded.is_ok()) << size;
    EXPECT_EQ(decoded.status().code(), StatusCode::kInvalidArgument);
  }
  EXPECT_FALSE(decode(frame + "x").is_ok());
}

TEST(Codec, SurvivesRandomFrames) {
  const uint64_t seed = test_seed();
  std::mt19937_64 random(seed);
  const std::string good = encode({}, MessageKind::kLeaseRequest, 1, lease_request());
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::string frame = good;
    for (int flips = 1 + static_cast<int>(random() % 4); flips > 0; --flips) {
      frame[random() % frame.size()] = static_cast<char>(random());
    }
    const Result<Decoded> decoded = decode(frame);
    if (!decoded) continue;
    ++accepted;
    EXPECT_EQ(decoded.value().body.size(), body_bytes_of(decoded.value().kind)) << "seed " << seed;
  }
  EXPECT_GT(accepted, 0) << "seed " << seed;      // rank and sequence may be anything
  EXPECT_LT(accepted, 20000) << "seed " << seed;  // magic, length and kind may not
}

TEST(CodecDeathTest, AbortsOnABodyOfAnotherKind) {
  EXPECT_DEATH(encode({}, MessageKind::kHello, 1, lease_request()), "Hello has a body of");
}

TEST(CodecDeathTest, AbortsOnABodyThatBreaksARule) {
  LeaseRequestBody body = lease_request();
  body.chunk_count = 0;
  EXPECT_DEATH(encode({}, MessageKind::kLeaseRequest, 1, body), "chunk_count is not in");
}

}  // namespace
}  // namespace optlease
