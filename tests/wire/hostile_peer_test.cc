// Peers that speak no ZeroMQ, or speak it badly, and subscribers that come, go or sleep.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "actors/wire/socket.h"
#include "shm/contract/limits.h"
#include "tests/support/resident_bytes.h"
#include "tests/support/test_seed.h"
#include "tests/support/zmtp_peer.h"
#include "tests/wire/run_environment.h"

namespace optlease {
namespace {

using testing_support::zmtp_greeting;
using testing_support::zmtp_long_header;
using Type = Socket::Type;

class HostilePeer : public RunEnvironment {
 protected:
  HostilePeer() : path_(make_run_directory("job").store_socket()) {}

  Socket bind(Type type, const SocketOptions& options = {}) {
    return std::move(Socket::bind(context_, type, path_, options)).value();
  }
  Socket connect(Type type, const SocketOptions& options = {}) {
    return std::move(Socket::connect(context_, type, path_, options)).value();
  }

  int raw_connect() const {
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    EXPECT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return fd;
  }
  static void raw_send(int fd, const std::string& bytes) {
    (void)!::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // True once the other end has closed.
  static bool is_dropped(int fd) {
    char buffer[4096];
    ssize_t size;
    while ((size = ::recv(fd, buffer, sizeof buffer, MSG_DONTWAIT)) > 0) {
    }
    return size == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  }

  // Greets, and waits for the answer: a message that overtakes the handshake is a protocol error.
  int zmtp_connect() const {
    const int fd = raw_connect();
    raw_send(fd, zmtp_greeting("DEALER"));
    std::string answer;
    char buffer[256];
    EXPECT_TRUE(eventually([&] {
      const ssize_t size = ::recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
      if (size > 0) answer.append(buffer, static_cast<size_t>(size));
      return answer.find("READY") != std::string::npos;
    }));
    return fd;
  }
  SocketContext context_;
  std::string path_;
};

// The directory and the socket's mode keep them out; where both were opened the kernel's word of
// who they are does.
TEST_F(HostilePeer, OfAnotherUserIsDroppedBeforeAByteIsSaidToIt) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  for (const Type type : {Type::kRouter, Type::kPub}) {
    const Socket socket = bind(type);
    for (const std::string& folder : {base_, run_root(), base_ + "/optlease/job"}) {
      ASSERT_EQ(::chmod(folder.c_str(), 0755), 0);
    }
    ASSERT_EQ(::chmod(path_.c_str(), 0666), 0);
    const auto bytes_heard = [&](uid_t uid) {
      const pid_t child = ::fork();
      if (child == 0) {
        if (::setuid(uid) != 0) ::_exit(99);
        const int fd = raw_connect();
        char greeting = 0;  // which the library says first
        ::_exit(::recv(fd, &greeting, 1, MSG_WAITALL) > 0 ? 1 : 0);
      }
      int status = 0;
      EXPECT_EQ(::waitpid(child, &status, 0), child);
      return WIFEXITED(status) ? WEXITSTATUS(status) : 98;
    };
    EXPECT_EQ(bytes_heard(65534), 0);
    EXPECT_EQ(bytes_heard(0), 1);
  }
}

TEST_F(HostilePeer, RandomBytesDisturbNobody) {
  std::mt19937_64 random(test_seed());
  Socket router = bind(Type::kRouter);
  SocketOptions options;
  options.routing_id = "good";
  Socket good = connect(Type::kDealer, options);
  Message message;
  for (int round = 0; round < 60; ++round) {
    const int fd = round % 3 == 1 ? zmtp_connect() : raw_connect();
    std::string bytes(1 + random() % 3000, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (round % 3 == 2) bytes.resize(std::min<size_t>(bytes.size(), 1 + random() % 64));
    raw_send(fd, bytes);
    const std::string text = "round " + std::to_string(round);
    ASSERT_TRUE(good.send({{}, text}).is_ok());
    // What the stranger's bytes happen to spell may arrive too, under a name that is not "good".
    ASSERT_TRUE(eventually([&] {
      return router.receive(&message) && message.peer == "good" && message.frame == text;
    }));
    ::close(fd);
  }
}

TEST_F(HostilePeer, AFrameLargerThanTheLimitDropsItsSenderOnly) {
  SocketOptions options;
  options.message_bytes_max = 1000;
  Socket router = bind(Type::kRouter, options);
  Socket good = connect(Type::kDealer);
  const int fd = zmtp_connect();
  raw_send(fd, std::string("\0\5hello", 7));
  Message message;
  ASSERT_TRUE(receive_soon(router, &message));  // the stranger speaks well enough to be heard
  EXPECT_EQ(message.frame, "hello");
  const uint64_t before = resident_bytes();
  raw_send(fd, zmtp_long_header(1ull << 40));
  EXPECT_TRUE(eventually([&] { return is_dropped(fd); }));
  EXPECT_LT(resident_bytes(), before + (64u << 20) + kSanitizerKeepsBytes);
  ::close(fd);
  ASSERT_TRUE(good.send({{}, std::string(1000, 'x')}).is_ok());
  ASSERT_TRUE(receive_soon(router, &message));
  EXPECT_EQ(message.frame.size(), 1000u);
}

TEST_F(HostilePeer, LimitAppliesWithoutOptionsToo) {
  Socket router = bind(Type::kRouter);
  const int fd = zmtp_connect();
  raw_send(fd, zmtp_long_header(kMessageBytesMax + 1));
  EXPECT_TRUE(eventually([&] { return is_dropped(fd); }));
  ::close(fd);
}

TEST_F(HostilePeer, MultiPartMessagesAreSwallowedWhole) {
  Socket router = bind(Type::kRouter);
  const int fd = zmtp_connect();
  raw_send(fd, std::string("\1\1a\1\1b\0\1c", 9));  // three parts, one message
  raw_send(fd, std::string("\1\0\0\1r", 5));        // an empty part, then one: what a REQ sends
  raw_send(fd, std::string("\0\4good", 6));
  Message message;
  ASSERT_TRUE(receive_soon(router, &message));
  EXPECT_EQ(message.frame, "good");
  EXPECT_FALSE(router.receive(&message));
  ::close(fd);
}

TEST_F(HostilePeer, AThousandSubscribersComeAndGoAndMemoryStaysFlat) {
  SocketOptions options;
  options.linger_ms = 0;
  Socket pub = bind(Type::kPub, options);
  Message message;
  int heard = 0;
  uint64_t after_a_hundred = 0;
  for (int i = 0; i < 1000; ++i) {
    if (i == 100) after_a_hundred = resident_bytes();
    Socket sub = connect(Type::kSub, options);
    ASSERT_TRUE(pub.send({{}, "tick"}).is_ok());
    if (i % 100 != 0) continue;  // most leave before they have even arrived
    const bool got = eventually([&] {
      EXPECT_TRUE(pub.send({{}, "tick"}).is_ok());
      return sub.receive(&message);
    });
    ASSERT_TRUE(got) << "subscriber " << i;
    EXPECT_EQ(message.frame, "tick");
    ++heard;
  }
  EXPECT_EQ(heard, 10);
  // 10 KiB for each of 900 that left would be 9 MiB.
  EXPECT_LT(resident_bytes(), after_a_hundred + (8u << 20) + kSanitizerKeepsBytes);
}

TEST_F(HostilePeer, ASleepingSubscriberCostsBoundedMemoryAndNoTime) {
  SocketOptions options;
  options.linger_ms = 0;
  options.send_high_water_mark = 16;
  options.receive_high_water_mark = 16;
  Socket pub = bind(Type::kPub, options);
  Socket sleeper = connect(Type::kSub, options);
  Message message;
  ASSERT_TRUE(eventually([&] {
    EXPECT_TRUE(pub.send({{}, "tick"}).is_ok());
    return sleeper.receive(&message);
  }));
  const std::string frame(kTelemetryBytesMax, 'x');
  const uint64_t before = resident_bytes();
  // 2.5 GiB in all; a send that blocks would never end, one that keeps them would show below.
  for (int i = 0; i < 40000; ++i) ASSERT_TRUE(pub.send({{}, frame}).is_ok());
  EXPECT_LT(resident_bytes(), before + (128u << 20) + kSanitizerKeepsBytes);
}

}  // namespace
}  // namespace optlease
