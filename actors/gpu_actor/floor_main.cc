// optlease-floor: measures one rank's link for `optlease bench`, which starts one a rank and hands
// each a SOCK_SEQPACKET socket: setup, then orders, each answered. Ends when the socket closes.
#include <signal.h>
#include <sys/socket.h>

#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <optional>
#include <string>

#include "actors/gpu_actor/device.h"
#include "actors/gpu_actor/dma_floor.h"
#include "actors/runtime/exception_status.h"
#include "actors/runtime/exit_code.h"
#include "actors/runtime/log.h"
#include "actors/runtime/program_start.h"
#include "shm/eintr.h"

namespace optlease {
namespace {

// Memory is pinned in the background, at some GB/s. The launcher waits longer than this.
constexpr uint64_t kWarmMsMin = 5'000;
constexpr uint64_t kPinnedBytesPerMs = 500'000;
constexpr const char* kUsage =
    "optlease-floor --control-fd N\n"
    "What the link of one rank can do: copies between pinned shared memory and the device's\n"
    "memory. Started by `optlease bench`, which tells it over the socket N what to measure.\n";

// Nothing: the other side is gone, which is how this process is told to end.
std::optional<std::string> receive(int fd) {
  std::string datagram(kFloorDatagramBytesMax, '\0');
  const ssize_t got = retry_eintr([&] { return recv(fd, datagram.data(), datagram.size(), 0); });
  if (got <= 0) return std::nullopt;
  datagram.resize(static_cast<size_t>(got));
  return datagram;
}

bool answer(int fd, const FloorReply& reply) {
  const std::string text = to_json(reply);
  return retry_eintr([&] { return send(fd, text.data(), text.size(), MSG_NOSIGNAL); }) ==
         static_cast<ssize_t>(text.size());
}

ExitCode fail(int fd, const Status& status) {
  FloorReply reply;
  reply.failure = status.message().substr(0, kFloorDatagramBytesMax / 8);
  reply.exit_code = static_cast<int>(exit_code_for(status));
  (void)answer(fd, reply);
  return exit_code_for(status);
}

ExitCode serve(int fd) {
  const auto first = receive(fd);
  if (!first) return ExitCode::kLauncherLost;
  const auto setup = floor_setup_from(*first);
  if (!setup) return fail(fd, setup.status());
  const auto floor =
      DmaFloor::open(setup.value(), kWarmMsMin + setup.value().memory_bytes() / kPinnedBytesPerMs);
  if (!floor) return fail(fd, floor.status());
  FloorReply ready;
  ready.pinned_ms = floor.value()->pinned_ms();
  if (!answer(fd, ready)) return ExitCode::kLauncherLost;
  while (const auto datagram = receive(fd)) {
    const auto order = floor_order_from(*datagram);
    if (!order) return fail(fd, order.status());
    const auto reply = floor.value()->measure(order.value());
    if (!reply) return fail(fd, reply.status());
    if (!answer(fd, reply.value())) return ExitCode::kLauncherLost;
  }
  return ExitCode::kOk;
}

ExitCode run(int argc, char** argv) {
  if (argc == 2 && std::strcmp(argv[1], "--help") == 0) {
    std::fputs(kUsage, stdout);
    return ExitCode::kOk;
  }
  int fd = -1;
  const char* end = argc == 3 ? argv[2] + std::strlen(argv[2]) : nullptr;
  if (argc != 3 || std::strcmp(argv[1], "--control-fd") != 0 ||
      std::from_chars(argv[2], end, fd).ptr != end || fd < 0) {
    std::fputs(kUsage, stderr);
    return ExitCode::kUsage;
  }
  init_logging("floor", LogLevel::kWarn);
  return serve(fd);
}

}  // namespace
}  // namespace optlease

int main(int argc, char** argv) {
  optlease::prepare_descriptors();
  signal(SIGPIPE, SIG_IGN);
  optlease::prepare_device_environment();
  try {
    return static_cast<int>(optlease::run(argc, argv));
  } catch (const std::exception& error) {
    const optlease::Status status = optlease::status_of(error);
    std::fprintf(stderr, "optlease-floor: %s\n", status.message().c_str());
    return static_cast<int>(exit_code_for(status));
  }
}
