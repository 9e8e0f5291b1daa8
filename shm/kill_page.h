// A file that tells the processes of a job, while they run, at which kill point one of them dies,
// and that counts where they have been. A test makes it, names it in OPTLEASE_KILL_PAGE and changes
// it as it likes; whoever is started with that maps it. It outlives them all: nothing that it has
// counted is lost with a process. It decides nothing: see shm/kill_point.h for what a point is.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "shm/contract/status.h"

namespace optlease {

inline constexpr uint64_t kKillPageMagic = 0x31454741504c4c4b;  // "KLLPAGE1"
inline constexpr uint32_t kKillRowsMax = 384;
inline constexpr uint32_t kKillNameBytes = 40;

// A point in a program. Name and program are constant once the page is made; the rest is written by
// whoever visits, and by the test.
struct KillRow {
  char point[kKillNameBytes];
  char program[kKillNameBytes];  // its file, as the C library names it
  std::atomic<uint64_t> visits;
  std::atomic<int64_t> countdown;  // whose visit makes it 0 has come to its order; 0: none is open
  std::atomic<uint64_t> struck;    // orders that were carried out
  std::atomic<int64_t> struck_ms;  // the last one: when (monotonic clock), whom
  std::atomic<int32_t> struck_pid;
  std::atomic<int32_t> signal;  // what an order does: SIGKILL, or SIGSTOP until somebody's SIGCONT
};

struct KillPage {
  uint64_t magic;
  uint32_t row_count;
  std::atomic<uint32_t> strays;    // visits of points that the page does not list for the program
  char stray[2 * kKillNameBytes];  // one of them: "program point"
  KillRow rows[kKillRowsMax];
};
static_assert(std::atomic<int64_t>::is_always_lock_free &&
                  std::atomic<int32_t>::is_always_lock_free,
              "words between processes need no lock");

struct KillPlace {
  std::string point;
  std::string program;
};

// Makes the file with a row a place, or overwrites it. The mapping stays until the process ends.
Result<KillPage*> make_kill_page(const std::string& path, const std::vector<KillPlace>& places);

// Maps the file; null where there is none, or it is no such page (then it says so on stderr).
KillPage* map_kill_page(const char* path);

// Where this process is in the page, for visit_kill_point. Counts, and carries out an open order.
void visit_kill_page(KillPage* page, const char* point);

}  // namespace optlease
