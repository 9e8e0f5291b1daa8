// Step records and blobs while the store writes the next ones: a reader gets what belongs to the
// step that it asked for, or nothing. First with a reader that is stopped at a chosen place, then
// with two that run free. ThreadSanitizer sees the accesses of those that share the store's
// mapping.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>

#include "shm/control_build.h"
#include "tests/shm/test_support.h"

namespace optlease::test {
namespace {

// Stops whoever touches one page of a mapping, until release(). One at a time in the process.
class PageTrap {
 public:
  explicit PageTrap(const char* in_page) {
    const auto address = reinterpret_cast<uintptr_t>(in_page);
    page_ = reinterpret_cast<char*>(address - address % kPageBytes);
    caught_ = released_ = false;
    struct sigaction action {};
    action.sa_sigaction = &PageTrap::on_fault;
    action.sa_flags = SA_SIGINFO;
    OPTLEASE_CHECK(::sigaction(SIGSEGV, &action, &before_) == 0, "sigaction");
    OPTLEASE_CHECK(::mprotect(page_, kPageBytes, PROT_NONE) == 0, "mprotect");
  }
  ~PageTrap() {
    ::mprotect(page_, kPageBytes, PROT_READ);
    ::sigaction(SIGSEGV, &before_, nullptr);
  }
  PageTrap(const PageTrap&) = delete;
  PageTrap& operator=(const PageTrap&) = delete;

  static bool caught() { return caught_; }
  static void release() { released_ = true; }

 private:
  // Only what a signal handler may do.
  static void on_fault(int, siginfo_t* info, void*) {
    const char* at = static_cast<const char*>(info->si_addr);
    if (at < page_ || at >= page_ + kPageBytes) ::signal(SIGSEGV, SIG_DFL);  // a real one
    caught_ = true;
    while (!released_) {
      const timespec pause{0, 200'000};
      ::nanosleep(&pause, nullptr);
    }
    ::mprotect(page_, kPageBytes, PROT_READ);
  }

  static inline char* page_ = nullptr;
  static inline std::atomic<bool> caught_, released_;
  struct sigaction before_ {};
};

struct Place {
  uint32_t rank = 0;
  uint32_t bank = 0;
  SegmentPlan plan;
};

// Tables start at multiples of 64 bytes: 8 rank records begin at every multiple of 8 in between.
constexpr uint32_t kWorld = 8;

// A plan whose control segment has a page's end `bytes_in` bytes into some rank's field of a bank:
// the number of tensors moves the rank table by 424 bytes each.
Place place_of_page_end(size_t field, size_t field_bytes, size_t bytes_in) {
  for (size_t tensors = 1; tensors <= 512; ++tensors) {
    const SegmentPlan plan =
        make_plan("race", kWorld, 0, {make_space("s", 1, std::vector<uint64_t>(tensors, 2))});
    std::vector<ArenaSpec> arenas;
    for (uint32_t r = 0; r < kWorld; ++r) arenas.push_back(arena_of(plan, Rank(r)));
    const uint64_t ranks = control_shape(plan, arenas).ranks_offset;
    for (uint32_t at = 0; at < 2 * kWorld; ++at) {
      const uint64_t start = ranks + at / 2 * sizeof(RankRecord) + field + at % 2 * field_bytes;
      if ((start + bytes_in) % kPageBytes == 0) return {at / 2, at % 2, plan};
    }
  }
  OPTLEASE_CHECK(false, "no plan has a page's end there");
}

// The store, and a reader's own read-only mapping.
class StoppedReader {
 public:
  explicit StoppedReader(const SegmentPlan& plan)
      : segments_(names_.all("race", plan.world_size)),
        store_(ChunkStore::create(plan, segments_).value()),
        mapping_(Segment::open(segments_.control, Segment::Access::kReadOnly).value()),
        view_(ControlView::over(mapping_.data(), mapping_.bytes()).value()) {}

