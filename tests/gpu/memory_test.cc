// GPU memory that outlives its maker, with real processes: this one never makes a CUDA context, it
// only serves the vault, as the launcher does. What touches the GPU runs in children of its own
// program (argv[1] is a role, memory_roles.h). Needs a GPU; ends with 0 or 1.
//   memory_test [--gtest_filter=...]
#include <errno.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "actors/runtime/clock.h"
#include "shm/segment.h"
#include "shm/vault.h"
#include "tests/gpu/memory_roles.h"
#include "tests/support/temp_directory.h"

namespace optlease {
namespace {

pid_t spawn(const std::string& role, const RoleArgs& args, const char* visible_devices = nullptr) {
  std::vector<std::string> words = {"memory_test",
                                    role,
                                    args.vault,
                                    args.key,
                                    std::to_string(args.bytes),
                                    std::to_string(args.seed),
                                    std::to_string(args.ordinal)};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (visible_devices != nullptr && std::string(*entry).starts_with("CUDA_VISIBLE_DEVICES=")) {
      continue;
    }
    variables.push_back(*entry);
  }
  if (visible_devices != nullptr) {
    variables.push_back(std::string("CUDA_VISIBLE_DEVICES=") + visible_devices);
  }
  std::vector<char*> environment;
  for (std::string& variable : variables) environment.push_back(variable.data());
  environment.push_back(nullptr);
  pid_t child = -1;
  const int error =
      ::posix_spawn(&child, "/proc/self/exe", nullptr, nullptr, argv.data(), environment.data());
  OPTLEASE_CHECK(error == 0, "posix_spawn: %s", std::strerror(error));
  return child;
}

// How a child ended: its exit code, or minus the signal.
int end_of(pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    OPTLEASE_CHECK(errno == EINTR, "waitpid: %s", std::strerror(errno));
  }
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

int run_child(const std::string& role, const RoleArgs& args, const char* visible = nullptr) {
  return end_of(spawn(role, args, visible));
}

class GpuMemory : public testing::Test {
 protected:
  GpuMemory() { start_launcher(); }
  ~GpuMemory() override { end_launcher(); }
  void start_launcher() {
    Result<Vault> vault = Vault::listen(vault_path());
    OPTLEASE_CHECK(vault.is_ok(), "%s", vault.status().text().c_str());
    vault_ = std::make_unique<Vault>(std::move(vault).value());
    stop_ = false;
    thread_ = std::thread([this] {
      while (!stop_) {
        pollfd poll_fd{vault_->fd(), POLLIN, 0};
        ::poll(&poll_fd, 1, 5);
        vault_->serve(static_cast<uint64_t>(now_ms()));
      }
    });
  }
  void end_launcher() {
    stop_ = true;
    thread_.join();
    vault_.reset();
  }
  std::string vault_path() const { return directory_.path() + "/vault.sock"; }
  RoleArgs args(const std::string& key, uint64_t bytes, uint64_t seed, int ordinal = 0) const {
    return {vault_path(), key, bytes, seed, ordinal};
  }
  // Starts a maker, waits until its buffer is in the vault, and kills it in full possession of it.
  void make_and_kill(const RoleArgs& made) {
    const pid_t maker = spawn("make", made);
    const Deadline deadline = Deadline::after_ms(kRoleTimeoutMs);
    while (!vault_get(made.vault, made.key, kRoleTimeoutMs).is_ok() && !deadline.passed()) {
      int status = 0;
      if (::waitpid(maker, &status, WNOHANG) == maker) FAIL() << "the maker ended by itself";
      ::usleep(2000);
    }
    ASSERT_EQ(::kill(maker, SIGKILL), 0);
    ASSERT_EQ(end_of(maker), -SIGKILL);
  }

  testing_support::TempDirectory directory_;
  std::unique_ptr<Vault> vault_;
  std::thread thread_;
  std::atomic<bool> stop_{false};
};

TEST_F(GpuMemory, IsIntactAfterItsMakerAndEveryLaterUserWereKilled) {
  const uint64_t bytes = (256ull << 20) + 8;  // not a multiple of the granularity
  make_and_kill(args("param.0.dense", bytes, 1));
  ASSERT_EQ(run_child("check-and-fill", args("param.0.dense", bytes, 1)), -SIGKILL);
  ASSERT_EQ(run_child("check-and-fill", args("param.0.dense", bytes, 2)), -SIGKILL);
  EXPECT_EQ(run_child("check", args("param.0.dense", bytes, 3)), 0);
}

TEST_F(GpuMemory, OfFourGibibytesIsImportedAtOnce) {
  const uint64_t bytes = 4ull << 30;
  make_and_kill(args("four-gib", bytes, 9));
  EXPECT_EQ(run_child("check", args("four-gib", bytes, 9)), 0);
  EXPECT_EQ(run_child("check", args("four-gib", bytes, 9)), 0);
}

TEST_F(GpuMemory, IsZeroWhenItIsNew) { EXPECT_EQ(run_child("zero", args("", 1ull << 30, 0)), 0); }

TEST_F(GpuMemory, IsRefusedInWordsWhereItIsTooSmallOrTooLargeOrNone) {
  EXPECT_EQ(run_child("refuse", args("", 0, 0)), 0);
}

TEST_F(GpuMemory, IsGivenBack) { EXPECT_EQ(run_child("leak", args("", 256ull << 20, 0)), 0); }

TEST_F(GpuMemory, KeepsSavedShardsOverTheEndOfEveryProcess) {
  const std::string segment = format("/optlease-test-gpu.%d", static_cast<int>(::getpid()));
  EXPECT_EQ(run_child("rank", args(segment, 64ull << 20, 0)), 0);
  EXPECT_EQ(vault_get(vault_path(), "grad_shard.0.dense", kRoleTimeoutMs).is_ok(), true);
  end_launcher();
  start_launcher();
  EXPECT_EQ(run_child("rank", args(segment, 64ull << 20, 1)), 0);
  EXPECT_EQ(run_child("rank", args(segment, 64ull << 20, 1)), 0);  // now from the vault
  Segment::unlink(segment);
}

// What a trainer sees that was given its rank's GPU alone, and one that was given the wrong one.
TEST_F(GpuMemory, IsFoundByAProcessThatSeesItsGpuAlone) {
  if (::access("/dev/nvidia1", F_OK) != 0 && ::access("/dev/nvidia3", F_OK) != 0) {
    GTEST_SKIP() << "needs two GPUs";
  }
  const uint64_t bytes = 32ull << 20;
  make_and_kill(args("second", bytes, 4, 1));
  EXPECT_EQ(run_child("check", args("second", bytes, 4, 1)), 0);
  EXPECT_EQ(run_child("check", args("second", bytes, 4, 0), "1"), 0);
  EXPECT_EQ(run_child("refuse-place", args("second", bytes, 4, 0)), 0);
}

}  // namespace
}  // namespace optlease

int main(int argc, char** argv) {
  if (argc == 7 && std::strncmp(argv[1], "--", 2) != 0) {
    optlease::RoleArgs args;
    args.vault = argv[2];
    args.key = argv[3];
    args.bytes = std::strtoull(argv[4], nullptr, 10);
    args.seed = std::strtoull(argv[5], nullptr, 10);
    args.ordinal = std::atoi(argv[6]);
    return optlease::run_role(argv[1], args);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
