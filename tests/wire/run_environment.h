// A private XDG_RUNTIME_DIR for a test, removed with everything in it at the end.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "actors/wire/endpoints.h"
#include "actors/wire/socket.h"

namespace optlease {

class RunEnvironment : public testing::Test {
 protected:
  RunEnvironment() {
    std::string pattern = "/tmp/optlease-test-XXXXXX";
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    base_ = pattern;
    if (const char* before = std::getenv("XDG_RUNTIME_DIR")) before_ = before;
    ::setenv("XDG_RUNTIME_DIR", base_.c_str(), 1);
  }
  ~RunEnvironment() override {
    std::filesystem::remove_all(base_);
    if (before_.empty()) {
      ::unsetenv("XDG_RUNTIME_DIR");
    } else {
      ::setenv("XDG_RUNTIME_DIR", before_.c_str(), 1);
    }
  }

  // The run directory of `job`, made.
  static RunDirectory make_run_directory(const std::string& job) {
    Result<RunDirectory> directory = RunDirectory::of(job);
    EXPECT_TRUE(directory.is_ok()) << directory.status().text();
    const Status made = directory.value().create();
    EXPECT_TRUE(made.is_ok()) << made.text();
    return directory.value();
  }

  // Tries again until `attempt` is true; a test that gives up has waited far longer than any
  // machine needs.
  template <class Attempt>
  static bool eventually(Attempt attempt) {
    for (int i = 0; i < 8000; ++i) {
      if (attempt()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
  }
  static bool receive_soon(Socket& socket, Message* message) {
    return eventually([&] { return socket.receive(message); });
  }

  static unsigned mode_of(const std::string& path) {
    struct stat found {};
    EXPECT_EQ(::lstat(path.c_str(), &found), 0) << path;
    return found.st_mode & 07777;
  }

  std::string base_;
  std::string before_;
};

}  // namespace optlease
