// Ranks as real processes: each is forked from a test that has no threads, reports by its exit code
// and by words on stderr, and is killed at the end whatever happens.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <new>
#include <thread>

namespace optlease {

// In a rank: says what does not hold, and ends it.
#define RANK_REQUIRE(condition, ...)                                       \
  do {                                                                     \
    if (!(condition)) {                                                    \
      std::fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition); \
      std::fprintf(stderr, __VA_ARGS__);                                   \
      std::fprintf(stderr, "\n");                                          \
      ::_exit(1);                                                          \
    }                                                                      \
  } while (false)

inline void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

// Words that all processes of a test see.
class Board {
 public:
  static constexpr int kWords = 16;
  Board() {
    void* at =
        ::mmap(nullptr, sizeof(Words), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) std::abort();
    words_ = new (at) Words{};
  }
  ~Board() { ::munmap(words_, sizeof(Words)); }
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  std::atomic<int64_t>& operator[](int word) { return words_->word[word]; }
  // False after half a minute in vain.
  bool await(int word, int64_t at_least) {
    for (int i = 0; i < 15000 && words_->word[word].load() < at_least; ++i) sleep_ms(2);
    return words_->word[word].load() >= at_least;
  }

 private:
  struct Words {
    std::atomic<int64_t> word[kWords];
  };
  Words* words_;
};

class RankProcesses {
 public:
  ~RankProcesses() {
    for (const auto& [rank, pid] : pids_) {
      ::kill(pid, SIGKILL);
      reap(pid, 0);
    }
  }

  void start(uint32_t rank, const std::function<void()>& body) {
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      body();
      ::_exit(0);
    }
    pids_[rank] = pid;
  }
  void signal(uint32_t rank, int number) { ASSERT_EQ(::kill(pids_.at(rank), number), 0); }
  // Kills without a word and reaps.
  void kill(uint32_t rank) {
    signal(rank, SIGKILL);
    reap(pids_.at(rank), 0);
    pids_.erase(rank);
  }
  // The rank's exit code; -1 where it was killed or does not end within a minute.
  int join(uint32_t rank) {
    const pid_t pid = pids_.at(rank);
    for (int i = 0; i < 12000; ++i) {
      int status = 0;
      if (reap(pid, WNOHANG, &status)) {
        pids_.erase(rank);
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      }
      sleep_ms(5);
    }
    return -1;
  }
  void join_all() {
    while (!pids_.empty()) {
      const uint32_t rank = pids_.begin()->first;
      ASSERT_EQ(join(rank), 0) << "rank " << rank;
    }
  }

 private:
  static bool reap(pid_t pid, int flags, int* status = nullptr) {
    pid_t got;
    do {
      got = ::waitpid(pid, status, flags);
    } while (got < 0 && errno == EINTR);
    return got == pid;
  }

  std::map<uint32_t, pid_t> pids_;
};

}  // namespace optlease
