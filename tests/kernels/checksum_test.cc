#include "kernels/checksum.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "kernels/cpu_loops.h"
#include "shm/contract/geometry.h"

namespace optlease {
namespace {

std::vector<uint32_t> random_words(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint32_t> words(count);
  for (uint32_t& word : words) word = static_cast<uint32_t>(random());
  return words;
}

uint64_t by_definition(const std::vector<uint32_t>& words, uint64_t first) {
  uint64_t sum = 0;
  for (size_t i = 0; i < words.size(); ++i) sum += checksum_term(words[i], first + i);
  return sum;
}

TEST(Checksum, EqualsItsDefinitionOnEveryInstructionSet) {
  for (size_t count : {0u, 1u, 7u, 1023u, 1024u, 1025u, 100003u}) {
    const std::vector<uint32_t> words = random_words(count, 1);
    for (uint64_t first : {uint64_t{0}, uint64_t{5}, uint64_t{1} << 33, ~uint64_t{0} - 3}) {
      for (CpuIsa isa : {CpuIsa::kGeneric, CpuIsa::kV3, CpuIsa::kV4}) {
        const CpuLoops* loops = cpu_loops_of(isa);
        if (loops == nullptr) continue;
        EXPECT_EQ(loops->checksum(words.data(), count, first), by_definition(words, first))
            << name_of(isa) << " " << count << " words from " << first;
      }
    }
  }
}

TEST(Checksum, KeepsItsValueAcrossVersions) {
  const std::vector<uint32_t> words = {1, 2, 0xffffffffu};
  EXPECT_EQ(checksum_words(words.data(), 3, 0), 1u * 1 + 2u * 3 + 0xffffffffull * 5);
}

TEST(Checksum, AnyPartitionGivesTheSameSum) {
  const std::vector<uint32_t> words = random_words(50000, 2);
  const uint64_t whole = checksum_words(words.data(), words.size(), 64);
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    uint64_t sum = 0, at = 0;
    while (at < words.size()) {
      const uint64_t count = std::min<uint64_t>(1 + random() % 9000, words.size() - at);
      sum += checksum_words(words.data() + at, count, 64 + at);
      at += count;
    }
    ASSERT_EQ(sum, whole);
  }
}

TEST(Checksum, SeesEveryFlippedBit) {
  std::vector<uint32_t> words = random_words(3000, 4);
  const uint64_t whole = checksum_words(words.data(), words.size(), 0);
  for (size_t i = 0; i < words.size(); i += 37) {
    for (uint32_t bit = 0; bit < 32; ++bit) {
      words[i] ^= 1u << bit;
      ASSERT_NE(checksum_words(words.data(), words.size(), 0), whole) << i << " bit " << bit;
      words[i] ^= 1u << bit;
    }
  }
}

TEST(Checksum, SeesSwappedWordsAndSwappedBlocks) {
  std::vector<uint32_t> words = random_words(4096, 5);
  const uint64_t whole = checksum_words(words.data(), words.size(), 0);
  for (size_t i = 0; i + 1 < words.size(); i += 61) {
    if (words[i] == words[i + 1]) continue;
    std::swap(words[i], words[i + 1]);
    ASSERT_NE(checksum_words(words.data(), words.size(), 0), whole) << i;
    std::swap(words[i], words[i + 1]);
  }
  std::swap_ranges(words.begin(), words.begin() + 1024, words.begin() + 1024);
  EXPECT_NE(checksum_words(words.data(), words.size(), 0), whole);
}

TEST(Checksum, ReadsUnalignedBytes) {
  const std::vector<uint32_t> words = random_words(2000, 6);
  std::vector<char> bytes(words.size() * 4 + 1);
  std::memcpy(bytes.data() + 1, words.data(), words.size() * 4);
  EXPECT_EQ(checksum_words(bytes.data() + 1, words.size(), 9), by_definition(words, 9));
}

TEST(Checksum, OfAChunkLeavesOutThePaddingBetweenArrays) {
  const uint64_t elements = 1003;
  const uint64_t stride = array_stride_bytes(elements);
  ASSERT_GT(stride, elements * 4);
  std::vector<uint32_t> slot = random_words(chunk_bytes(elements) / 4, 7);
  uint64_t expected = 0;
  for (uint64_t a = 0; a < kAdamArrayCount; ++a) {
    for (uint64_t i = 0; i < elements; ++i) {
      const uint64_t word = a * stride / 4 + i;
      expected += checksum_term(slot[word], word);
    }
  }
  EXPECT_EQ(checksum_chunk(slot.data(), elements), expected);
  for (uint64_t word = elements; word < stride / 4; ++word) slot[word] ^= 0x5a5a5a5au;
  EXPECT_EQ(checksum_chunk(slot.data(), elements), expected);
  slot[stride / 4] ^= 1;
  EXPECT_NE(checksum_chunk(slot.data(), elements), expected);
}

}  // namespace
}  // namespace optlease
