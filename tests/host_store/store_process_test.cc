// The host store as a real process: kills, refusals, ends.
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>
#include <sstream>

#include "tests/host_store/store_process.h"
#include "tests/support/test_seed.h"

namespace optlease {
namespace {

int code(ExitCode exit_code) { return static_cast<int>(exit_code); }

TEST(HostStoreProcess, CommitsStepsOverSockets) {
  StoreProcess job;
  job.start(true);
  job.add_actors();
  ASSERT_TRUE(job.run_until_published(6));
  EXPECT_EQ(job.check(6), "");
}

// Fault case 10.
TEST(HostStoreProcess, SurvivesSigkillAtRandomMomentsWithExactVersionsAndNoLostSlot) {
  std::mt19937_64 random(test_seed());
  StoreProcess job;
  job.start(true);
  job.add_actors();
  ASSERT_TRUE(job.run_until_published(0));
  constexpr int kKills = 25;
  uint64_t epoch = 1;  // of the store that runs now, once it is up
  for (int kill = 0; kill < kKills; ++kill) {
    // Every other one dies at work, the rest at any moment of their recovery.
    const Deadline deadline = Deadline::after_ms(30000);
    while (kill % 2 == 0 && !deadline.passed() &&
           (job.actor(0).epoch() < epoch || job.actor(1).epoch() < epoch)) {
      job.turn(1000);
    }
    const int64_t until = now_us() + static_cast<int64_t>(random() % 40000);
    while (now_us() < until) job.turn(1000);
    const int status = job.kill(SIGKILL);
    ASSERT_TRUE(WIFSIGNALED(status)) << "it ended by itself before kill " << kill;
    epoch = job.actor(0).view()->header().store_epoch.load() + 1;
    job.start(false);
  }
  const Step last = job.actor(0).view()->step_committed() + 5;
  ASSERT_TRUE(job.run_until_published(last));
  EXPECT_EQ(job.check(last), "");
  EXPECT_GE(job.actor(0).view()->header().store_epoch.load(), 1u + kKills / 2);
  const std::string reply = job.ask_status();
  ASSERT_FALSE(reply.empty());
  for (const RankStatus& rank : decode(reply).value().entries<RankStatus>()) {
    EXPECT_EQ(rank.slots_quarantined, 0u);
    EXPECT_EQ(rank.leases, 0u);
  }
}

// Fault case 20, while the store is busy: a stranger asks without end and reads nothing, rank 0
// works, and rank 1 comes back.
TEST(HostStoreProcess, AnswersANewIncarnationWhileItIsBusy) {
  StoreProcess job;
  job.start(true);
  job.add_actors();
  ASSERT_TRUE(job.run_until_published(1));
  Socket flood = job.connect("tool.7");
  const std::string query = encode_empty(Speaker{}, MessageKind::kStatusQuery, 1);
  uint64_t asked = 0;
  const auto ask_more = [&] {
    for (int i = 0; i < 200 && flood.send({"", query}).is_ok(); ++i) ++asked;
  };
  for (int i = 0; i < 20; ++i) ask_more();
  job.replace_actor(1, Incarnation{2});
  const Deadline deadline = Deadline::after_ms(60000);
  while (!deadline.passed() && !job.actor(1).attached()) {
    ask_more();
    job.turn(1);
  }
  EXPECT_TRUE(job.actor(1).attached()) << "its hello was not answered among " << asked << " others";
  EXPECT_GT(asked, 1000u) << "the store had nothing else to do";
  ask_more();
  ASSERT_TRUE(job.run_until_published(3));
  EXPECT_EQ(job.check(3), "");
}

// Fault case 28.
TEST(HostStoreProcess, ASecondStoreIsRefusedAndTheFirstGoesOn) {
  StoreProcess job;
  job.start(true);
  job.add_actors();
  ASSERT_TRUE(job.run_until_published(1));
  for (const bool create : {true, false}) {
    const int status = job.run_to_end(create);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), code(ExitCode::kAlreadyRunning));
  }
  ASSERT_TRUE(job.run_until_published(2));
  EXPECT_EQ(job.check(2), "");
  EXPECT_EQ(job.actor(0).view()->header().store_epoch.load(), job.actor(0).epoch());
}

// Fault case 21.
TEST(HostStoreProcess, CreateRefusesAValidSegmentAndLeavesItAlone) {
  StoreProcess job;
  job.start(true);
  job.add_actors();
  ASSERT_TRUE(job.run_until_published(2));
  job.kill(SIGKILL);
  const int refused = job.run_to_end(true);
  ASSERT_TRUE(WIFEXITED(refused));
  EXPECT_EQ(WEXITSTATUS(refused), code(ExitCode::kStateExists));
  job.start(false);
  ASSERT_TRUE(job.run_until_published(3));
  EXPECT_EQ(job.check(3), "");
}

