// What must be refused in words, with the job untouched: wrong configurations, too little memory,
// paths that do not fit, strangers on the sockets.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "actors/runtime/exit_code.h"
#include "tests/support/resident_bytes.h"
#include "tests/support/system_job.h"
#include "tests/support/zmtp_peer.h"

namespace optlease {
namespace {

namespace fs = std::filesystem;

TEST(BadInput, AWrongConfigurationNamesFileLineAndColumnAndStartsNothing) {
  SystemJob job("config");
  const std::string path = job.directory() + "/wrong.toml";
  std::ofstream(path) << "[job]\nname = \"" << job.name()
                      << "\"\nsteps = -4\n[offload]\nchunk_size = 3\n";
  const CommandResult result = job.command({"run", path});
  EXPECT_EQ(result.exit_code, static_cast<int>(ExitCode::kBadConfiguration)) << result.output;
  EXPECT_NE(result.output.find("wrong.toml:3:"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("wrong.toml:5:"), std::string::npos) << result.output;
  EXPECT_NE(result.output.find("chunk_size_mb"), std::string::npos) << "no hint: " << result.output;
  EXPECT_TRUE(job.segments().empty());
}

TEST(BadInput, AReplayWhoseFirstFileIsMissingIsRefusedBeforeAnythingStarts) {
  SystemJob job("replay");
  const std::string config = std::string(OPTLEASE_SOURCE_DIR) + "/configs/replay.toml";
  const std::string path = job.directory() + "/absent.{step}.safetensors";
  for (const char* command : {"plan", "run"}) {
    const CommandResult result =
        job.command({command, config, "--set", "job.name=\"" + job.name() + "\"", "--set",
                     "gradients.replay_path=\"" + path + "\""});
    EXPECT_EQ(result.exit_code, static_cast<int>(ExitCode::kBadConfiguration)) << result.output;
    EXPECT_NE(result.output.find("gradients.replay_path: step 1: "), std::string::npos)
        << result.output;
    EXPECT_NE(result.output.find("/absent.1.safetensors"), std::string::npos) << result.output;
    EXPECT_TRUE(job.segments().empty());
  }
}

TEST(BadInput, MoreStateThanSharedMemoryIsRefusedWithNumbersBeforeAnythingStarts) {
  SystemJob job("memory");
  job.use("synthetic.toml", {"model.elements=400000000000"});
  job.start();
  const CommandResult result = job.wait(20);
  EXPECT_EQ(result.exit_code, static_cast<int>(ExitCode::kNoResources)) << result.output;
  EXPECT_NE(result.output.find("/dev/shm"), std::string::npos) << result.output;
  EXPECT_TRUE(job.segments().empty());
}

TEST(BadInput, ARunDirectoryWhoseSocketPathsDoNotFitIsRefused) {
  SystemJob job("path");
  const std::string deep = job.directory() + "/" + std::string(90, 'd');
  fs::create_directories(deep);
  const std::string command = "XDG_RUNTIME_DIR=" + deep + " " + OPTLEASE_BIN_DIR +
                              "/optlease run " + OPTLEASE_SOURCE_DIR +
                              "/configs/synthetic.toml > " + job.directory() + "/out.log 2>&1";
  const int status = std::system(command.c_str());
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), static_cast<int>(ExitCode::kBadConfiguration));
  std::ifstream in(job.directory() + "/out.log");
  const std::string output((std::istreambuf_iterator<char>(in)), {});
  EXPECT_NE(output.find("107"), std::string::npos) << output;
}

TEST(BadInput, AForeignSegmentUnderOurNameIsRefusedAndKept) {
  SystemJob job("foreign");
  const std::string path =
      "/dev/shm/optlease." + std::to_string(getuid()) + "." + job.name() + ".ctl";
  std::ofstream(path) << "somebody else's bytes";
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
  job.use("synthetic.toml", {"job.steps=2", "gradients.nonfinite_steps=[]", "model.elements=1000"});
  job.start({"--resume"});
  const CommandResult result = job.wait(30);
  EXPECT_EQ(result.exit_code, static_cast<int>(ExitCode::kCorruptState)) << result.output;
  std::ifstream in(path);
  const std::string kept((std::istreambuf_iterator<char>(in)), {});
  EXPECT_EQ(kept, "somebody else's bytes") << result.output;
  EXPECT_EQ(result.exit_code, static_cast<int>(ExitCode::kCorruptState)) << result.output;
  EXPECT_EQ(job.segments().size(), 1u) << "the refused run left its lock";
  // Who names it means it: it is this user's file, under a name of this user's job.
  EXPECT_EQ(job.command({"clean", "{job}"}).exit_code, 0);
  EXPECT_TRUE(job.segments().empty());
}

int connect_to(const fs::path& path) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return fd;
  close(fd);
  return -1;
}

