#include "actors/wire/endpoints.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "shm/contract/limits.h"
#include "tests/wire/run_environment.h"

namespace optlease {
namespace {

using Endpoints = RunEnvironment;

TEST(JobName, TakesLettersDigitsUnderscoreAndDash) {
  EXPECT_EQ(why_invalid_job_name("a"), "");
  EXPECT_EQ(why_invalid_job_name("Llama-3_8B"), "");
  EXPECT_EQ(why_invalid_job_name("_-"), "");
  EXPECT_EQ(why_invalid_job_name(std::string(kJobNameBytesMax, 'x')), "");
}

TEST(JobName, RefusesWhatCouldLeaveTheDirectoryOrLookLikeAnOption) {
  for (const std::string name : {"", "..", "a/b", "a b", "-x", "a.b", "caf\xc3\xa9", "a\n"}) {
    EXPECT_NE(why_invalid_job_name(name), "") << name;
    EXPECT_FALSE(RunDirectory::of(name).is_ok()) << name;
  }
  EXPECT_NE(why_invalid_job_name(std::string(kJobNameBytesMax + 1, 'x')), "");
  EXPECT_NE(why_invalid_job_name(std::string("a\0b", 3)), "");
}

TEST_F(Endpoints, PathsLieInTheRunDirectoryAndDiffer) {
  const RunDirectory directory = RunDirectory::of("job").value();
  EXPECT_EQ(directory.path(), base_ + "/optlease/job");
  std::set<std::string> paths;
  size_t count = 0;
  const auto add = [&](const std::string& path) {
    EXPECT_EQ(path.rfind(directory.path() + "/", 0), 0u) << path;
    paths.insert(path);
    ++count;
  };
  add(directory.job_file());
  add(directory.store_socket());
  add(directory.launcher_socket());
  add(directory.vault_socket());
  add(directory.group_directory());
  add(directory.log_file("gpu_actor.0"));
  for (uint32_t rank = 0; rank < 3; ++rank) {
    add(directory.actor_socket(Rank(rank)));
    add(directory.telemetry_socket(Rank(rank)));
    add(directory.snapshot_socket(Rank(rank)));
  }
  EXPECT_EQ(paths.size(), count);
}

TEST_F(Endpoints, SegmentNamesCarryUserJobAndPart) {
  const RunDirectory directory = RunDirectory::of("job").value();
  const std::string stem = "/optlease." + std::to_string(::geteuid()) + ".job";
  EXPECT_EQ(directory.control_segment(), stem + ".ctl");
  EXPECT_EQ(directory.arena_segment(Rank(7)), stem + ".r7");
  EXPECT_EQ(directory.gradient_segment(Rank(7)), stem + ".g7");
  EXPECT_EQ(directory.lock_segment(), stem + ".lock");
  EXPECT_EQ("/" + segment_prefix() + "job.ctl", directory.control_segment());
}

TEST_F(Endpoints, FallsBackToTmpWithoutAnAbsoluteRuntimeDirectory) {
  const std::string fallback = "/tmp/optlease-" + std::to_string(::geteuid());
  ::unsetenv("XDG_RUNTIME_DIR");
  EXPECT_EQ(run_root(), fallback);
  ::setenv("XDG_RUNTIME_DIR", "relative/path", 1);
  EXPECT_EQ(run_root(), fallback);
  ::setenv("XDG_RUNTIME_DIR", "", 1);
  EXPECT_EQ(run_root(), fallback);
  ::setenv("XDG_RUNTIME_DIR", "/somewhere//", 1);
  EXPECT_EQ(run_root(), "/somewhere/optlease");
}

TEST_F(Endpoints, TakesALongestPathOf107BytesAndRefuses108) {
  const std::string tail = "/optlease/j/telemetry.1023.sock";
  ::setenv("XDG_RUNTIME_DIR", ("/" + std::string(107 - tail.size() - 1, 'd')).c_str(), 1);
  const Result<RunDirectory> fits = RunDirectory::of("j");
  ASSERT_TRUE(fits.is_ok()) << fits.status().text();
  EXPECT_EQ(fits.value().telemetry_socket(Rank(kRankCountMax - 1)).size(), 107u);

  const Result<RunDirectory> too_long = RunDirectory::of("jj");
  ASSERT_FALSE(too_long.is_ok());
  EXPECT_EQ(too_long.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(too_long.status().message().find("108 bytes"), std::string::npos)
      << too_long.status().text();
}

TEST_F(Endpoints, CreatesPrivateDirectoriesAndTakesThemAgain) {
  const RunDirectory directory = make_run_directory("job");
  EXPECT_EQ(mode_of(run_root()), 0700u);
  EXPECT_EQ(mode_of(directory.path()), 0700u);
  EXPECT_TRUE(directory.create().is_ok());
}

TEST_F(Endpoints, RefusesADirectoryThatOthersMayEnter) {
  const RunDirectory directory = make_run_directory("job");
  ASSERT_EQ(::chmod(directory.path().c_str(), 0755), 0);
  const Status status = directory.create();
  EXPECT_EQ(status.code(), StatusCode::kPermission);
  EXPECT_NE(status.message().find("755"), std::string::npos) << status.text();
}

TEST_F(Endpoints, RefusesASymbolicLinkInPlaceOfTheDirectory) {
  make_run_directory("other");
  const RunDirectory directory = RunDirectory::of("job").value();
  std::filesystem::create_directory_symlink(run_root() + "/other", directory.path());
  const Status status = directory.create();
  EXPECT_EQ(status.code(), StatusCode::kPermission);
  EXPECT_NE(status.message().find("symbolic link"), std::string::npos) << status.text();
}

TEST_F(Endpoints, RefusesAFileInPlaceOfTheDirectory) {
  make_run_directory("other");
  const RunDirectory directory = RunDirectory::of("job").value();
  std::ofstream(directory.path()) << "x";
  EXPECT_EQ(directory.create().code(), StatusCode::kPermission);
}

TEST_F(Endpoints, RefusesADirectoryOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a directory away";
  const RunDirectory directory = make_run_directory("job");
  ASSERT_EQ(::chown(directory.path().c_str(), 12345, 12345), 0);
  const Status status = directory.create();
  EXPECT_EQ(status.code(), StatusCode::kPermission);
  EXPECT_NE(status.message().find("12345"), std::string::npos) << status.text();
}

// Who only uses a run directory looks at it as its maker does, and at its root too.
TEST_F(Endpoints, WhatIsNotOurOwnIsNotUsedEither) {
  const RunDirectory directory = make_run_directory("job");
  EXPECT_TRUE(directory.check().is_ok());
  EXPECT_EQ(RunDirectory::of("absent").value().check().code(), StatusCode::kNotFound);
  for (const std::string& path : {directory.path(), run_root()}) {
    ASSERT_EQ(::chmod(path.c_str(), 0770), 0);
    EXPECT_EQ(directory.check().code(), StatusCode::kPermission) << path;
    ASSERT_EQ(::chmod(path.c_str(), 0700), 0);
    std::filesystem::rename(path, base_ + "/moved");
    std::filesystem::create_directory_symlink(base_ + "/moved", path);
    EXPECT_EQ(directory.check().code(), StatusCode::kPermission) << path;
    std::filesystem::remove(path);
    std::filesystem::rename(base_ + "/moved", path);
    if (::geteuid() != 0) continue;  // only root can give a directory away
    ASSERT_EQ(::chown(path.c_str(), 12345, 12345), 0);
    const Status status = directory.check();
    EXPECT_EQ(status.code(), StatusCode::kPermission) << path;
    EXPECT_NE(status.message().find("12345"), std::string::npos) << status.text();
    ASSERT_EQ(::chown(path.c_str(), 0, 0), 0);
  }
  EXPECT_TRUE(directory.check().is_ok());
  std::filesystem::remove_all(run_root());
  EXPECT_EQ(directory.check().code(), StatusCode::kNotFound);
}

TEST_F(Endpoints, RefusesAFolderInWhichOthersCouldReplaceTheRunDirectories) {
  const RunDirectory directory = make_run_directory("job");
  ASSERT_EQ(::chmod(base_.c_str(), 0777), 0);
  for (const Status& status : {directory.create(), directory.check()}) {
    EXPECT_EQ(status.code(), StatusCode::kPermission);
    EXPECT_NE(status.message().find("0777, no sticky bit"), std::string::npos) << status.text();
  }
  ASSERT_EQ(::chmod(base_.c_str(), 01777), 0);
  EXPECT_TRUE(directory.create().is_ok());
  EXPECT_TRUE(directory.check().is_ok());
  if (::geteuid() != 0) return;  // only root can give a directory away
  ASSERT_EQ(::chown(base_.c_str(), 12345, 12345), 0);
  for (const Status& status : {directory.create(), directory.check()}) {
    EXPECT_EQ(status.code(), StatusCode::kPermission);
    EXPECT_NE(status.message().find("belongs to user 12345"), std::string::npos) << status.text();
  }
}

TEST(UidMap, OnlyAUserWhomNoLineMapsIsUnmapped) {
  const auto unmapped = [](uid_t uid, const char* text) {
    std::istringstream map(text);
    return is_unmapped(uid, map);
  };
  EXPECT_TRUE(unmapped(65534, "         0       1000          1\n"));
  EXPECT_TRUE(unmapped(65534, "0 1000 1\n1 100000 65533\n")) << "ends just before it";
  EXPECT_TRUE(unmapped(65534, "65535 165535 10\n")) << "begins just after it";
  EXPECT_FALSE(unmapped(65534, "0 0 4294967295\n")) << "the first namespace has everybody";
  EXPECT_FALSE(unmapped(65534, "0 1000 1\n1 100000 65536\n")) << "mapped by the second line";
  EXPECT_FALSE(unmapped(65534, "65534 100000 1\n"));
  EXPECT_FALSE(unmapped(65533, "0 1000 1\n")) << "it looks like itself";
  for (const char* text : {"", "0 1000", "0 1000 1\n1 x 3\n"}) {
    EXPECT_FALSE(unmapped(65534, text)) << text;
  }
}

TEST_F(Endpoints, SaysWhatToDoWhereTheParentIsMissing) {
  ::setenv("XDG_RUNTIME_DIR", (base_ + "/absent").c_str(), 1);
  const Status status = RunDirectory::of("job").value().create();
  EXPECT_EQ(status.code(), StatusCode::kIo);
  EXPECT_NE(status.message().find("XDG_RUNTIME_DIR"), std::string::npos);
}

}  // namespace
}  // namespace optlease