// Who starts it to recover has seen a state there.
TEST(HostStoreProcess, RecoveringWhatIsNotThereIsDamage) {
  StoreProcess job;
  const int status = job.run_to_end(false);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), code(ExitCode::kCorruptState));
}

// Fault case 22.
TEST(HostStoreProcess, AnActorWithoutAStoreEndsByItselfAndSaysSo) {
  StoreProcess job;
  job.set_start_timeout(200);
  const std::string log = job.directory().path() + "/actor.log";
  int lifeline = -1;
  const int status =
      StoreProcess::wait(job.spawn("optlease-gpu-actor", {"--rank", "0"}, log, &lifeline));
  ::close(lifeline);
  std::stringstream text;
  text << std::ifstream(log).rdbuf();
  ASSERT_TRUE(WIFEXITED(status)) << text.str();
  EXPECT_EQ(WEXITSTATUS(status), code(ExitCode::kStoreLost)) << text.str();
  for (const std::string& part :
       {std::string("cannot start"), std::string("the host store has made no state within 100 ms"),
        std::string("restart.start_timeout_s"), Segment::path_of(job.names().control)}) {
    EXPECT_NE(text.str().find(part), std::string::npos) << part << " is not in: " << text.str();
  }
}

// Fault case 3: killed at each step of creation, the next --create makes it anew or says why not.
TEST(HostStoreProcess, ACreatorKilledHalfWayIsFollowedByAFreshOne) {
  for (const char* point :
       {"store.control_made", "store.arena_made", "store.arena_written:2", "store.before_ready"}) {
    StoreProcess job;
    ::setenv("OPTLEASE_KILL_POINT", point, 1);
    const int status = job.run_to_end(true);
    ::unsetenv("OPTLEASE_KILL_POINT");
    ASSERT_TRUE(WIFSIGNALED(status)) << point;
    const bool trusted = std::string(point) != "store.control_made";
    if (!trusted) {  // nothing says yet that it is ours: refused in words
      const int refused = job.run_to_end(true);
      ASSERT_TRUE(WIFEXITED(refused)) << point;
      EXPECT_EQ(WEXITSTATUS(refused), code(ExitCode::kStateExists)) << point;
      continue;
    }
    job.start(true);
    job.add_actors();
    ASSERT_TRUE(job.run_until_published(1)) << point;
    EXPECT_EQ(job.check(1), "") << point;
  }
}

TEST(HostStoreProcess, IsKilledAtEachInstantOfACommitAndLosesNothing) {
  for (const char* point :
       {"commit.entry_written:20", "commit.before_flip:25", "commit.flipped:30", "record.emptied:3",
        "record.body_written:2", "record.written:2", "blob.bytes_written:3", "step_word.before:2",
        "step_word.written:2", "commit_unchanged.flipped:3"}) {
    StoreProcess job;
    ::setenv("OPTLEASE_KILL_POINT", point, 1);
    job.start(true);
    ::unsetenv("OPTLEASE_KILL_POINT");
    job.add_actors();
    const Deadline deadline = Deadline::after_ms(30000);
    while (::waitpid(job.pid(), nullptr, WNOHANG) == 0 && !deadline.passed()) job.turn(6);
    ASSERT_FALSE(deadline.passed()) << point << " was never reached";
    job.start(false);
    ASSERT_TRUE(job.run_until_published(6)) << point;
    EXPECT_EQ(job.check(6), "") << point;
  }
}

// Fault case 24.
TEST(HostStoreProcess, EndsAtOnceWithItsLauncher) {
  StoreProcess job;
  job.start(true);
  job.add_actors();
  ASSERT_TRUE(job.run_until_published(1));
  job.close_lifeline();
  const int status = job.wait_for_end();
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), code(ExitCode::kLauncherLost));
  EXPECT_EQ(job.check(1), "") << "the state stays";
}

TEST(HostStoreProcess, SigtermStopsAtTheStepBoundary) {
  StoreProcess job;
  job.start(true);
  job.add_actors();
  ASSERT_TRUE(job.run_until_published(2));
  ::kill(job.pid(), SIGTERM);
  const Deadline deadline = Deadline::after_ms(30000);
  while (!job.actor(0).stopped() && !deadline.passed()) job.turn(1000);
  EXPECT_TRUE(job.actor(0).stopped());
  const int status = job.wait_for_end();
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), code(ExitCode::kOk));
  EXPECT_EQ(job.check(job.actor(0).view()->step_committed()), "");
}