// Reads what comes until `until` is in it (true), or the other end closes (false). Where neither
// happens within 20 s: true if nothing was waited for but the end.
bool reads_until(int fd, const std::string& until) {
  std::string seen;
  char buffer[512];
  for (int i = 0; i < 2000; ++i) {
    pollfd waiting{fd, POLLIN, 0};
    if (poll(&waiting, 1, 10) <= 0) continue;
    const ssize_t size = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
    if (size == 0 || (size < 0 && errno != EAGAIN && errno != EINTR)) return false;
    seen.append(buffer, static_cast<size_t>(std::max<ssize_t>(size, 0)));
    if (!until.empty() && seen.find(until) != std::string::npos) return true;
  }
  return until.empty();
}

// Resident memory of every process of the job.
uint64_t resident_bytes_of(const SystemJob& job) {
  uint64_t bytes = 0;
  for (const pid_t pid : job.processes()) {
    std::ifstream statm("/proc/" + std::to_string(pid) + "/statm");
    uint64_t total = 0, resident = 0;
    statm >> total >> resident;
    bytes += resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  }
  return bytes;
}

// A peer that speaks well until it claims to send 2^62 bytes: it is dropped, and nothing is made
// room for.
TEST(BadInput, AFrameOf2To62BytesOnEverySocketDropsItsSenderAndCostsNoMemory) {
  SystemJob job("huge");
  job.use("synthetic.toml",
          {"job.steps=100000", "model.elements=60000", "offload.chunk_size_mb=0.0625"});
  job.start();
  ASSERT_TRUE(job.wait_for_step(20));
  const uint64_t before = resident_bytes_of(job);
  ASSERT_GT(before, 0u);
  int dropped = 0;
  for (const auto& entry : fs::recursive_directory_iterator(job.directory())) {
    const std::string name = entry.path().filename();
    if (!entry.is_socket() || name.starts_with("vault")) continue;
    const int fd = connect_to(entry.path());
    ASSERT_GE(fd, 0) << entry.path();
    const std::string greeting =
        testing_support::zmtp_greeting(name.starts_with("telemetry") ? "SUB" : "DEALER");
    ASSERT_EQ(send(fd, greeting.data(), greeting.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(greeting.size()));
    ASSERT_TRUE(reads_until(fd, "READY")) << entry.path() << " does not take the greeting";
    const std::string bytes = testing_support::zmtp_long_header(1ull << 62) + "and a few of them";
    (void)!send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    EXPECT_FALSE(reads_until(fd, "")) << entry.path() << " keeps such a peer";
    ++dropped;
    close(fd);
  }
  EXPECT_EQ(dropped, 8) << "store, launcher and three of each actor";
  EXPECT_LT(resident_bytes_of(job), before + (64u << 20) + kSanitizerKeepsBytes);
  const int64_t step = job.status()["step_committed"].get<int64_t>();
  EXPECT_TRUE(job.wait_for_step(step + 10));
  EXPECT_EQ(job.command({"stop", "{job}"}).exit_code, 0);
  job.wait(30);
  EXPECT_TRUE(job.report()["restarts"].empty()) << job.report()["restarts"].dump(1);
}

// Random bytes and silence on each socket of a running job.
TEST(BadInput, StrangersOnEverySocketStopNothing) {
  SystemJob job("strangers");
  job.use("synthetic.toml",
          {"job.steps=100000", "model.elements=60000", "offload.chunk_size_mb=0.0625"});
  job.start();
  ASSERT_TRUE(job.wait_for_step(3));
  const uint64_t before = resident_bytes_of(job);
  std::mt19937 random(20261129);
  int sockets = 0;
  std::vector<int> silent;
  for (int round = 0; round < 20; ++round) {
    for (const auto& entry : fs::recursive_directory_iterator(job.directory())) {
      if (!entry.is_socket()) continue;
      ++sockets;
      const int fd = connect_to(entry.path());
      if (fd < 0) continue;
      std::string bytes(1 + random() % 5000, '\0');
      for (char& byte : bytes) byte = static_cast<char>(random());
      if (round % 3 == 1) bytes = testing_support::zmtp_greeting("DEALER") + bytes;
      [[maybe_unused]] const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (round % 4 == 0 && silent.size() < 64) {
        silent.push_back(fd);
      } else {
        close(fd);
      }
    }
  }
  EXPECT_GE(sockets, 8 * 20) << "store, launcher, vault and three of each actor";
  const int64_t step = job.status()["step_committed"].get<int64_t>();
  EXPECT_TRUE(job.wait_for_step(step + 10));
  EXPECT_LT(resident_bytes_of(job), before + (64u << 20) + kSanitizerKeepsBytes);
  for (int fd : silent) close(fd);
  EXPECT_EQ(job.command({"stop", "{job}"}).exit_code, 0);
  const CommandResult result = job.wait(30);
  const Json report = job.report();
  EXPECT_TRUE(report["restarts"].empty()) << report["restarts"].dump(1) << result.output;
}

// An actor that is stopped past its lease and goes on: its late commit is refused, nothing is lost.
// The model is large enough that an actor is mostly within a lease.
TEST(BadInput, AnActorStoppedPastItsLeaseHurtsNothing) {
  const std::vector<std::string> overrides = {"job.steps=150", "model.elements=2000000",
                                              "offload.chunk_size_mb=0.25", "restart.lease_ms=100",
                                              "gradients.nonfinite_steps=[]"};
  SystemJob undisturbed("lease-oracle");
  undisturbed.use("synthetic.toml", overrides);
  const Json oracle = undisturbed.run();
  SystemJob job("lease");
  job.use("synthetic.toml", overrides);
  job.start();
  ASSERT_TRUE(job.wait_for_step(2));
  int64_t refused = 0;
  for (int i = 0; i < 40 && refused == 0 && job.launcher_alive(); ++i) {
    const pid_t actor = job.pid_of("gpu_actor", i % 2);
    if (actor <= 0) break;
    kill(actor, SIGSTOP);
    poll(nullptr, 0, 300);
    kill(actor, SIGCONT);
    poll(nullptr, 0, 20);
    refused = job.status().value("refusals", int64_t{0});
  }
  EXPECT_GT(refused, 0) << "no late request was refused: nothing was tested";
  EXPECT_EQ(job.wait(90).exit_code, 0);
  EXPECT_EQ(job.report()["state_digest"], oracle["state_digest"]);
}

// A flipped bit in committed state is named, stops the job, and costs nothing but itself: the rest
// of the state and the logs stay for whoever looks.
// More windows than staging buffers: of some the bytes are yet to be read, whenever it happens.
// (What is altered after they were read is used by nobody: PrefetchOfCorruptState has that case.)
TEST(BadInput, AFlippedBitInALiveArenaIsNamedAndTheStateIsKept) {
  SystemJob job("flip");
  job.use("synthetic.toml",
          {"job.steps=100000", "gradients.nonfinite_steps=[]", "model.elements=60000",
           "offload.chunk_size_mb=0.0625", "offload.window_chunks=1", "offload.staging_buffers=3"});
  job.start();
  ASSERT_TRUE(job.wait_for_step(3));
  const std::string arena =
      "/dev/shm/optlease." + std::to_string(getuid()) + "." + job.name() + ".r1";
  // Every slot at one instant of its actor: whichever holds a committed version when it is read
  // next.
  const pid_t actor = job.pid_of("gpu_actor", 1);
  ASSERT_GT(actor, 0);
  kill(actor, SIGSTOP);
  const auto bytes = fs::file_size(arena);
  std::fstream file(arena, std::ios::in | std::ios::out | std::ios::binary);
  for (uint64_t at = 4096 + 512; at < bytes; at += 4096) {
    file.seekg(static_cast<std::streamoff>(at));
    const char byte = static_cast<char>(file.get() ^ 8);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(byte);
  }
  file.close();
  kill(actor, SIGCONT);
  const CommandResult result = job.wait(60);
  EXPECT_EQ(result.exit_code, static_cast<int>(ExitCode::kCorruptState)) << result.output;
  EXPECT_NE(result.output.find("chunk"), std::string::npos) << result.output;
  EXPECT_EQ(job.report()["state_kept"], true);
  EXPECT_TRUE(fs::exists(arena)) << "a failure cost the state";
  EXPECT_EQ(job.command({"clean", "{job}"}).exit_code, 0);
}

// An actor that never comes back is killed and replaced.
TEST(BadInput, AnActorThatHangsIsReplaced) {
  SystemJob job("hang");
  job.use("synthetic.toml",
          {"job.steps=200", "model.elements=60000", "restart.heartbeat_timeout_s=1"});
  job.start();
  ASSERT_TRUE(job.wait_for_step(5));
  const pid_t actor = job.pid_of("gpu_actor", 0);
  ASSERT_GT(actor, 0);
  kill(actor, SIGSTOP);
  EXPECT_EQ(job.wait(60).exit_code, 0);
  const Json report = job.report();
  ASSERT_EQ(report["restarts"].size(), 1u) << report["restarts"].dump(1);
  EXPECT_EQ(report["steps_committed"], 200);
}

}  // namespace
}  // namespace optlease