  ChunkStore& store() { return store_; }
  const ControlView& view() const { return view_; }
  // Where the reader's mapping has the byte at `place` of the segment.
  const char* at(uint64_t place) const { return static_cast<const char*>(mapping_.data()) + place; }
  uint64_t blob_place(Rank rank, Step step) const {
    return view_.header().blobs_offset + (2ull * rank.value + (step & 1)) * kUserBlobBytesMax;
  }
  uint64_t rank_place(Rank rank) const {
    return view_.header().ranks_offset + rank.value * sizeof(RankRecord);
  }
  // Runs `read`, stopped where it first touches the page of `trap` while `write` is done.
  void stop_at(const char* trap, const std::function<void()>& read,
               const std::function<void()>& write) {
    const PageTrap page(trap);
    std::atomic<bool> over{false};
    std::thread reader([&] {
      read();
      over = true;
    });
    while (!PageTrap::caught() && !over) std::this_thread::yield();
    EXPECT_TRUE(PageTrap::caught()) << "the reader never came by";
    write();
    PageTrap::release();
    reader.join();
  }

 private:
  Names names_;
  SegmentNames segments_;
  ChunkStore store_;
  Segment mapping_;
  ControlView view_;
};

TEST(StoppedReader, BetweenAStepAndItsBlobsChecksumTakesNoLaterStepsBlob) {
  const Place place = place_of_page_end(offsetof(RankRecord, blobs), sizeof(BlobRecord),
                                        offsetof(BlobRecord, bytes));
  StoppedReader reader(place.plan);
  const Rank rank(place.rank);
  const Step step = 2 + place.bank;
  reader.store().write_blob(rank, step, "of this step");
  const char* rest = reader.at(reader.rank_place(rank) + offsetof(RankRecord, blobs) +
                               place.bank * sizeof(BlobRecord) + offsetof(BlobRecord, bytes));
  std::optional<std::string> found;
  reader.stop_at(
      rest, [&] { found = reader.view().blob(rank, step); },
      [&] { reader.store().write_blob(rank, step + 2, "of two steps later"); });
  EXPECT_FALSE(found) << "step " << step << " was given the blob '" << *found << "'";
  EXPECT_EQ(reader.view().blob(rank, step + 2), "of two steps later");
}

TEST(StoppedReader, InTheMiddleOfABlobsBytesGetsNone) {
  const SegmentPlan plan = small_plan("race");
  StoppedReader reader(plan);
  const std::string before(2 * kPageBytes, 'b'), after(2 * kPageBytes, 'a');
  reader.store().write_blob(Rank(1), 6, before);
  std::optional<std::string> found = "";
  reader.stop_at(
      reader.at(reader.blob_place(Rank(1), 6) + kPageBytes),
      [&] { found = reader.view().blob(Rank(1), 6); },
      [&] { reader.store().write_blob(Rank(1), 8, after); });
  EXPECT_FALSE(found) << "half a blob";
  EXPECT_EQ(reader.view().blob(Rank(1), 6), std::nullopt);
  EXPECT_EQ(reader.view().blob(Rank(1), 8), after);
}

TEST(StoppedReader, OfABlobThatStaysGetsItWhole) {
  StoppedReader reader(small_plan("race"));
  const std::string blob(2 * kPageBytes + 3, 'b');
  reader.store().write_blob(Rank(0), 6, blob);
  std::optional<std::string> found;
  reader.stop_at(
      reader.at(reader.blob_place(Rank(0), 6) + kPageBytes),
      [&] { found = reader.view().blob(Rank(0), 6); },
      [&] { reader.store().write_blob(Rank(0), 7, "the other bank's"); });
  EXPECT_EQ(found, blob);
}

TEST(StoppedReader, InTheMiddleOfAStepRecordGetsNone) {
  for (const size_t bytes_in : {offsetof(StepRecord, update_count), offsetof(StepRecord, grad_norm),
                                offsetof(StepRecord, checksum)}) {
    const Place place =
        place_of_page_end(offsetof(RankRecord, steps), sizeof(StepRecord), bytes_in);
    StoppedReader reader(place.plan);
    const Rank rank(place.rank);
    const Step step = 2 + place.bank;
    StepRecord later = make_record(step + 2);
    later.grad_norm = 7;
    later.checksum = checksum_of(later);
    reader.store().write_step_record(rank, make_record(step));
    const char* rest = reader.at(reader.rank_place(rank) + offsetof(RankRecord, steps) +
                                 place.bank * sizeof(StepRecord) + bytes_in);
    std::optional<StepRecord> found = later;
    reader.stop_at(
        rest, [&] { found = reader.view().step_record(rank, step); },
        [&] { reader.store().write_step_record(rank, later); });
    EXPECT_FALSE(found) << "half a record, from byte " << bytes_in;
    EXPECT_TRUE(reader.view().step_record(rank, step + 2));
  }
}

// --- Readers that run free -----------------------------------------------------------------------

constexpr Step kSteps = 4000;
constexpr uint64_t kWholeReads = 2000;  // of each kind and reader: the writer goes on until then
constexpr Rank kRank{1};

StepRecord record_of(Step step) {
  StepRecord record = make_record(step);
  for (GroupParams& group : record.groups) {
    group = {1.0 / static_cast<double>(step),     0.9, 0.999, 1e-8, 0.01,
             static_cast<uint32_t>(Rule::kAdamW), 0};
  }
  record.group_count = kGroupCountMax;
  record.grad_norm = static_cast<double>(step) * 0.5;
  record.checksum = checksum_of(record);
  return record;
}
// Every fifth step keeps the blob of the step before it.
std::string blob_of(Step step) {
  const Step made = step % 5 == 0 ? step - 1 : step;
  std::string blob(static_cast<size_t>(made * 37 % 1500), '\0');
  for (size_t i = 0; i < blob.size(); ++i) {
    blob[i] = static_cast<char>(static_cast<size_t>(made) * 131 + i);
  }
  return blob;
}

struct Seen {
  std::atomic<uint64_t> records{0}, blobs{0};
  std::string wrong;  // of the first reading that was not whole
  bool enough() const { return records >= kWholeReads && blobs >= kWholeReads; }
};

void read_all_the_time(const ControlView& view, const std::atomic<Step>& written,
                       const std::atomic<bool>& over, Seen* seen) {
  while (!over) {
    const Step last = written;
    for (const Step step : {last, last - 1, last + 1}) {
      if (step <= 0) continue;
      if (const auto record = view.step_record(kRank, step)) {
        const StepRecord expected = record_of(step);
        if (std::memcmp(&*record, &expected, sizeof expected) != 0) {
          seen->wrong = format("the record of step %lld", static_cast<long long>(step));
        }
        ++seen->records;
        // Who finds the record finds the digest, until the step after the next one takes its place.
        const auto sums = view.sums_digest(kRank, step);
        if (sums ? sums->digest != static_cast<uint64_t>(step) * 3 : written <= step) {
          seen->wrong = format("the digest of step %lld", static_cast<long long>(step));
        }
      }
      if (const auto blob = view.blob(kRank, step)) {
        if (*blob != blob_of(step)) {
          seen->wrong = format("the blob of step %lld", static_cast<long long>(step));
        }
        ++seen->blobs;
      }
    }
  }
}

void write_next(ChunkStore* store, Step step) {
  if (step % 5 == 0) {
    store->keep_blob(kRank, step);
  } else {
    store->write_blob(kRank, step, blob_of(step));
  }
  store->write_sums_digest(kRank, make_sums_digest(step, static_cast<uint64_t>(step) * 3));
  store->write_step_record(kRank, record_of(step));
  if (step % 7 == 0) {  // as when its group ends and reduces again
    store->void_step_record(kRank, step);
    store->write_step_record(kRank, record_of(step));
  }
  store->set_step_committed(step);
}

TEST(FreeReaders, OfRecordsAndBlobsGetThemWholeOrNotAtAll) {
  const Names names;
  const SegmentNames segments = names.all("race", 2);
  ChunkStore store = ChunkStore::create(small_plan("race"), segments).value();
  // One looks through the store's own mapping, one through its own, as another process would.
  const SegmentHeader& header = store.view().header();
  const ControlView same = ControlView::over(&header, header.total_bytes).value();
  const Segment mapping = Segment::open(segments.control, Segment::Access::kReadOnly).value();
  const ControlView other = ControlView::over(mapping.data(), mapping.bytes()).value();

  std::atomic<Step> written{0};
  std::atomic<bool> over{false};
  Seen seen[2];
  std::thread first([&] { read_all_the_time(same, written, over, &seen[0]); });
  std::thread second([&] { read_all_the_time(other, written, over, &seen[1]); });
  Step step = 0;
  while (step < kSteps || !seen[0].enough() || !seen[1].enough()) {
    write_next(&store, ++step);
    written = step;
  }
  over = true;
  first.join();
  second.join();
  EXPECT_EQ(seen[0].wrong, "");
  EXPECT_EQ(seen[1].wrong, "");
  for (const Step last : {step, step - 1}) {
    EXPECT_TRUE(other.step_record(kRank, last)) << last << " of " << step;
    EXPECT_EQ(other.blob(kRank, last), blob_of(last)) << last << " of " << step;
  }
}

}  // namespace
}  // namespace optlease::test
