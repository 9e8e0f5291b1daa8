#include "launcher/control_channel.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "tests/support/temp_directory.h"

namespace optlease {
namespace {

using Command = ControlRequest::Command;

TEST(ControlRequest, SurvivesItsOwnJson) {
  ControlRequest restart;
  restart.command = Command::kRestart;
  restart.rank = 3;
  const auto again = control_request_from_json(to_json(restart));
  ASSERT_TRUE(again.is_ok());
  EXPECT_EQ(again.value().command, Command::kRestart);
  EXPECT_EQ(again.value().rank, 3u);
  ControlRequest stop;
  stop.command = Command::kStop;
  EXPECT_FALSE(control_request_from_json(to_json(stop)).value().keep.has_value());
  stop.keep = true;
  EXPECT_EQ(control_request_from_json(to_json(stop)).value().keep, true);
}

TEST(ControlRequest, RefusesWhatIsNoRequest) {
  for (const char* text :
       {"", "{", "[]", "{}", "{\"command\":1}", "{\"command\":\"dance\"}",
        "{\"command\":\"restart\"}", "{\"command\":\"restart\",\"rank\":-1}",
        "{\"command\":\"restart\",\"rank\":99999999999}", "{\"command\":\"stop\",\"keep\":3}"}) {
    EXPECT_FALSE(control_request_from_json(text).is_ok()) << text;
  }
}

TEST(ControlRequest, RandomBytesAreRefusedInWords) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 5000; ++i) {
    std::string text(random() % 64, '\0');
    for (char& c : text) c = static_cast<char>(random());
    const auto request = control_request_from_json(text);
    ASSERT_FALSE(request.is_ok()) << "seed 7, round " << i;
    ASSERT_FALSE(request.status().message().empty());
  }
}

TEST(ControlChannel, ALauncherAnswersATool) {
  const testing_support::TempDirectory directory;
  ASSERT_EQ(setenv("XDG_RUNTIME_DIR", directory.path().c_str(), 1), 0);
  const auto run = RunDirectory::of("control-test");
  ASSERT_TRUE(run.is_ok());
  ASSERT_TRUE(run.value().create().is_ok());
  SocketContext context;
  auto server = ControlServer::open(context, run.value());
  ASSERT_TRUE(server.is_ok()) << server.status().text();
  std::string answer;
  std::thread tool([&] {
    SocketContext own;
    ControlRequest request;
    request.command = Command::kStop;
    request.keep = true;
    const auto reply = ask_launcher(own, run.value(), request, 60000, [] { return Status::ok(); });
    if (reply) answer = reply.value();
  });
  std::optional<ControlServer::Received> received;
  for (int i = 0; i < 3000 && !received; ++i) {
    std::vector<bool> ready;
    ASSERT_TRUE(poll_sockets({{server.value().socket()}, {}}, 20, &ready).is_ok());
    received = server.value().receive();
  }
  if (received) server.value().reply(received->peer, error_reply_json(ExitCode::kUsage, "no"));
  tool.join();
  ASSERT_TRUE(received.has_value());
  EXPECT_EQ(received->request.command, Command::kStop);
  const auto reply = nlohmann::json::parse(answer);
  EXPECT_EQ(reply["ok"], false);
  EXPECT_EQ(reply["error"], "no");
  EXPECT_EQ(reply["code"], 2);
  unsetenv("XDG_RUNTIME_DIR");
}

TEST(ControlChannel, SilenceIsATimeoutThatNamesTheSocket) {
  const testing_support::TempDirectory directory;
  ASSERT_EQ(setenv("XDG_RUNTIME_DIR", directory.path().c_str(), 1), 0);
  const auto run = RunDirectory::of("nobody");
  ASSERT_TRUE(run.is_ok());
  SocketContext context;
  const auto reply =
      ask_launcher(context, run.value(), ControlRequest{}, 100, [] { return Status::ok(); });
  ASSERT_FALSE(reply.is_ok());
  EXPECT_EQ(reply.status().code(), StatusCode::kTimeout);
  EXPECT_NE(reply.status().message().find("launcher.sock"), std::string::npos);
  // A job that ends meanwhile ends the wait with its word, long before the time is over.
  const auto ended = ask_launcher(context, run.value(), ControlRequest{}, 60000, [] {
    return Status(StatusCode::kNotFound, "job nobody does not run");
  });
  EXPECT_EQ(ended.status().code(), StatusCode::kNotFound);
  unsetenv("XDG_RUNTIME_DIR");
}

}  // namespace
}  // namespace optlease
