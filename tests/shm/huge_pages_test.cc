#include "shm/huge_pages.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "shm/reserve.h"
#include "shm/shared_buffer.h"
#include "tests/shm/test_support.h"

namespace optlease::test {
namespace {

constexpr uint64_t kBytes = 4 * kHugePageBytes + 4096 + 17;

bool aligned(const void* at) { return reinterpret_cast<uint64_t>(at) % kHugePageBytes == 0; }

// Bytes that this process maps by 2 MiB, of the mapping that begins at `base`.
uint64_t huge_bytes_mapped(const void* base) {
  const std::string begin = format("%lx-", reinterpret_cast<unsigned long>(base));
  std::ifstream smaps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    if (line.find("-") < line.find(" ")) inside = line.rfind(begin, 0) == 0;
    if (!inside || line.rfind("ShmemPmdMapped:", 0) != 0) continue;
    return std::stoull(line.substr(line.find(':') + 1)) * 1024;
  }
  return 0;
}

size_t mappings() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) ++count;
  return count;
}

class HugePagesTest : public testing::Test {
 protected:
  std::string name() const { return names_.segment("a", ".r0"); }
  Names names_;
};

TEST_F(HugePagesTest, ASegmentIsReservedInFullWhetherOrNotTheKernelHasThem) {
  const Result<Segment> made = Segment::create(name(), kBytes);
  ASSERT_TRUE(made.is_ok()) << made.status().text();
  struct stat info {};
  ASSERT_EQ(::fstat(made.value().fd(), &info), 0);
  EXPECT_EQ(static_cast<uint64_t>(info.st_size), kBytes);
  EXPECT_GE(static_cast<uint64_t>(info.st_blocks) * 512, kBytes);
  EXPECT_LE(static_cast<uint64_t>(info.st_blocks) * 512, kBytes + 4096) << "no more than is needed";
  const char* data = static_cast<const char*>(made.value().data());
  EXPECT_TRUE(std::all_of(data, data + kBytes, [](char c) { return c == 0; }));
  const HugePages got = made.value().huge_pages();
  EXPECT_EQ(got.bytes, got.refusal == 0 ? 4 * kHugePageBytes : 0);
}

TEST_F(HugePagesTest, WhoOpensASegmentMapsItByHugePages) {
  const Result<Segment> made = Segment::create(name(), kBytes);
  ASSERT_TRUE(made.is_ok()) << made.status().text();
  if (made.value().huge_pages().refusal != 0) {
    GTEST_SKIP() << huge_pages_text(made.value().huge_pages(), kBytes);
  }
  for (const auto access : {Segment::Access::kReadWrite, Segment::Access::kReadOnly}) {
    const Result<Segment> opened = Segment::open(name(), access);
    ASSERT_TRUE(opened.is_ok()) << opened.status().text();
    const char* data = static_cast<const char*>(opened.value().data());
    EXPECT_TRUE(aligned(data));
    EXPECT_TRUE(std::all_of(data, data + kBytes, [](char c) { return c == 0; }));
    EXPECT_EQ(huge_bytes_mapped(data), 4 * kHugePageBytes);
  }
}

TEST_F(HugePagesTest, WhatLiesInThemIsSharedAndOutlivesItsMappings) {
  {
    Result<Segment> made = Segment::create(name(), kBytes);
    ASSERT_TRUE(made.is_ok()) << made.status().text();
    char* data = static_cast<char*>(made.value().data());
    for (uint64_t at = 0; at < kBytes; at += 509) data[at] = static_cast<char>(at * 7 + 1);
  }
  const Result<Segment> opened = Segment::open(name(), Segment::Access::kReadOnly);
  ASSERT_TRUE(opened.is_ok()) << opened.status().text();
  const char* data = static_cast<const char*>(opened.value().data());
  for (uint64_t at = 0; at < kBytes; at += 509) {
    ASSERT_EQ(data[at], static_cast<char>(at * 7 + 1)) << "at " << at;
  }
}

TEST_F(HugePagesTest, BuffersWithoutANameAreMappedTheSameWay) {
  const Result<UniqueFd> fd = create_memfd("buffer", kBytes);
  ASSERT_TRUE(fd.is_ok()) << fd.status().text();
  const Result<MappedBuffer> mapped = MappedBuffer::map(fd.value().get(), kBytes);
  ASSERT_TRUE(mapped.is_ok()) << mapped.status().text();
  EXPECT_TRUE(aligned(mapped.value().data()));
  std::memset(mapped.value().data(), 3, kBytes);
}

TEST_F(HugePagesTest, AddressSpaceThatIsNotUsedIsGivenBack) {
  { const AddressRange first(kBytes); }  // the allocator's and the test's own mappings are made now
  const size_t before = mappings();
  // A few more are an allocator's, above all a sanitizer's; of a hundred ranges none is left.
  constexpr size_t kOfTheAllocator = 16;
  for (int i = 0; i < 100; ++i) {
    const AddressRange range(kBytes + static_cast<uint64_t>(i) * 4096);
    ASSERT_NE(range.at(), nullptr);
    ASSERT_TRUE(aligned(range.at()));
  }
  EXPECT_LE(mappings(), before + kOfTheAllocator);
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(Segment::create(name(), kBytes).is_ok());
    Segment::unlink(name());
  }
  EXPECT_LE(mappings(), before + kOfTheAllocator);
  EXPECT_EQ(AddressRange(kHugePageBytes - 1).at(), nullptr);
}

// One page that was in somebody's hands is no reason to go without for the rest of an arena.
TEST_F(HugePagesTest, OnlyARefusalThatTheNextPieceWouldMeetEndsTheTrying) {
  for (const int passing : {0, EAGAIN, EBUSY, ENOSPC}) {
    EXPECT_FALSE(ends_huge_pages(passing)) << std::strerror(passing);
  }
  for (const int lasting : {ENOMEM, EINVAL, EOPNOTSUPP}) {
    EXPECT_TRUE(ends_huge_pages(lasting)) << std::strerror(lasting);
  }
}

TEST_F(HugePagesTest, ARefusalIsSaidWithItsReason) {
  EXPECT_EQ(huge_pages_text({.bytes = 4194304, .refusal = 0}, 4194321),
            "4194304 of 4194321 bytes lie in 2 MiB pages");
  const std::string text = huge_pages_text({.bytes = 0, .refusal = ENOMEM}, 4194321);
  EXPECT_NE(text.find("Cannot allocate memory"), std::string::npos) << text;
  EXPECT_NE(text.find("longer to map"), std::string::npos) << text;
}

}  // namespace
}  // namespace optlease::test
