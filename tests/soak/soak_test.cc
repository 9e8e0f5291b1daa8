// Kills at every point of the source, in every process, and at random: whatever is killed, stopped
// or starved, jobs end with the bits of the undisturbed run, no commit is lost or made twice, and
// nothing is left. The default is a sample: each row of the table once, and some at random.
//
//   OPTLEASE_SOAK_KILLS=N     goes on until that many kills; OPTLEASE_TEST_SEED=N as ever
//   OPTLEASE_SOAK_REPORT=F    where the coverage report goes, as JSON (and F.txt, for reading)
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "actors/runtime/clock.h"
#include "tests/soak/campaign.h"
#include "tests/support/test_seed.h"

namespace optlease::soak {

// A /dev/shm of our own, in which every byte is accounted for. Where mounting is not permitted the
// names are looked at, and nothing is counted.
bool has_own_shm() {
  static const bool own = unshare(CLONE_NEWNS) == 0 &&
                          mount("", "/", nullptr, MS_REC | MS_PRIVATE, "") == 0 &&
                          mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=1g,mode=1777") == 0;
  return own;
}

namespace {

constexpr int kStrikesOfAJob = 20;  // at random
constexpr int kJobsMin = 8;
constexpr int kJobsMax = 100;  // of a sample, which needs a fraction of it

uint64_t kills_wanted() {
  const char* text = std::getenv("OPTLEASE_SOAK_KILLS");
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

void write_report(const Tally& tally, uint64_t seed) {
  const char* path = std::getenv("OPTLEASE_SOAK_REPORT");
  if (path == nullptr) return;
  std::ofstream(path) << tally.to_json(seed) << "\n";
  std::ofstream(std::string(path) + ".txt") << tally.text();
}

TEST(Soak, WhoeverIsKilledWhereverTheBitsAreTheSameAndNothingIsLeft) {
  const uint64_t seed = test_seed();
  const uint64_t wanted = kills_wanted();
  std::cout << (has_own_shm() ? "in a /dev/shm of its own\n"
                              : "free bytes of /dev/shm are not counted: no right to mount\n");
  char pattern[] = "/tmp/optlease-soak-XXXXXX";
  const std::string directory = mkdtemp(pattern);
  Campaign campaign(directory, seed);
  Tally& tally = campaign.tally();
  const int64_t begun_ms = now_ms();
  for (int job = 0; !HasFailure(); ++job) {
    const bool sampled = wanted == 0 && (tally.missed().empty() || job == kJobsMax);
    if (job > kJobsMin && (sampled || (wanted > 0 && tally.kills() >= wanted))) break;
    SCOPED_TRACE("job " + std::to_string(job) + " of seed " + std::to_string(seed));
    if (job % 12 == 5) {
      campaign.kill_the_cleaning();
    } else if (job % (wanted == 0 ? 6 : 3) == 2) {
      campaign.kill_at_random(kStrikesOfAJob);
    } else {
      campaign.kill_at_points();
    }
    tally.seconds = static_cast<double>(now_ms() - begun_ms) / 1000.0;
    std::cout << format("job %d: %llu kills, %zu rows without one, %.0f s\n", job,
                        static_cast<unsigned long long>(tally.kills()), tally.missed().size(),
                        tally.seconds)
              << std::flush;
    write_report(tally, seed);
  }
  for (const KillPoint* row : tally.missed()) {
    EXPECT_TRUE(HasFailure()) << "nobody was killed at " << row->point << " of "
                              << name_of(row->who);
  }
  std::cout << tally.text();
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace optlease::soak
