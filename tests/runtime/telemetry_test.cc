#include "actors/runtime/telemetry.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <random>
#include <regex>
#include <set>
#include <sstream>

#include "shm/contract/limits.h"
#include "tests/support/test_seed.h"
#include "tests/wire/run_environment.h"

namespace optlease {
namespace {

// Every field another value, so that a swap of two keys shows.
ActorTelemetry distinct_telemetry() {
  ActorTelemetry t;
  t.job = "job";
  t.device = "cuda:0";
  t.phase = Phase::kStream;
  uint32_t next = 1;
  t.rank = next++;
  t.incarnation = next++;
  t.pid = next++;
  t.sequence = next++;
  t.time_seconds = next++ + 0.5;
  t.step_committed = next++;
  t.step = next++;
  t.chunks_done = next++;
  t.chunks_total = next++;
  for (uint64_t* counter :
       {&t.h2d_bytes_total, &t.d2h_bytes_total, &t.commits_total, &t.refusals_total,
        &t.restarts_total, &t.staging_bytes, &t.staging_peak_bytes, &t.staging_budget_bytes,
        &t.resident_bytes, &t.rss_bytes, &t.private_bytes, &t.steps_total, &t.steps_skipped_total,
        &t.leases_deferred_total, &t.bounced_bytes_total, &t.pinned_bytes, &t.pin_refused_bytes}) {
    *counter = (1ull << 60) + next++;
  }
  for (double* number : {&t.step_h2d_bytes_per_second,
                         &t.step_d2h_bytes_per_second,
                         &t.lease_wait_seconds_total,
                         &t.credit_wait_seconds_total,
                         &t.exposed_stall_seconds_total,
                         &t.step_lease_wait_seconds,
                         &t.step_exposed_stall_seconds,
                         &t.kernel_seconds_total,
                         &t.step_seconds,
                         &t.step_seconds_history.p50,
                         &t.step_seconds_history.p90,
                         &t.step_seconds_history.p99,
                         &t.step_seconds_history.max,
                         &t.timeline.wait_peers,
                         &t.timeline.reduce,
                         &t.timeline.wait_open,
                         &t.timeline.stream,
                         &t.timeline.wait_committed,
                         &t.timeline.gather,
                         &t.grad_norm}) {
    *number = next++ + 0.1;
  }
  return t;
}

ActorTelemetry reread(const ActorTelemetry& telemetry) {
  const Result<ActorTelemetry> read = telemetry_from_json(to_json(telemetry));
  EXPECT_TRUE(read.is_ok()) << read.status().text();
  return read.value();
}

TEST(Telemetry, EveryFieldComesBack) {
  const ActorTelemetry t = distinct_telemetry();
  const ActorTelemetry r = reread(t);
  EXPECT_EQ(to_json(r), to_json(t));
  EXPECT_EQ(r.job, "job");
  EXPECT_EQ(r.rank, 1u);
  EXPECT_EQ(r.phase, Phase::kStream);
  EXPECT_EQ(r.h2d_bytes_total, t.h2d_bytes_total);
  EXPECT_EQ(r.timeline.gather, t.timeline.gather);
  EXPECT_EQ(r.step_seconds_history.p99, t.step_seconds_history.p99);
}

TEST(Telemetry, KeysNameTheirOwnMembers) {
  ActorTelemetry t = distinct_telemetry();
  t.h2d_bytes_total = 111;
  t.d2h_bytes_total = 222;
  t.refusals_total = 333;
  t.timeline.wait_open = 4.25;
  t.chunks_done = 555;
  const std::string text = to_json(t);
  for (const char* part :
       {"\"optlease_actor_h2d_bytes_total\":111", "\"optlease_actor_d2h_bytes_total\":222",
        "\"optlease_actor_refusals_total\":333", "\"optlease_actor_step_wait_open_seconds\":4.25",
        "\"optlease_actor_step_chunks_done\":555", "\"phase\":\"stream\"", "\"schema\":2"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  }
}

TEST(Telemetry, UnknownNumbersAreNull) {
  ActorTelemetry t = distinct_telemetry();
  t.grad_norm = HUGE_VAL;
  const std::string text = to_json(t);
  EXPECT_NE(text.find("\"optlease_actor_grad_norm\":null"), std::string::npos);
  const ActorTelemetry r = reread(t);
  EXPECT_TRUE(std::isnan(r.grad_norm));
}

TEST(Telemetry, StringsFromOutsideCannotBreakTheDocument) {
  ActorTelemetry t = distinct_telemetry();
  t.device = "\xff\n\"";
  EXPECT_TRUE(telemetry_from_json(to_json(t)).is_ok());
  EXPECT_EQ(to_json(t).find('\n'), std::string::npos);
}

TEST(Telemetry, EachMissingFieldIsNamedAndNewOnesAreNoError) {
  const std::string text = to_json(distinct_telemetry());
  for (const std::string& name : telemetry_field_names()) {
    std::string without = text;
    without.replace(without.find("\"" + name + "\""), name.size() + 2, "\"another\"");
    const Result<ActorTelemetry> read = telemetry_from_json(without);
    ASSERT_FALSE(read.is_ok()) << name;
    EXPECT_NE(read.status().message().find("'" + name + "'"), std::string::npos);
  }
  EXPECT_TRUE(telemetry_from_json("{\"new\":[1]," + text.substr(1)).is_ok());
}

TEST(Telemetry, OtherSchemasTypesAndGarbageAreRefused) {
  std::string text = to_json(distinct_telemetry());
  std::string other = text;
  other.replace(other.find("\"schema\":2"), 10, "\"schema\":3");
  EXPECT_EQ(telemetry_from_json(other).status().code(), StatusCode::kWrongVersion);
  for (const std::string bad :
       {"", "{", "[]", "1", "\xff", "{\"schema\":\"1\"}", "{\"schema\":-1}"}) {
    EXPECT_EQ(telemetry_from_json(bad).status().code(), StatusCode::kInvalidArgument) << bad;
  }
  text.replace(text.find("\"rank\":1"), 8, "\"rank\":-1");
  EXPECT_FALSE(telemetry_from_json(text).is_ok());
}

TEST(Telemetry, SurvivesRandomChangesOfADocument) {
  std::mt19937_64 random(test_seed());
  const std::string good = to_json(distinct_telemetry());
  int refused = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string text = good;
    for (int i = 0; i < 3; ++i) text[random() % text.size()] = static_cast<char>(random());
    refused += telemetry_from_json(text).is_ok() ? 0 : 1;
  }
  EXPECT_GT(refused, 0);
}

TEST(Telemetry, LargestDocumentFitsItsFrame) {
  ActorTelemetry t = distinct_telemetry();
  t.job = std::string(kJobNameBytesMax, 'j');
  t.device = std::string(256, '\x01');  // six bytes each as JSON
  EXPECT_LT(to_json(t).size(), kTelemetryBytesMax);
}

TEST(Telemetry, ThePageListsEveryFieldAndNoOther) {
  std::ifstream file(OPTLEASE_SOURCE_DIR "/docs/MONITORING.md");
  ASSERT_TRUE(file.is_open());
  std::set<std::string> listed;
  const std::regex row("^\\| `([a-z0-9_]+)` \\|.*\\|.*\\|.*$");
  for (std::string line; std::getline(file, line);) {
    std::smatch match;
    if (std::regex_match(line, match, row)) {
      EXPECT_TRUE(listed.insert(match[1]).second) << match[1] << " is listed twice";
    }
  }
  const std::vector<std::string> names = telemetry_field_names();
  EXPECT_EQ(listed, std::set<std::string>(names.begin(), names.end()));
}

TEST(StepTimes, PercentilesAreTimesThatWereMeasured) {
  StepTimes times;
  EXPECT_EQ(times.summary().max, 0);
  times.add(3);
  EXPECT_EQ(times.summary().p50, 3);
  EXPECT_EQ(times.summary().p99, 3);
  StepTimes hundred;
  for (int i = 100; i >= 1; --i) hundred.add(i);
  EXPECT_EQ(hundred.summary().p50, 50);
  EXPECT_EQ(hundred.summary().p90, 90);
  EXPECT_EQ(hundred.summary().p99, 99);
  EXPECT_EQ(hundred.summary().max, 100);
}

TEST(StepTimes, ForgetsTheOldestFirst) {
  StepTimes times;
  times.add(1000);
  for (size_t i = 0; i < kStepTimesMax - 1; ++i) times.add(1);
  EXPECT_EQ(times.summary().max, 1000);
  times.add(2);
  EXPECT_EQ(times.summary().max, 2);
  EXPECT_EQ(times.count(), kStepTimesMax);
}

class PublisherTest : public RunEnvironment {
 protected:
  PublisherTest() : directory_(make_run_directory("job")) {
    telemetry_ = distinct_telemetry();
    telemetry_.rank = 0;
  }
  TelemetryPublisher open() {
    Result<TelemetryPublisher> publisher =
        TelemetryPublisher::open(context_, directory_, Rank(0), 200);
    EXPECT_TRUE(publisher.is_ok()) << publisher.status().text();
    return std::move(publisher).value();
  }
  Socket connect(Socket::Type type, const std::string& path) {
    return std::move(Socket::connect(context_, type, path)).value();
  }
  static ActorTelemetry parsed(const Message& message) {
    const Result<ActorTelemetry> read = telemetry_from_json(message.frame);
    EXPECT_TRUE(read.is_ok()) << read.status().text();
    return read.value();
  }