// "Stop" waits behind what an actor has not read yet; a store that ended at once would take it
// along.
TEST(HostStoreProcess, TheWordToStopReachesAnActorThatReadsSlowly) {
  StoreProcess job;
  job.start(true);
  job.add_actors();
  ASSERT_TRUE(job.run_until_published(2));
  // More answers than both ends of a connection and the kernel between them take.
  constexpr uint64_t kQuestions = 6000;
  const Speaker speaker{0, 1, job.actor(0).epoch()};
  const Deadline deadline = Deadline::after_ms(30000);
  for (uint64_t asked = 0; asked < kQuestions && !deadline.passed();) {
    const std::string frame = encode_empty(speaker, MessageKind::kStatusQuery, asked);
    if (job.socket(0).send({"", frame}).is_ok()) {
      ++asked;
    } else {
      ::usleep(1000);
    }
  }
  ASSERT_FALSE(deadline.passed());
  ASSERT_FALSE(job.ask_status().empty()) << "the store goes on meanwhile";
  ::usleep(300'000);  // the questions are answered, the answers unread
  ::kill(job.pid(), SIGTERM);
  ::usleep(100'000);  // nothing but its last words is left to do
  EXPECT_EQ(::waitpid(job.pid(), nullptr, WNOHANG), 0) << "it did not wait for its reader";
  uint64_t answers = 0;
  bool told = false;
  while (!told && !deadline.passed()) {
    std::vector<bool> ready;
    ASSERT_TRUE(poll_sockets({.sockets = {&job.socket(0)}, .fds = {}}, 20, &ready).is_ok());
    Message message;
    while (!told && job.socket(0).receive(&message)) {
      const MessageKind kind = decode(message.frame).value().kind;
      answers += kind == MessageKind::kStatusReply ? 1 : 0;
      told = kind == MessageKind::kStopActor;
    }
  }
  EXPECT_TRUE(told);
  EXPECT_GT(answers, 2500u) << "nothing waited in the store";
  EXPECT_EQ(WEXITSTATUS(job.wait_for_end()), code(ExitCode::kOk));
}

// What such a process opens first would otherwise be where its words go.
TEST(HostStoreProcess, AndActorStartWithoutStandardDescriptors) {
  StoreProcess job;
  job.close_standard();
  job.start(true);
  EXPECT_TRUE(StoreProcess::has_null_descriptors(job.pid()));
  job.add_actors();
  ASSERT_TRUE(job.run_until_published(3));
  EXPECT_EQ(job.check(3), "");
  EXPECT_EQ(WEXITSTATUS(job.kill(SIGTERM)), code(ExitCode::kOk));
  // An actor, while it waits for a store that is not there.
  StoreProcess none;
  none.close_standard();
  int lifeline = -1;
  const pid_t actor = none.spawn("optlease-gpu-actor", {"--rank", "0"}, "", &lifeline);
  EXPECT_TRUE(StoreProcess::has_null_descriptors(actor));
  ::kill(actor, SIGKILL);
  StoreProcess::wait(actor);
  ::close(lifeline);
}

// Fault case 8.
TEST(HostStoreProcess, GoesOnWhenASegmentsNameIsRemoved) {
  StoreProcess job;
  job.start(true);
  job.add_actors();
  ASSERT_TRUE(job.run_until_published(1));
  Segment::unlink(job.names().arenas[1]);
  const Deadline deadline = Deadline::after_ms(1500);
  while (!deadline.passed()) job.turn(1);
  ASSERT_TRUE(job.run_until_published(2));
  EXPECT_EQ(job.check(2), "");
}

// Fault case 31.
TEST(HostStoreProcess, GarbageFromStrangersStopsNothing) {
  StoreProcess job;
  job.start(true);
  job.add_actors();
  ASSERT_TRUE(job.run_until_published(1));
  std::mt19937_64 random(2);
  for (const char* name : {"", "stranger", "r0.i1x", "tool.5", "r77.i1"}) {
    Socket socket = job.connect(name);
    for (int i = 0; i < 200; ++i) {
      std::string frame(random() % 300, '\0');
      for (char& byte : frame) byte = static_cast<char>(random());
      (void)socket.send({"", frame}).is_ok();
    }
    job.turn(1);
  }
  ASSERT_TRUE(job.run_until_published(3));
  EXPECT_EQ(job.check(3), "");
  const std::string reply = job.ask("r77.i1", MessageKind::kHeartbeat, HeartbeatBody{});
  ASSERT_FALSE(reply.empty());
  EXPECT_EQ(decode(reply).value().kind, MessageKind::kRefused);
}

}  // namespace
}  // namespace optlease
