#include "shm/vault.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>

#include "tests/shm/test_support.h"

namespace optlease::test {
namespace {

// A vault served by a thread of this process; its clock is advanced by hand.
class VaultTest : public testing::Test {
 protected:
  void SetUp() override {
    Result<Vault> vault = Vault::listen(path_);
    ASSERT_TRUE(vault.is_ok()) << vault.status().text();
    vault_ = std::make_unique<Vault>(std::move(vault).value());
    thread_ = std::thread([this] {
      while (!stop_.load()) {
        pollfd poll_fd{vault_->fd(), POLLIN, 0};
        ::poll(&poll_fd, 1, 2);
        vault_->serve(now_ms_.load());
        peers_.store(vault_->peer_count());
        refusals_.store(vault_->refusals());
        rounds_.fetch_add(1);
      }
    });
  }
  void TearDown() override { stop(); }
  // Joins the server, after which the vault may be looked at from here.
  Vault& stop() {
    stop_.store(true);
    if (thread_.joinable()) thread_.join();
    return *vault_;
  }
  UniqueFd connect() const {
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.data(), path_.size());
    OPTLEASE_CHECK(
        ::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0,
        "connect: %s", std::strerror(errno));
    return socket;
  }
  static VaultMessage request(VaultOp op, const char* key, uint64_t bytes) {
    VaultMessage message{};
    message.magic = kVaultMagic;
    message.version = kVaultVersion;
    message.op = static_cast<uint16_t>(op);
    message.bytes = bytes;
    std::strcpy(message.key, key);
    return message;
  }
  // True when the vault closed the connection without a word.
  static bool is_dropped(int socket) {
    char byte;
    return ::recv(socket, &byte, 1, 0) <= 0;
  }
  void wait_until(const std::function<bool()>& holds) {
    while (!holds()) ::usleep(500);
  }
  Status put(const std::string& key, uint64_t bytes, int fd) {
    return vault_put(path_, key, bytes, fd, 20000);
  }
  Result<VaultEntry> get(const std::string& key) { return vault_get(path_, key, 20000); }
  UniqueFd memory(uint64_t bytes) { return std::move(create_memfd("m", bytes)).value(); }

