#include "actors/wire/socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>

#include "shm/contract/limits.h"
#include "tests/support/forked_threads.h"
#include "tests/wire/sockets_fixture.h"

namespace optlease {
namespace {

using Type = Socket::Type;

TEST_F(Sockets, RouterAndDealerExchangeBinaryFrames) {
  Socket router = bind(Type::kRouter);
  Socket one = dealer("one");
  const std::string binary("a\0b\xff", 4);
  ASSERT_TRUE(one.send({{}, binary}).is_ok());
  Message message;
  ASSERT_TRUE(receive_soon(router, &message));
  EXPECT_EQ(message.peer, "one");
  EXPECT_EQ(message.frame, binary);
  EXPECT_EQ(message.pid, ::getpid());
  ASSERT_TRUE(router.send({"one", "answer"}).is_ok());
  ASSERT_TRUE(receive_soon(one, &message));
  EXPECT_EQ(message.peer, "");
  EXPECT_EQ(message.frame, "answer");
  EXPECT_FALSE(one.receive(&message));
}

TEST_F(Sockets, DealerMayConnectBeforeTheRouterIsThere) {
  Socket one = dealer("one");
  ASSERT_TRUE(one.send({{}, "early"}).is_ok());
  Socket router = bind(Type::kRouter);
  Message message;
  ASSERT_TRUE(receive_soon(router, &message));
  EXPECT_EQ(message.frame, "early");
}

TEST_F(Sockets, RouterKnowsNoStranger) {
  Socket router = bind(Type::kRouter);
  EXPECT_EQ(router.send({"nobody", "x"}).code(), StatusCode::kNotFound);
  EXPECT_EQ(router.send({"", "x"}).code(), StatusCode::kNotFound);
}

TEST_F(Sockets, DealerSaysBusyAtTheHighWaterMark) {
  SocketOptions options;
  options.send_high_water_mark = 3;
  options.linger_ms = 0;
  Socket one = connect(Type::kDealer, options);
  Status status;
  int sent = 0;
  while ((status = one.send({{}, "x"})).is_ok()) ASSERT_LT(++sent, 100);
  EXPECT_EQ(status.code(), StatusCode::kBusy);
  EXPECT_EQ(sent, 3);
}

TEST_F(Sockets, RouterSaysBusyToAPeerThatDoesNotRead) {
  SocketOptions options;
  options.send_high_water_mark = 2;
  options.receive_high_water_mark = 2;
  options.linger_ms = 0;
  Socket router = bind(Type::kRouter, options);
  options.routing_id = "deaf";
  Socket deaf = connect(Type::kDealer, options);
  ASSERT_TRUE(deaf.send({{}, "hello"}).is_ok());
  Message message;
  ASSERT_TRUE(receive_soon(router, &message));
  const std::string frame(1 << 20, 'x');
  Status status;
  int sent = 0;
  while ((status = router.send({"deaf", frame})).is_ok()) ASSERT_LT(++sent, 10000);
  EXPECT_EQ(status.code(), StatusCode::kBusy);
}

TEST_F(Sockets, APeerThatComesBackUnderItsNameTakesOver) {
  Socket router = bind(Type::kRouter);
  Message message;
  {
    Socket first = dealer("r0.i1");
    ASSERT_TRUE(first.send({{}, "first"}).is_ok());
    ASSERT_TRUE(receive_soon(router, &message));
    Socket second = dealer("r0.i1");  // while the first connection is still open
    ASSERT_TRUE(second.send({{}, "second"}).is_ok());
    ASSERT_TRUE(receive_soon(router, &message));
    EXPECT_EQ(message.frame, "second");
    ASSERT_TRUE(router.send({"r0.i1", "to the newer"}).is_ok());
    ASSERT_TRUE(receive_soon(second, &message));
    EXPECT_EQ(message.frame, "to the newer");
  }
}

TEST_F(Sockets, APrivateRoutingIdIsNobodyElses) {
  OPTLEASE_SKIP_FORKED_THREADS();
  const std::string mine = private_routing_id("r0.i1"), other = private_routing_id("r0.i1");
  EXPECT_EQ(mine.find("r0.i1@"), 0u);
  EXPECT_EQ(mine.size(), 6u + 16u);
  EXPECT_NE(mine, other);
  Socket router = bind(Type::kRouter);
  Socket one = dealer(mine);
  Message message;
  ASSERT_TRUE(one.send({{}, "hello"}).is_ok());
  ASSERT_TRUE(receive_soon(router, &message));
  // Another process, of the same name.
  const pid_t child = fork();
  if (child == 0) {
    SocketContext context;
    SocketOptions options;
    options.routing_id = other;
    Result<Socket> stranger = Socket::connect(context, Type::kDealer, path_, options);
    const bool sent = stranger.is_ok() && stranger.value().send({{}, "me too"}).is_ok();
    Message answer;
    _exit(sent && receive_soon(stranger.value(), &answer) ? 0 : 1);
  }
  ASSERT_TRUE(receive_soon(router, &message));
  EXPECT_EQ(message.peer, other);
  EXPECT_EQ(message.pid, child) << "not what it says, but who it is";
  ASSERT_TRUE(router.send({mine, "still here"}).is_ok());
  ASSERT_TRUE(receive_soon(one, &message));
  EXPECT_EQ(message.frame, "still here");
  ASSERT_TRUE(router.send({other, "bye"}).is_ok());
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST_F(Sockets, DealerFindsARestartedRouter) {
  Socket one = dealer("one");
  Message message;
  for (int life = 0; life < 3; ++life) {
    Socket router = bind(Type::kRouter);
    EXPECT_TRUE(eventually([&] {
      (void)one.send({{}, "life " + std::to_string(life)});
      return router.receive(&message) && message.frame == "life " + std::to_string(life);
    }));
  }
}

TEST_F(Sockets, SecondBindOfALivePathIsRefusedAndHarmless) {
  Socket router = bind(Type::kRouter);
  const Result<Socket> second = Socket::bind(context_, Type::kRouter, path_);
  ASSERT_FALSE(second.is_ok());
  EXPECT_EQ(second.status().code(), StatusCode::kAlreadyExists);
  Socket one = dealer("one");
  ASSERT_TRUE(one.send({{}, "still here"}).is_ok());
  Message message;
  EXPECT_TRUE(receive_soon(router, &message));
}

// A dead process whose descriptors are not closed yet looks like a live listener.
TEST_F(Sockets, ASuccessorTakesOverAPathWhoseListenerIsStillOpen) {
  Socket old = bind(Type::kRouter);
  SocketOptions options;
  options.take_over_path = true;
  Socket successor = bind(Type::kRouter, options);
  Socket peer = dealer("peer");
  ASSERT_TRUE(peer.send({"", "hello"}).is_ok());
  Message message;
  for (int i = 0; i < 3000 && !successor.receive(&message); ++i) ::usleep(1000);
  EXPECT_EQ(message.frame, "hello");
  { Socket gone = std::move(old); }
  EXPECT_TRUE(exists()) << "the old listener's end removed its successor's file";
}

TEST_F(Sockets, ATakeOverLeavesAFileThatIsNoSocketAlone) {
  std::ofstream(path_) << "mine";
  SocketOptions options;
  options.take_over_path = true;
  EXPECT_EQ(Socket::bind(context_, Type::kRouter, path_, options).status().code(),
            StatusCode::kAlreadyExists);
  EXPECT_TRUE(exists());
}

TEST_F(Sockets, StaleSocketFileIsReplaced) {
  leave_stale_socket();
  ASSERT_TRUE(exists());
  EXPECT_FALSE(is_listening(path_));
  Socket router = bind(Type::kRouter);
  EXPECT_TRUE(is_listening(path_));
  Socket one = dealer("one");
  ASSERT_TRUE(one.send({{}, "x"}).is_ok());
  Message message;
  EXPECT_TRUE(receive_soon(router, &message));
}

TEST_F(Sockets, SocketOfAKilledProcessIsReplaced) {
  OPTLEASE_SKIP_FORKED_THREADS();
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {  // a context of its own: libzmq's threads do not survive a fork
    SocketContext context;
    const Result<Socket> socket = Socket::bind(context, Type::kRouter, path_);
    (void)!::write(ready[1], socket.is_ok() ? "y" : "n", 1);
    for (;;) ::pause();
  }
  char answer = 0;
  ASSERT_EQ(::read(ready[0], &answer, 1), 1);
  EXPECT_EQ(answer, 'y');
  EXPECT_EQ(Socket::bind(context_, Type::kRouter, path_).status().code(),
            StatusCode::kAlreadyExists);
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  ::close(ready[0]);
  ::close(ready[1]);
  EXPECT_TRUE(exists());
  bind(Type::kRouter);
}

TEST_F(Sockets, AFileThatIsNoSocketIsLeftAlone) {
  std::ofstream(path_) << "precious";
  EXPECT_EQ(Socket::bind(context_, Type::kRouter, path_).status().code(),
            StatusCode::kAlreadyExists);
  std::string content;
  std::ifstream(path_) >> content;
  EXPECT_EQ(content, "precious");
}

TEST_F(Sockets, SocketFileIsPrivateAndGoesWithItsSocket) {
  {
    Socket router = bind(Type::kRouter);
    EXPECT_EQ(mode_of(path_), 0600u);
  }
  EXPECT_FALSE(exists());
}

TEST_F(Sockets, ClosingDoesNotRemoveTheFileOfASuccessor) {
  auto old_socket = std::make_unique<Socket>(bind(Type::kRouter));
  ASSERT_EQ(::unlink(path_.c_str()), 0);  // as a cleaner would, wrongly
  Socket successor = bind(Type::kRouter);
  old_socket.reset();
  EXPECT_TRUE(exists());
  EXPECT_TRUE(is_listening(path_));
}

TEST_F(Sockets, PathsOf107BytesWorkAnd108AreRefused) {
  const std::string stem = base_ + "/";
  const std::string longest = stem + std::string(kSocketPathBytesMax - stem.size(), 's');
  EXPECT_TRUE(Socket::bind(context_, Type::kRouter, longest).is_ok());
  EXPECT_TRUE(Socket::connect(context_, Type::kDealer, longest).is_ok());
  const Result<Socket> refused = Socket::bind(context_, Type::kRouter, longest + "s");
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Socket::connect(context_, Type::kDealer, longest + "s").status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(Sockets, MissingDirectoryIsSaidInWords) {
  const Result<Socket> refused = Socket::bind(context_, Type::kRouter, base_ + "/absent/x.sock");
  EXPECT_EQ(refused.status().code(), StatusCode::kNotFound);
  EXPECT_NE(refused.status().message().find("/absent/x.sock"), std::string::npos);
}

TEST_F(Sockets, PollAnswersSocketsFirstThenDescriptors) {
  Socket router = bind(Type::kRouter);
  Socket one = dealer("one");
  int pipe_fds[2];
  ASSERT_EQ(::pipe(pipe_fds), 0);
  PollSet set{{&router, &one}, {pipe_fds[0]}};
  std::vector<bool> ready;
  ASSERT_TRUE(poll_sockets(set, 0, &ready).is_ok());
  EXPECT_EQ(ready, (std::vector<bool>{false, false, false}));
  ASSERT_TRUE(one.send({{}, "x"}).is_ok());
  ASSERT_EQ(::write(pipe_fds[1], "y", 1), 1);
  EXPECT_TRUE(eventually([&] {
    return poll_sockets(set, 100, &ready).is_ok() && ready == std::vector<bool>{true, false, true};
  }));
  // A descriptor whose other end is closed is ready too: its reader must learn of it.
  char byte;
  ASSERT_EQ(::read(pipe_fds[0], &byte, 1), 1);
  ::close(pipe_fds[1]);
  ASSERT_TRUE(poll_sockets(set, 1000, &ready).is_ok());
  EXPECT_TRUE(ready[2]);
  ::close(pipe_fds[0]);
}

TEST_F(Sockets, ASignalEndsAPollEarlyAndIsNoError) {
  struct sigaction action {
  }, before{};
  action.sa_handler = [](int) {};
  ASSERT_EQ(::sigaction(SIGALRM, &action, &before), 0);
  Socket router = bind(Type::kRouter);
  std::vector<bool> ready;
  ::ualarm(20000, 0);
  const Status status = poll_sockets({{&router}, {}}, 60000, &ready);  // the test's limit is 120 s
  EXPECT_TRUE(status.is_ok()) << status.text();
  EXPECT_FALSE(ready[0]);
  ::sigaction(SIGALRM, &before, nullptr);
}

}  // namespace
}  // namespace optlease
