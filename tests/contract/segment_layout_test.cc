#include "shm/contract/segment_layout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>

namespace optlease::test {
namespace {

constexpr uint64_t kTotal = sizeof(SegmentHeader) + 128 + 8 + 424 + sizeof(RankRecord) + 96 + 64 +
                            2 * uint64_t{kUserBlobBytesMax};

// A header of one rank, one space, two chunks, whose tables touch each other.
void fill(SegmentHeader* h) {
  h->magic = kSegmentMagic;
  h->version = kSegmentVersion;
  h->header_bytes = sizeof(SegmentHeader);
  h->total_bytes = kTotal;
  h->world_size = h->window_chunks = h->prefetch_windows = 1;
  h->space_count = h->member_count = h->tensor_count = 1;
  h->chunk_count = 2;
  h->slot_entry_count = 4;
  h->spaces_offset = sizeof(SegmentHeader);
  h->members_offset = h->spaces_offset + sizeof(SpaceRecord);
  h->tensors_offset = h->members_offset + 8;
  h->ranks_offset = h->tensors_offset + sizeof(TensorRecord);
  h->chunks_offset = h->ranks_offset + sizeof(RankRecord);
  h->slot_entries_offset = h->chunks_offset + 2 * sizeof(ChunkRecord);
  h->blobs_offset = h->slot_entries_offset + 4 * sizeof(SlotEntry);
}

// The broken rule of a header after `change`, its checksum made to hold again.
std::string header_why(const std::function<void(SegmentHeader*)>& change,
                       uint64_t actual = kTotal) {
  auto h = std::make_unique<SegmentHeader>();
  fill(h.get());
  change(h.get());
  h->header_checksum = header_checksum_of(*h);
  const char* why = why_invalid(*h, actual);
  return why == nullptr ? "" : why;
}

TEST(SegmentHeader, AcceptsAGoodOne) {
  EXPECT_EQ(header_why([](auto*) {}), "");
}

TEST(SegmentHeader, NamesEveryBrokenRule) {
  const auto names = [](const std::string& why, const char* part) {
    EXPECT_NE(why.find(part), std::string::npos) << "'" << why << "' should speak of " << part;
  };
  names(header_why([](auto*) {}, 100), "shorter than its header");
  names(header_why([](auto* h) { h->magic ^= 1; }), "magic");
  names(header_why([](auto* h) { h->version += 1; }), "version");
  names(header_why([](auto* h) { h->header_bytes -= 8; }), "another size");
  names(header_why([](auto*) {}, kTotal + 1), "another size than its header says");
  names(header_why([](auto* h) { h->world_size = 0; }), "world_size");
  names(header_why([](auto* h) { h->world_size = kRankCountMax + 1; }), "world_size");
  names(header_why([](auto* h) { h->window_chunks = 0; }), "window_chunks");
  names(header_why([](auto* h) { h->window_chunks = kWindowChunksMax + 1; }), "window_chunks");
  names(header_why([](auto* h) { h->prefetch_windows = 0; }), "prefetch_windows");
  names(header_why([](auto* h) { h->prefetch_windows = kLeasesInFlightMax; }), "prefetch_windows");
  names(header_why([](auto* h) { h->space_count = 0; }), "space_count");
  names(header_why([](auto* h) { h->space_count = kSpaceCountMax + 1; }), "space_count");
  names(header_why([](auto* h) { h->tensor_count = kTensorCountMax + 1; }), "tensor_count");
  names(header_why([](auto* h) { h->spaces_offset = 8; }), "table starts outside");
  names(header_why([](auto* h) { h->spaces_offset += 1; }), "table starts outside");
  names(header_why([](auto* h) { h->members_offset -= 8; }), "table starts outside");
  names(header_why([](auto* h) { h->chunks_offset = UINT64_MAX - 7; }), "table starts outside");
  names(header_why([](auto* h) { h->chunk_count = UINT32_MAX; }), "table ends past");
  names(header_why([](auto* h) { h->slot_entry_count = 5; }), "table starts outside");
  names(header_why([](auto* h) { h->blobs_offset += 8; }), "table ends past");
  names(header_why([](auto* h) { h->total_bytes += 8; }, kTotal + 8), "goes on past");
  names(header_why([](auto* h) { h->reserved_zero[7] = 1; }), "reserved");
}

TEST(SegmentHeader, ItsChecksumCoversEveryConstantByte) {
  auto h = std::make_unique<SegmentHeader>();
  fill(h.get());
  h->header_checksum = header_checksum_of(*h);
  auto* bytes = reinterpret_cast<unsigned char*>(h.get());
  for (size_t at = 0; at < offsetof(SegmentHeader, state); ++at) {
    bytes[at] ^= 0x40;
    EXPECT_NE(why_invalid(*h, kTotal), nullptr) << "byte " << at;
    bytes[at] ^= 0x40;
  }
  EXPECT_EQ(why_invalid(*h, kTotal), nullptr);
}

TEST(ArenaHeader, NamesEveryBrokenRule) {
  const uint64_t total = kArenaSlotsOffset + 3 * 8192;
  const auto why = [&](const std::function<void(ArenaHeader*)>& change, uint64_t actual) {
    ArenaHeader h{};
    h.magic = kArenaMagic;
    h.version = kSegmentVersion;
    h.slot_bytes = 8192;
    h.slot_count = 3;
    h.total_bytes = total;
    change(&h);
    h.checksum = checksum_of(h);
    const char* broken = why_invalid(h, actual);
    return std::string(broken == nullptr ? "" : broken);
  };
  EXPECT_EQ(why([](auto*) {}, total), "");
  EXPECT_NE(why([](auto*) {}, 100), "");
  EXPECT_NE(why([](auto*) {}, total + 1), "");
  EXPECT_NE(why([](auto* h) { h->magic ^= 1; }, total), "");
  EXPECT_NE(why([](auto* h) { h->version += 1; }, total), "");
  EXPECT_NE(why([](auto* h) { h->reserved_zero = 1; }, total), "");
  EXPECT_NE(why([](auto* h) { h->slot_bytes = 8193; }, total), "");
  EXPECT_NE(why([](auto* h) { h->slot_bytes = 0; }, total), "");
  EXPECT_NE(why([](auto* h) { h->slot_count = 4; }, total), "");
  EXPECT_NE(why([](auto* h) { h->slot_count = UINT32_MAX; }, total), "");
  EXPECT_NE(why([](auto* h) { h->slot_bytes = 1ull << 63; }, total), "");
  ArenaHeader torn{};
  torn.magic = kArenaMagic;
  torn.version = kSegmentVersion;
  torn.total_bytes = total;
  EXPECT_STREQ(why_invalid(torn, total), "the arena header's checksum does not hold");
}

StepRecord good_record() {
  StepRecord record{};
  record.step = 3;
  record.update_count = 2;
  record.group_count = 2;
  for (GroupParams& group : record.groups) {
    group = {0.001, 0.9, 0.999, 1e-8, 0.1, static_cast<uint32_t>(Rule::kAdam), 0};
  }
  record.grad_norm = 1;
  record.grad_coefficient = 1;
  return record;
}

bool record_breaks(const std::function<void(StepRecord*)>& change) {
  StepRecord record = good_record();
  change(&record);
  record.checksum = checksum_of(record);
  return why_invalid(record) != nullptr;
}

TEST(StepRecord, NamesEveryBrokenRule) {
  const double nan = std::nan("");
  const double infinite = std::numeric_limits<double>::infinity();
  EXPECT_FALSE(record_breaks([](auto*) {}));
  EXPECT_TRUE(record_breaks([](auto* r) { r->step = kNoStep; }));
  EXPECT_TRUE(record_breaks([](auto* r) { r->update_count = 4; }));
  EXPECT_TRUE(record_breaks([](auto* r) { r->update_count = -1; }));
  EXPECT_TRUE(record_breaks([](auto* r) { r->group_count = 0; }));
  EXPECT_TRUE(record_breaks([](auto* r) { r->group_count = kGroupCountMax + 1; }));
  EXPECT_TRUE(record_breaks([](auto* r) { r->skipped = 2; }));
  EXPECT_TRUE(record_breaks([](auto* r) { r->reserved_zero = 1; }));
  EXPECT_TRUE(record_breaks([&](auto* r) { r->grad_norm = nan; }));
  EXPECT_FALSE(record_breaks([&](auto* r) {
    r->grad_norm = nan;
    r->skipped = 1;
  }));
  EXPECT_TRUE(record_breaks([](auto* r) { r->grad_coefficient = HUGE_VALF; }));
  EXPECT_TRUE(record_breaks([&](auto* r) { r->groups[1].lr = infinite; }));
  EXPECT_TRUE(record_breaks([](auto* r) { r->groups[1].lr = -1; }));
  EXPECT_TRUE(record_breaks([](auto* r) { r->groups[0].beta1 = 1; }));
  EXPECT_TRUE(record_breaks([&](auto* r) { r->groups[0].beta2 = nan; }));
  EXPECT_TRUE(record_breaks([](auto* r) { r->groups[0].eps = -1; }));
  EXPECT_TRUE(record_breaks([&](auto* r) { r->groups[0].weight_decay = nan; }));
  EXPECT_TRUE(record_breaks([](auto* r) { r->groups[0].rule = 9; }));
  EXPECT_TRUE(record_breaks([](auto* r) { r->groups[0].reserved_zero = 1; }));
  EXPECT_FALSE(record_breaks([](auto* r) { r->groups[2].rule = 9; })) << "past group_count";
}

TEST(StepRecord, ATornOneIsNone) {
  StepRecord record = good_record();
  record.checksum = checksum_of(record);
  auto* bytes = reinterpret_cast<unsigned char*>(&record);
  for (size_t at = 0; at < sizeof record; ++at) {
    bytes[at] ^= 0x01;
    EXPECT_NE(why_invalid(record), nullptr) << "byte " << at;
    bytes[at] ^= 0x01;
  }
}

bool sums_break(const std::function<void(SumsDigest*)>& change) {
  SumsDigest sums = make_sums_digest(3, 0x1234);
  change(&sums);
  sums.checksum = checksum_of(sums);
  return why_invalid(sums) != nullptr;
}

TEST(SumsDigest, NamesEveryBrokenRule) {
  EXPECT_EQ(why_invalid(make_sums_digest(1, 0)), nullptr) << "zero is a digest as any other";
  EXPECT_FALSE(sums_break([](auto*) {}));
  EXPECT_TRUE(sums_break([](auto* s) { s->step = kNoStep; }));
  for (const uint32_t kind : {0u, 1u, 3u}) {
    EXPECT_TRUE(sums_break([kind](auto* s) { s->kind = kind; })) << kind;
  }
  EXPECT_TRUE(sums_break([](auto* s) { s->reserved_zero = 1; }));
}

TEST(SumsDigest, ATornOneIsNone) {
  SumsDigest sums = make_sums_digest(3, 0x1234);
  auto* bytes = reinterpret_cast<unsigned char*>(&sums);
  for (size_t at = 0; at < sizeof sums; ++at) {
    bytes[at] ^= 0x01;
    EXPECT_NE(why_invalid(sums), nullptr) << "byte " << at;
    bytes[at] ^= 0x01;
  }
}

TEST(CommitWord, HoldsVersionAndBank) {
  for (const Step version : {Step{0}, Step{1}, Step{1} << 40, (Step{1} << 62) - 1}) {
    for (const uint32_t bank : {0u, 1u}) {
      const uint64_t word = encode_commit_word(version, bank);
      EXPECT_EQ(version_of(word), version);
      EXPECT_EQ(bank_of(word), bank);
      EXPECT_NE(word, 0u);
    }
  }
}

}  // namespace
}  // namespace optlease::test
