// Device memory where no GPU is needed: the cpu kind, the table of what a device lacks, and what a
// machine or a build without CUDA says. tests/gpu/memory_test.cc has the cuda kind.
#include "actors/device_memory/device_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <vector>

#include "actors/device_memory/device_room.h"

namespace optlease {
namespace {

DeviceMemory host_memory() {
  Result<DeviceMemory> memory = DeviceMemory::open({});
  OPTLEASE_CHECK(memory.is_ok(), "%s", memory.status().text().c_str());
  return std::move(memory).value();
}

TEST(DeviceKind, HasTheNamesOfTheJobFile) {
  DeviceKind kind = DeviceKind::kCpu;
  EXPECT_TRUE(parse("cuda", &kind));
  EXPECT_EQ(kind, DeviceKind::kCuda);
  EXPECT_TRUE(parse(name_of(DeviceKind::kCpu), &kind));
  EXPECT_EQ(kind, DeviceKind::kCpu);
  EXPECT_FALSE(parse("tpu", &kind));
  EXPECT_EQ(device_of_rank("tpu", 0).status().code(), StatusCode::kUnsupported);
}

TEST(DeviceKind, PutsEveryRankOfACpuJobInOnePlace) {
  for (const uint32_t rank : {0u, 1u, 1023u}) {
    const Result<DevicePlace> place = device_of_rank("cpu", rank);
    ASSERT_TRUE(place.is_ok());
    EXPECT_EQ(place.value().kind, DeviceKind::kCpu);
    EXPECT_EQ(place.value().ordinal, 0);
  }
}

// Both where the build has no CUDA and where the machine has no driver; a machine with a GPU has an
// answer instead.
TEST(DeviceKind, SaysInWordsThatThereIsNoGpu) {
  const Result<DevicePlace> place = device_of_rank(DeviceKind::kCuda, 3);
  if (place.is_ok()) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_EQ(place.status().code(), StatusCode::kUnsupported);
  EXPECT_NE(place.status().message().find("GPU"), std::string::npos) << place.status().text();
  const Status opened = DeviceMemory::open({DeviceKind::kCuda, 0}).status();
  EXPECT_EQ(opened.code(), StatusCode::kUnsupported) << opened.text();
}

TEST(DeviceMemory, OfTheCpuIsZeroedAndSharedBetweenMappings) {
  const DeviceMemory memory = host_memory();
  Result<UniqueFd> fd = memory.create("param.0.dense", 8192);
  ASSERT_TRUE(fd.is_ok()) << fd.status().text();
  EXPECT_EQ(::fcntl(fd.value().get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  Result<MappedDeviceBuffer> first = memory.map(fd.value().get(), 8192);
  Result<MappedDeviceBuffer> second = memory.map(fd.value().get(), 8192);
  ASSERT_TRUE(first.is_ok() && second.is_ok());
  EXPECT_EQ(first.value().bytes(), 8192u);
  std::vector<char> read(8192, 'x');
  ASSERT_TRUE(memory.copy_to_host(read.data(), first.value().data(), 8192).is_ok());
  EXPECT_EQ(read, std::vector<char>(8192, '\0'));
  const std::string text = "from one side";
  ASSERT_TRUE(memory.copy_to_device(first.value().data(), text.c_str(), text.size() + 1).is_ok());
  ASSERT_TRUE(memory.copy_to_host(read.data(), second.value().data(), text.size() + 1).is_ok());
  EXPECT_STREQ(read.data(), text.c_str());
}

TEST(DeviceMemory, IsMovedWithoutMovingTheBytes) {
  const DeviceMemory memory = host_memory();
  Result<UniqueFd> fd = memory.create("m", 4096);
  Result<MappedDeviceBuffer> mapped = memory.map(fd.value().get(), 4096);
  MappedDeviceBuffer first = std::move(mapped).value();
  void* at = first.data();
  MappedDeviceBuffer second = std::move(first);
  EXPECT_EQ(second.data(), at);
  EXPECT_EQ(second.bytes(), 4096u);
  second = MappedDeviceBuffer();
  EXPECT_EQ(second.data(), nullptr);
  EXPECT_EQ(second.bytes(), 0u);
}

TEST(DeviceMemory, OfNothingIsNoMappingAndCannotBeMade) {
  const DeviceMemory memory = host_memory();
  Result<MappedDeviceBuffer> mapped = memory.map(-1, 0);
  ASSERT_TRUE(mapped.is_ok());
  EXPECT_EQ(mapped.value().data(), nullptr);
  EXPECT_EQ(memory.create("none", 0).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(memory.copy_to_host(nullptr, nullptr, 0).is_ok());
}

TEST(DeviceMemory, RefusesMemoryThatIsSmaller) {
  const DeviceMemory memory = host_memory();
  Result<UniqueFd> fd = memory.create("small", 4096);
  const Status status = memory.map(fd.value().get(), 4097).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("4097"), std::string::npos) << status.text();
}

TEST(DeviceMemory, OutlivesItsMaker) {
  const DeviceMemory memory = host_memory();
  Result<UniqueFd> fd = memory.create("kept", 4096);
  const pid_t child = fork();
  if (child == 0) {
    Result<MappedDeviceBuffer> mapped = memory.map(fd.value().get(), 4096);
    if (mapped.is_ok()) std::strcpy(static_cast<char*>(mapped.value().data()), "still here");
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  Result<MappedDeviceBuffer> mapped = memory.map(fd.value().get(), 4096);
  ASSERT_TRUE(mapped.is_ok());
  EXPECT_STREQ(static_cast<char*>(mapped.value().data()), "still here");
}

TEST(DeviceRoom, TakesTheExactAmountAndRefusesOneByteMoreWithATable) {
  const std::vector<RoomRow> rows = {{"parameters of space dense", 300 << 20},
                                     {"gradients of space dense", 200 << 20}};
  const DevicePlace place{DeviceKind::kCuda, 1};
  EXPECT_TRUE(check_room(rows, {500 << 20, 1 << 30}, place).is_ok());
  const Status status = check_room(rows, {(500 << 20) - 1, 1 << 30}, place);
  EXPECT_EQ(status.code(), StatusCode::kNoSpace);
  for (const char* words : {"cuda device 1", "parameters of space dense", "300.0 MiB", "200.0 MiB",
                            "500.0 MiB", "1024.0"}) {
    EXPECT_NE(status.message().find(words), std::string::npos) << words << status.message();
  }
  EXPECT_TRUE(check_room({}, {0, 0}, place).is_ok());
}

TEST(DeviceRoom, DoesNotWrapAroundAtAbsurdSizes) {
  const std::vector<RoomRow> rows = {{"a", UINT64_MAX}, {"b", 4096}};
  EXPECT_EQ(check_room(rows, {1 << 20, 1 << 20}, {}).code(), StatusCode::kNoSpace);
}

}  // namespace
}  // namespace optlease
