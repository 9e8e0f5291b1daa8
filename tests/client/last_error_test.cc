// What optlease_last_error says when memory runs out. This program replaces operator new, for the
// library too.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "actors/client/optlease.h"
#include "tests/client/fake_job.h"

namespace {

thread_local bool memory_is_out = false;

}  // namespace

void* operator new(std::size_t bytes) {
  void* memory = memory_is_out ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
// The library's own would allocate where it pleases, which a sanitizer's does.
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return memory_is_out ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
}
// Inlined, GCC takes them for a mismatch with the library's operator new.
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace optlease {
namespace {

TEST(LastError, OfAClientSaysWhenMemoryRanOut) {
  const JobPlan plan = three_space_plan("c-memory");
  FakeJob job(plan, 0, [](const StepRequestBody&, const std::vector<FakeSpace>&) {});
  optlease_attach_options options{};
  options.struct_bytes = sizeof options;
  options.job = plan.segment.job_name.c_str();
  options.rank = 0;
  optlease_client* client = nullptr;
  ASSERT_EQ(optlease_attach(&options, &client), OPTLEASE_OK) << optlease_last_error(nullptr);
  ASSERT_STREQ(optlease_last_error(client), "");
  optlease_space_info info{};
  info.struct_bytes = sizeof info;
  memory_is_out = true;  // the words of an error do not fit a string's own storage
  const optlease_status failed = optlease_space(client, 99, &info);
  memory_is_out = false;
  EXPECT_EQ(failed, OPTLEASE_NO_SPACE);
  EXPECT_STREQ(optlease_last_error(client), "out of memory");
  EXPECT_STREQ(optlease_last_error(nullptr), "out of memory");
  EXPECT_EQ(optlease_space(client, 99, &info), OPTLEASE_NOT_FOUND);
  EXPECT_NE(std::string(optlease_last_error(client)).find("space 99"), std::string::npos);
  EXPECT_EQ(optlease_detach(client), OPTLEASE_OK);
}

}  // namespace
}  // namespace optlease
