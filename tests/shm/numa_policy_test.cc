// On this machine, however many nodes it has: what the kernel is asked and what it then says.
#include "shm/numa_policy.h"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shm/contract/limits.h"
#include "tests/shm/test_support.h"

namespace optlease::test {
namespace {

int mode_now() {
  int mode = -1;
  return ::syscall(SYS_get_mempolicy, &mode, nullptr, 0ul, nullptr, 0ul) == 0 ? mode : -1;
}

// A container's filter may refuse these calls; then there is nothing to see here.
bool allowed() { return NumaPreference::of(0).is_ok(); }

TEST(NumaPolicy, PrefersANodeForItsLifeAndRestoresWhatWasBefore) {
  if (!allowed()) GTEST_SKIP() << NumaPreference::of(0).status().text();
  const int before = mode_now();
  {
    const auto preference = NumaPreference::of(0);
    ASSERT_TRUE(preference.is_ok()) << preference.status().text();
    EXPECT_EQ(mode_now(), MPOL_PREFERRED);
    {
      const auto inner = NumaPreference::of(0);
      ASSERT_TRUE(inner.is_ok());
    }
    EXPECT_EQ(mode_now(), MPOL_PREFERRED) << "the policy of before is the outer one";
  }
  EXPECT_EQ(mode_now(), before);
}

TEST(NumaPolicy, RefusesANodeThatIsNotThereAndChangesNothing) {
  if (!allowed()) GTEST_SKIP();
  const int before = mode_now();
  EXPECT_EQ(NumaPreference::of(kNumaNodeMax).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(NumaPreference::of(kNumaNodeMax + 1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(mode_now(), before);
}

TEST(NumaPolicy, PagesOfASegmentAreFoundOnTheirNode) {
  if (!allowed()) GTEST_SKIP();
  const Names names;
  const auto preference = NumaPreference::of(0);
  const auto segment = Segment::create(names.segment("numa", "ctl"), 100 * kPageBytes + 1);
  ASSERT_TRUE(segment.is_ok()) << segment.status().text();
  const auto sample = sample_numa_pages(segment.value().data(), segment.value().bytes(), 0);
  ASSERT_TRUE(sample.is_ok()) << sample.status().text();
  EXPECT_EQ(sample.value().pages, kNumaSampleMax);
  EXPECT_EQ(sample.value().elsewhere, 0u);
  EXPECT_EQ(numa_text(sample.value(), 0), "all 64 sampled pages are on NUMA node 0");
  // Asked for another node, all of them are elsewhere, and the words have the numbers.
  const auto wrong = sample_numa_pages(segment.value().data(), 3 * kPageBytes, 5);
  ASSERT_TRUE(wrong.is_ok()) << wrong.status().text();
  EXPECT_EQ(wrong.value().elsewhere, 3u);
  EXPECT_EQ(wrong.value().other, 0);
  EXPECT_NE(numa_text(wrong.value(), 5).find("3 of 3 sampled pages are not on NUMA node 5"),
            std::string::npos);
  EXPECT_TRUE(numa_finding(sample, 0).as_wanted());
  EXPECT_EQ(numa_finding(sample, 0).text, numa_text(sample.value(), 0));
  EXPECT_FALSE(numa_finding(wrong, 5).as_wanted());
  EXPECT_EQ(numa_finding(wrong, 5).sample.elsewhere, 3u);
  const auto none = sample_numa_pages(segment.value().data(), kPageBytes - 1, 0);
  ASSERT_FALSE(none.is_ok());
  EXPECT_FALSE(numa_finding(none, 0).as_wanted());
  EXPECT_EQ(numa_finding(none, 0).text, "where it lies is not known: " + none.status().message());
}

TEST(NumaPolicy, ArenasArePlacedWhenTheyAreMadeAndTheMisplacedAreNamed) {
  if (!allowed()) GTEST_SKIP();
  const Names names;
  const SegmentPlan plan = make_plan("job", 3, chunk_bytes(128), {make_space("dense", 3, {900})});
  ArenaPlacement placement{.nodes = {0, -1, 1000}, .done = {}, .warnings = {}};
  const int before = mode_now();
  const auto store = ChunkStore::create(plan, names.all("job", 3), &placement);
  ASSERT_TRUE(store.is_ok()) << store.status().text();
  EXPECT_EQ(mode_now(), before);
  ASSERT_EQ(placement.done.size(), 1u);
  EXPECT_NE(placement.done[0].find("the arena of rank 0: all"), std::string::npos);
  ASSERT_EQ(placement.warnings.size(), 2u);
  EXPECT_NE(placement.warnings[0].find("rank 2: it is not placed on NUMA node 1000"),
            std::string::npos)
      << placement.warnings[0];
  EXPECT_NE(placement.warnings[1].find("not on NUMA node 1000"), std::string::npos);
}

}  // namespace
}  // namespace optlease::test
