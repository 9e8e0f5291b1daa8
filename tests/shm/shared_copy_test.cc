// Copies of shared bytes at every size, each against the edge of memory that may not be touched: an
// access past what a copy may see ends the test.
#include "shm/shared_copy.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <string>
#include <vector>

#include "shm/contract/limits.h"
#include "shm/contract/status.h"

namespace optlease::test {
namespace {

constexpr size_t kSizeMax = 67;  // eight words and a rest

// Two pages; the second may not be touched at all.
class EdgedPage {
 public:
  EdgedPage() {
    void* pages =
        ::mmap(nullptr, 2 * kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    OPTLEASE_CHECK(pages != MAP_FAILED, "mmap");
    base_ = static_cast<char*>(pages);
    OPTLEASE_CHECK(::mprotect(end(), kPageBytes, PROT_NONE) == 0, "mprotect");
  }
  ~EdgedPage() { ::munmap(base_, 2 * kPageBytes); }
  EdgedPage(const EdgedPage&) = delete;
  EdgedPage& operator=(const EdgedPage&) = delete;

  char* end() const { return base_ + kPageBytes; }
  void fill(char byte) { std::memset(base_, byte, kPageBytes); }
  void make_read_only() {
    OPTLEASE_CHECK(::mprotect(base_, kPageBytes, PROT_READ) == 0, "mprotect");
  }
  // Whether every byte before `at` still has the value of fill().
  bool untouched_before(const char* at, char byte) const {
    for (const char* p = base_; p < at; ++p) {
      if (*p != byte) return false;
    }
    return true;
  }

 private:
  char* base_ = nullptr;
};

size_t whole_words(size_t bytes) { return (bytes + 7) / 8 * 8; }
char pattern(size_t i) { return static_cast<char>(0x35 + 7 * i); }

TEST(CopyFromShared, ReadsItsWordsOnlyAndWritesItsBytesOnlyAtEverySize) {
  EdgedPage shared, own;
  for (size_t i = 0; i < kPageBytes; ++i) (shared.end() - kPageBytes)[i] = pattern(i);
  shared.make_read_only();
  for (size_t bytes = 0; bytes <= kSizeMax; ++bytes) {
    const char* from = shared.end() - whole_words(bytes);
    char* to = own.end() - bytes;  // at odd addresses too
    own.fill('\x5a');
    copy_from_shared(to, from, bytes);
    EXPECT_EQ(std::memcmp(to, from, bytes), 0) << bytes;
    EXPECT_TRUE(own.untouched_before(to, '\x5a')) << bytes;
  }
}

TEST(CopyFromShared, LeavesWhatFollowsItsBytesAlone) {
  alignas(8) char shared[kSizeMax + 8];
  std::memset(shared, 'n', sizeof shared);
  for (size_t bytes = 0; bytes <= kSizeMax; ++bytes) {
    char own[kSizeMax + 16];
    std::memset(own, 'o', sizeof own);
    copy_from_shared(own + 1, shared, bytes);
    EXPECT_EQ(std::string(own, bytes + 10), "o" + std::string(bytes, 'n') + "ooooooooo") << bytes;
  }
}

TEST(CopyToShared, ReadsItsBytesOnlyAndWritesItsWordsOnlyAtEverySize) {
  EdgedPage shared, own;
  for (size_t i = 0; i < kPageBytes; ++i) (own.end() - kPageBytes)[i] = pattern(i);
  own.make_read_only();
  for (size_t bytes = 0; bytes <= kSizeMax; ++bytes) {
    const char* from = own.end() - bytes;  // at odd addresses too
    char* to = shared.end() - whole_words(bytes);
    shared.fill('\x5a');
    copy_to_shared(to, from, bytes);
    EXPECT_EQ(std::memcmp(to, from, bytes), 0) << bytes;
    EXPECT_TRUE(shared.untouched_before(to, '\x5a')) << bytes;
    for (const char* rest = to + bytes; rest < shared.end(); ++rest) {
      EXPECT_EQ(*rest, 0) << bytes << ": the last word's unused bytes become zero";
    }
  }
}

TEST(CopyToShared, LeavesTheWordsAfterItsLastAlone) {
  const std::string own(kSizeMax, 'n');
  for (size_t bytes = 0; bytes <= kSizeMax; ++bytes) {
    alignas(8) char shared[kSizeMax + 16];
    std::memset(shared, 's', sizeof shared);
    copy_to_shared(shared, own.data(), bytes);
    const size_t words = whole_words(bytes);
    const std::string expected = own.substr(0, bytes) + std::string(words - bytes, '\0') + "ssssss";
    EXPECT_EQ(std::string(shared, words + 6), expected) << bytes;
  }
}

}  // namespace
}  // namespace optlease::test
