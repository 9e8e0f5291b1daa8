// The digest of summed gradients: the bytes alone decide it, not how they were cut.
#include "shm/sums_hasher.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace optlease {
namespace {

std::vector<char> bytes_of(uint64_t seed, size_t count) {
  std::mt19937_64 random(seed);
  std::vector<char> bytes(count);
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

uint64_t digest_of(const std::vector<char>& bytes) {
  SumsHasher hasher;
  hasher.add(bytes.data(), bytes.size());
  return hasher.digest();
}

// The reference value of the algorithm: XXH3-64, seed 0, of nothing.
TEST(SumsHasher, OfNothingIsTheAlgorithmsOwnValue) {
  SumsHasher hasher;
  EXPECT_EQ(hasher.digest(), 0x2d06800538d394c2u);
  hasher.add(nullptr, 0);
  EXPECT_EQ(hasher.digest(), 0x2d06800538d394c2u);
}

TEST(SumsHasher, GivesTheSameDigestHoweverTheBytesAreCut) {
  const uint64_t seed = 20261130;
  const std::vector<char> bytes = bytes_of(seed, 100'000);
  const uint64_t whole = digest_of(bytes);
  std::mt19937_64 random(seed);
  for (int round = 0; round < 20; ++round) {
    SumsHasher hasher;
    for (size_t at = 0; at < bytes.size();) {
      const size_t now = std::min<size_t>(bytes.size() - at, random() % 5000);
      hasher.add(bytes.data() + at, now);
      at += now;
    }
    EXPECT_EQ(hasher.digest(), whole) << "seed " << seed << ", round " << round;
  }
}

TEST(SumsHasher, SeesEveryFlippedBit) {
  std::vector<char> bytes = bytes_of(7, 3000);
  const uint64_t good = digest_of(bytes);
  for (size_t bit = 0; bit < bytes.size() * 8; bit += 13) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    EXPECT_NE(digest_of(bytes), good) << "bit " << bit;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
  }
  EXPECT_EQ(digest_of(bytes), good);
}

}  // namespace
}  // namespace optlease
