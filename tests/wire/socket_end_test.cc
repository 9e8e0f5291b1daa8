// How sockets end while messages are on their way: fault case 29.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <memory>

#include "tests/support/forked_threads.h"
#include "tests/wire/sockets_fixture.h"

namespace optlease {
namespace {

using Type = Socket::Type;

// Ends in a child, so that one that hangs is seen and not waited for: what it says, or minus its
// signal. A socket lingers for a second at most; a minute is far beyond.
int end_of(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

// A router that is heard once and then lives on, without reading, until it is killed.
pid_t start_deaf_router(const std::string& path) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::alarm(120);
  SocketContext context;
  SocketOptions options;
  options.receive_high_water_mark = 1;
  Result<Socket> router = Socket::bind(context, Type::kRouter, path, options);
  Message message;
  while (router.is_ok() && !router.value().receive(&message)) ::usleep(1000);
  (void)router.value().send({message.peer, "heard"}).is_ok();
  while (true) ::pause();
}

// Fault case 29: the peer that was there is dead, and messages to it are not sent.
TEST_F(Sockets, EndsWithUnsentMessagesAndADeadPeer) {
  OPTLEASE_SKIP_FORKED_THREADS();
  for (const bool dies_before : {true, false}) {
    const int end = end_of([&] {
      const pid_t peer = start_deaf_router(path_);
      int queued = 0;
      {
        SocketContext context;
        SocketOptions options;
        options.routing_id = "one";
        Result<Socket> one = Socket::connect(context, Type::kDealer, path_, options);
        if (!one.is_ok() || !one.value().send({{}, "hello"}).is_ok()) return 1;
        Message heard;
        if (!receive_soon(one.value(), &heard)) return 2;
        if (dies_before) {
          ::kill(peer, SIGKILL);
          ::waitpid(peer, nullptr, 0);
        }
        for (int i = 0; i < 200; ++i) {
          queued += one.value().send({{}, std::string(100'000, 'x')}).is_ok() ? 1 : 0;
        }
        if (!dies_before) {
          ::kill(peer, SIGKILL);
          ::waitpid(peer, nullptr, 0);
        }
      }
      return queued > 50 ? 0 : 3;  // 5 MB: more than the connection takes
    });
    EXPECT_EQ(end, 0) << (dies_before ? "dead before they were sent" : "dead while they were");
  }
}

TEST_F(Sockets, EndsWithUnsentMessagesToAPeerThatNeverCame) {
  OPTLEASE_SKIP_FORKED_THREADS();
  const int end = end_of([&] {
    SocketContext context;
    Result<Socket> one = Socket::connect(context, Type::kDealer, path_, {});
    for (int i = 0; i < 100; ++i) {
      if (!one.value().send({{}, std::string(1000, 'x')}).is_ok()) return 1;
    }
    return 0;
  });
  EXPECT_EQ(end, 0);
}

TEST_F(Sockets, EndsWhileAConnectedPeerDoesNotRead) {
  SocketOptions options;
  options.receive_high_water_mark = 1;
  Socket deaf = bind(Type::kRouter, options);
  auto one = std::make_unique<Socket>(dealer("one"));
  const std::string frame(1 << 19, 'x');
  int taken = 0;
  for (int i = 0; i < 40; ++i) taken += one->send({{}, frame}).is_ok() ? 1 : 0;
  EXPECT_GT(taken, 1) << "nothing is on its way when the socket ends";
  one.reset();
  Message first;
  EXPECT_TRUE(receive_soon(deaf, &first)) << "what was under way is still whole";
  EXPECT_EQ(first.frame, frame);
}

}  // namespace
}  // namespace optlease