  Names names_;
  std::string path_ = names_.run_root() + "/vault.sock";
  std::unique_ptr<Vault> vault_;
  std::thread thread_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> now_ms_{0};
  std::atomic<uint32_t> peers_{0};
  std::atomic<uint64_t> refusals_{0};
  std::atomic<uint64_t> rounds_{0};
};

TEST_F(VaultTest, KeepsMemoryWhoseMakerIsDead) {
  EXPECT_EQ(run_in_child([&] {
              const UniqueFd fd = memory(4096);
              Result<MappedBuffer> buffer = MappedBuffer::map(fd.get(), 4096);
              std::strcpy(static_cast<char*>(buffer.value().data()), "still here");
              if (!put("param.0.dense", 4096, fd.get()).is_ok()) return 1;
              ::raise(SIGKILL);
              return 0;
            }),
            -SIGKILL);
  Result<VaultEntry> entry = get("param.0.dense");
  ASSERT_TRUE(entry.is_ok()) << entry.status().text();
  EXPECT_EQ(entry.value().bytes, 4096u);
  EXPECT_EQ(::fcntl(entry.value().fd.get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  Result<MappedBuffer> buffer = MappedBuffer::map(entry.value().fd.get(), 4096);
  EXPECT_STREQ(static_cast<char*>(buffer.value().data()), "still here");
}

TEST_F(VaultTest, AnswersNotFoundAlreadyExistsAndTooShort) {
  const UniqueFd fd = memory(4096);
  EXPECT_EQ(get("a").status().code(), StatusCode::kNotFound);
  EXPECT_TRUE(put("a", 4096, fd.get()).is_ok());
  EXPECT_EQ(put("a", 4096, fd.get()).code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(put("b", 4097, fd.get()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(get("b").status().code(), StatusCode::kNotFound);
  int pipe_fds[2];
  ASSERT_EQ(::pipe2(pipe_fds, O_CLOEXEC), 0);
  EXPECT_EQ(put("pipe", 0, pipe_fds[0]).code(), StatusCode::kInvalidArgument);
  ::close(pipe_fds[0]);
  ::close(pipe_fds[1]);
  Vault& vault = stop();
  ASSERT_EQ(vault.holdings().size(), 1u);
  EXPECT_EQ(vault.holdings()[0].key, "a");
  EXPECT_EQ(vault.held_bytes(), 4096u);
}

// What an exported GPU allocation is to fstat: a device file or an anonymous inode, of no size.
TEST_F(VaultTest, TakesMemoryWhoseSizeOnlyItsImporterKnows) {
  const UniqueFd device(::open("/dev/zero", O_RDWR | O_CLOEXEC));
  const UniqueFd anonymous(::eventfd(7, EFD_CLOEXEC));
  EXPECT_TRUE(put("param.0.dense", 4ull << 30, device.get()).is_ok());
  EXPECT_TRUE(put("grad_shard.0.dense", 2ull << 30, anonymous.get()).is_ok());
  Result<VaultEntry> entry = get("param.0.dense");
  ASSERT_TRUE(entry.is_ok()) << entry.status().text();
  EXPECT_EQ(entry.value().bytes, 4ull << 30);
  struct stat made {
  }, got{};
  ASSERT_EQ(::fstat(device.get(), &made), 0);
  ASSERT_EQ(::fstat(entry.value().fd.get(), &got), 0);
  EXPECT_TRUE(S_ISCHR(got.st_mode));
  EXPECT_EQ(got.st_rdev, made.st_rdev);
  // The very object, not another of its kind.
  Result<VaultEntry> counter = get("grad_shard.0.dense");
  ASSERT_TRUE(counter.is_ok()) << counter.status().text();
  uint64_t count = 0;
  ASSERT_EQ(::read(counter.value().fd.get(), &count, sizeof count), 8);
  EXPECT_EQ(count, 7u);
  const UniqueFd directory(::open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  EXPECT_EQ(put("directory", 0, directory.get()).code(), StatusCode::kInvalidArgument);
}

TEST_F(VaultTest, RefusesKeysThatAreNone) {
  const UniqueFd fd = memory(4096);
  EXPECT_EQ(put("", 1, fd.get()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(put(std::string(128, 'k'), 1, fd.get()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(put("two words", 1, fd.get()).code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(put(std::string(127, 'k'), 1, fd.get()).is_ok());
  EXPECT_EQ(put("none", 1, -1).code(), StatusCode::kInvalidArgument);
}

TEST_F(VaultTest, ClientsFindNoVaultAndSayWhere) {
  const Status status = vault_get(names_.run_root() + "/nobody.sock", "a", 1000).status();
  EXPECT_EQ(status.code(), StatusCode::kPeerLost);
  EXPECT_NE(status.message().find("nobody.sock"), std::string::npos);
  EXPECT_EQ(vault_get(std::string(200, 'p'), "a", 1000).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(VaultTest, AClientStopsWaitingAtItsDeadline) {
  const std::string deaf = names_.run_root() + "/deaf.sock";
  const Result<Vault> vault = Vault::listen(deaf);  // listens; nobody serves
  ASSERT_TRUE(vault.is_ok());
  EXPECT_EQ(vault_get(deaf, "a", 30).status().code(), StatusCode::kTimeout);
}

TEST_F(VaultTest, DropsMalformedRequestsAndServesTheNextPeer) {
  VaultMessage broken[6];
  for (VaultMessage& message : broken) message = request(VaultOp::kGet, "a", 0);
  broken[0].magic ^= 1;
  broken[1].version += 1;
  broken[2].op = 9;
  broken[3].reserved_zero = 1;
  std::memset(broken[4].key, 'k', sizeof broken[4].key);
  broken[5].op = static_cast<uint16_t>(VaultOp::kGetReply);
  for (const VaultMessage& message : broken) {
    const UniqueFd socket = connect();
    ASSERT_EQ(::send(socket.get(), &message, sizeof message, 0),
              static_cast<ssize_t>(sizeof message));
    EXPECT_TRUE(is_dropped(socket.get()));
  }
  EXPECT_EQ(get("a").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(stop().refusals(), 6u);
}

TEST_F(VaultTest, RandomBytesNeverStopIt) {
  const uint64_t seed = 99;
  SCOPED_TRACE(format("seed %llu", static_cast<unsigned long long>(seed)));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 300; ++round) {
    const UniqueFd socket = connect();
    VaultMessage message = request(VaultOp::kGet, "a", 0);
    char* bytes = reinterpret_cast<char*>(&message);
    for (int i = 0; i < 3; ++i) bytes[random() % sizeof message] = static_cast<char>(random());
    const size_t length = random() % (sizeof message + 1);
    (void)::send(socket.get(), bytes, length, MSG_NOSIGNAL);
  }
  EXPECT_EQ(get("a").status().code(), StatusCode::kNotFound);
  wait_until([&] { return peers_.load() == 0; });
}

TEST_F(VaultTest, AcceptsARequestThatComesByteByByte) {
  const UniqueFd socket = connect();
  const VaultMessage message = request(VaultOp::kGet, "absent", 0);
  const char* bytes = reinterpret_cast<const char*>(&message);
  for (size_t i = 0; i < sizeof message; ++i) ASSERT_EQ(::send(socket.get(), bytes + i, 1, 0), 1);
  VaultMessage reply{};
  ASSERT_EQ(::recv(socket.get(), &reply, sizeof reply, MSG_WAITALL),
            static_cast<ssize_t>(sizeof reply));
  EXPECT_EQ(why_invalid(reply), nullptr);
  EXPECT_EQ(reply.status, static_cast<uint16_t>(StatusCode::kNotFound));
}

TEST_F(VaultTest, DropsASlowPeerAtItsDeadlineAndNotBefore) {
  const UniqueFd slow = connect();
  ASSERT_EQ(::send(slow.get(), "x", 1, 0), 1);
  wait_until([&] { return peers_.load() == 1; });
  now_ms_.store(kVaultPeerTimeoutMs - 1);
  const uint64_t round = rounds_.load();
  wait_until([&] { return rounds_.load() > round + 2; });
  EXPECT_EQ(peers_.load(), 1u);
  now_ms_.store(kVaultPeerTimeoutMs);
  EXPECT_TRUE(is_dropped(slow.get()));
  EXPECT_EQ(get("a").status().code(), StatusCode::kNotFound);
}

TEST_F(VaultTest, ServesOthersAfterSixtyFourSilentPeersTimedOut) {
  std::vector<UniqueFd> silent;
  for (uint32_t i = 0; i < kVaultPeersMax; ++i) silent.push_back(connect());
  wait_until([&] { return peers_.load() == kVaultPeersMax; });
  EXPECT_EQ(vault_get(path_, "a", 50).status().code(), StatusCode::kTimeout);
  now_ms_.store(kVaultPeerTimeoutMs);
  EXPECT_EQ(get("a").status().code(), StatusCode::kNotFound);
}

TEST_F(VaultTest, RefusesSeveralFdsAndLeaksNone) {
  const auto open_fds = [] {
    int count = 0;
    for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
    return count;
  };
  wait_until([&] { return rounds_.load() > 0; });  // the vault's thread has opened what it needs
  const int before = open_fds();
  for (int round = 0; round < 5; ++round) {
    const UniqueFd socket = connect(), a = memory(4096), b = memory(4096);
    VaultMessage message = request(VaultOp::kPut, "two", 4096);
    iovec piece{&message, sizeof message};
    alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
    msghdr header{};
    header.msg_iov = &piece;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    cmsghdr* c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(2 * sizeof(int));
    const int fds[2] = {a.get(), b.get()};
    std::memcpy(CMSG_DATA(c), fds, sizeof fds);
    ASSERT_EQ(::sendmsg(socket.get(), &header, 0), static_cast<ssize_t>(sizeof message));
    EXPECT_TRUE(is_dropped(socket.get()));
  }
  EXPECT_EQ(get("two").status().code(), StatusCode::kNotFound);
  wait_until([&] { return peers_.load() == 0 && open_fds() == before; });
}

TEST_F(VaultTest, RefusesAnotherUserOnBothSides) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  ASSERT_EQ(::chmod(names_.run_root().c_str(), 0755), 0);
  ASSERT_EQ(::chmod(path_.c_str(), 0666), 0);
  // The client refuses a vault of another user.
  EXPECT_EQ(run_in_child([&] {
              if (::setuid(65534) != 0) return 77;
              return static_cast<int>(get("a").status().code());
            }),
            static_cast<int>(StatusCode::kPermission));
  // So does the vault, where the client does not look.
  EXPECT_EQ(run_in_child([&] {
              if (::setuid(65534) != 0) return 77;
              const UniqueFd socket = connect();
              const VaultMessage message = request(VaultOp::kGet, "a", 0);
              VaultMessage reply{};
              if (::send(socket.get(), &message, sizeof message, 0) < 0) return 78;
              if (::recv(socket.get(), &reply, sizeof reply, MSG_WAITALL) < 0) return 79;
              return is_dropped(socket.get()) ? static_cast<int>(reply.status) : 80;
            }),
            static_cast<int>(StatusCode::kPermission));
}

TEST_F(VaultTest, ManyClientsPutAndGetAtOnceUnderAStormOfSignals) {
  std::vector<pid_t> children;
  for (int p = 0; p < 16; ++p) {
    children.push_back(start_child([&, p] {
      struct sigaction action {};
      action.sa_handler = [](int) {};
      ::sigaction(SIGALRM, &action, nullptr);
      const itimerval storm{{0, 1000}, {0, 1000}};
      ::setitimer(ITIMER_REAL, &storm, nullptr);
      for (int i = 0; i < 10; ++i) {
        const std::string key = vault_key("grad", static_cast<uint32_t>(p * 100 + i), "dense");
        const UniqueFd fd = memory(4096);
        if (!put(key, 4096, fd.get()).is_ok()) return 1;
        Result<VaultEntry> entry = get(key);
        if (!entry.is_ok() || entry.value().bytes != 4096) return 2;
        struct stat ours {
        }, theirs{};
        ::fstat(fd.get(), &ours);
        ::fstat(entry.value().fd.get(), &theirs);
        if (ours.st_ino != theirs.st_ino) return 3;
      }
      return 0;
    }));
  }
  for (const pid_t child : children) EXPECT_EQ(finish(child), 0);
  EXPECT_EQ(stop().holdings().size(), 160u);
}

TEST_F(VaultTest, ReplacesAStaleSocketButNothingElseAndRemovesItsOwn) {
  const std::string path = names_.run_root() + "/second.sock";
  {
    const Result<Vault> first = Vault::listen(path);
    const Result<Vault> second = Vault::listen(path);
    ASSERT_TRUE(first.is_ok() && second.is_ok());
    struct stat info {};
    ASSERT_EQ(::lstat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777, 0600u);
  }
  EXPECT_NE(::access(path.c_str(), F_OK), 0);
  ::close(::open(path.c_str(), O_CREAT | O_WRONLY, 0600));
  EXPECT_EQ(Vault::listen(path).status().code(), StatusCode::kAlreadyExists);
  EXPECT_EQ(Vault::listen(std::string(108, 'p')).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace optlease::test
