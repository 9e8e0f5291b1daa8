#include "actors/runtime/exception_status.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <system_error>

#include "actors/runtime/exit_code.h"

namespace optlease {
namespace {

TEST(ExceptionStatus, WhatRanOutIsNoDefectOfThePrograms) {
  const std::filesystem::filesystem_error full("cannot copy",
                                               std::error_code(ENOSPC, std::generic_category()));
  const std::system_error thread(std::error_code(EAGAIN, std::generic_category()), "thread");
  const std::system_error files(std::error_code(EMFILE, std::system_category()), "open");
  for (const std::exception* error :
       std::initializer_list<const std::exception*>{&full, &thread, &files}) {
    EXPECT_EQ(status_of(*error).code(), StatusCode::kNoSpace) << error->what();
    EXPECT_NE(status_of(*error).message().find(error->what()), std::string::npos);
    EXPECT_EQ(exit_code_for(status_of(*error)), ExitCode::kNoResources);
  }
  EXPECT_EQ(status_of(std::bad_alloc()).code(), StatusCode::kNoSpace);
  EXPECT_NE(status_of(std::bad_alloc()).message().find("memory"), std::string::npos);
  EXPECT_NE(status_of(thread).message().find("a thread cannot be started"), std::string::npos);
}

TEST(ExceptionStatus, AnythingElseIs) {
  EXPECT_EQ(status_of(std::runtime_error("odd")).code(), StatusCode::kInternal);
  EXPECT_EQ(status_of(std::runtime_error("odd")).message(), "odd");
  const std::system_error io(std::error_code(EIO, std::generic_category()), "read");
  EXPECT_EQ(status_of(io).code(), StatusCode::kInternal);
  EXPECT_EQ(exit_code_for(status_of(io)), ExitCode::kInternal);
}

}  // namespace
}  // namespace optlease