  void publish_next(TelemetryPublisher& publisher) {
    clock_ms_ += 1000;
    EXPECT_TRUE(publisher.publish(telemetry_, clock_ms_));
  }

  SocketContext context_;
  RunDirectory directory_;
  ActorTelemetry telemetry_;
  int64_t clock_ms_ = 0;
};

TEST_F(PublisherTest, PublishesAtItsInterval) {
  TelemetryPublisher publisher = open();
  EXPECT_TRUE(publisher.publish(telemetry_, 1000));
  EXPECT_FALSE(publisher.publish(telemetry_, 1199));
  EXPECT_FALSE(publisher.due(1199));
  EXPECT_TRUE(publisher.publish(telemetry_, 1200));
  EXPECT_FALSE(publisher.publish(telemetry_, 1399));
}

TEST_F(PublisherTest, SequencesCountEveryDocument) {
  TelemetryPublisher publisher = open();
  Socket sub = connect(Socket::Type::kSub, directory_.telemetry_socket(Rank(0)));
  Message message;
  ASSERT_TRUE(eventually([&] {
    publish_next(publisher);
    return sub.receive(&message);
  }));
  while (sub.receive(&message)) {
  }
  const uint64_t first = parsed(message).sequence;
  EXPECT_GE(first, 1u);
  publish_next(publisher);
  ASSERT_TRUE(receive_soon(sub, &message));
  EXPECT_GT(parsed(message).sequence, first);
  EXPECT_GT(parsed(message).time_seconds, 1.6e9);
}

TEST_F(PublisherTest, SnapshotHoldsTheSequencePublishedLast) {
  TelemetryPublisher publisher = open();
  for (int i = 0; i < 5; ++i) publish_next(publisher);
  Socket dealer = connect(Socket::Type::kDealer, directory_.snapshot_socket(Rank(0)));
  ASSERT_TRUE(dealer.send({{}, "?"}).is_ok());
  Message message;
  ASSERT_TRUE(eventually([&] {
    publisher.answer_snapshots(telemetry_);
    return dealer.receive(&message);
  }));
  EXPECT_EQ(parsed(message).sequence, 5u);
  EXPECT_EQ(parsed(message).commits_total, telemetry_.commits_total);
}

TEST_F(PublisherTest, WhoAskedOnceHearsTheLastWordOfAnOrderlyEnd) {
  std::optional<TelemetryPublisher> publisher(open());
  Socket asker = connect(Socket::Type::kDealer, directory_.snapshot_socket(Rank(0)));
  Socket gone = connect(Socket::Type::kDealer, directory_.snapshot_socket(Rank(0)));
  ASSERT_TRUE(asker.send({{}, "?"}).is_ok());
  ASSERT_TRUE(gone.send({{}, "?"}).is_ok());
  Message message;
  for (Socket* each : {&asker, &gone}) {
    ASSERT_TRUE(eventually([&] {
      publisher->answer_snapshots(telemetry_);
      return each->receive(&message);
    }));
  }
  { const Socket closed = std::move(gone); }
  telemetry_.steps_total += 1;
  publisher->answer_last(telemetry_);
  publisher.reset();
  ASSERT_TRUE(receive_soon(asker, &message));
  EXPECT_EQ(parsed(message).steps_total, telemetry_.steps_total);
}

TEST_F(PublisherTest, RequestersThatLeaveOrFloodAreHarmless) {
  TelemetryPublisher publisher = open();
  const std::string path = directory_.snapshot_socket(Rank(0));
  for (int i = 0; i < 50; ++i) {
    Socket hasty = connect(Socket::Type::kDealer, path);
    for (int j = 0; j < 20; ++j) (void)hasty.send({{}, "?"});
    publisher.answer_snapshots(telemetry_);
  }
  Socket dealer = connect(Socket::Type::kDealer, path);
  ASSERT_TRUE(dealer.send({{}, "?"}).is_ok());
  Message message;
  EXPECT_TRUE(eventually([&] {
    publisher.answer_snapshots(telemetry_);
    return dealer.receive(&message);
  }));
}

TEST_F(PublisherTest, RandomBytesOnBothSocketsAreHarmless) {
  std::mt19937_64 random(test_seed());
  TelemetryPublisher publisher = open();
  for (int round = 0; round < 40; ++round) {
    const std::string path =
        round % 2 == 0 ? directory_.snapshot_socket(Rank(0)) : directory_.telemetry_socket(Rank(0));
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    ASSERT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    std::string bytes(1 + random() % 5000, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    (void)!::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    publish_next(publisher);
    publisher.answer_snapshots(telemetry_);
    ::close(fd);
  }
  // A frame far past the request limit, from a peer that speaks ZeroMQ.
  Socket huge = connect(Socket::Type::kDealer, directory_.snapshot_socket(Rank(0)));
  ASSERT_TRUE(huge.send({{}, std::string(1 << 20, 'x')}).is_ok());
  Socket sub = connect(Socket::Type::kSub, directory_.telemetry_socket(Rank(0)));
  Socket dealer = connect(Socket::Type::kDealer, directory_.snapshot_socket(Rank(0)));
  ASSERT_TRUE(dealer.send({{}, "?"}).is_ok());
  Message message;
  EXPECT_TRUE(eventually([&] {
    publisher.answer_snapshots(telemetry_);
    return dealer.receive(&message);
  }));
  EXPECT_TRUE(eventually([&] {
    publish_next(publisher);
    return sub.receive(&message);
  }));
}

TEST_F(PublisherTest, TwoActorsOfOneRankCannotPublishAtOnce) {
  TelemetryPublisher publisher = open();
  EXPECT_EQ(TelemetryPublisher::open(context_, directory_, Rank(0), 200).status().code(),
            StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace optlease
