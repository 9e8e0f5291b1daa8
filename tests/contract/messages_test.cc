#include "shm/contract/messages.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace optlease::test {
namespace {

const std::vector<MessageKind>& all_kinds() {
  static const std::vector<MessageKind> kinds = [] {
    std::vector<MessageKind> found;
    for (uint32_t k = 0; k <= UINT16_MAX; ++k) {
      const auto kind = static_cast<MessageKind>(k);
      if (body_bytes_of(kind) != UINT32_MAX) found.push_back(kind);
    }
    return found;
  }();
  return kinds;
}

std::string frame_of(MessageKind kind, const std::string& body, const std::string& payload = {}) {
  MessageHeader header{};
  header.magic = kMessageMagic;
  header.version = kProtocolVersion;
  header.kind = static_cast<uint16_t>(kind);
  header.bytes = static_cast<uint32_t>(sizeof header + body.size() + payload.size());
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) + body + payload;
}

template <class Body>
std::string bytes_of(const Body& body) {
  return {reinterpret_cast<const char*>(&body), sizeof body};
}

const char* why(const std::string& frame) { return why_invalid_frame(frame.data(), frame.size()); }

StepRecord good_record() {
  StepRecord record{};
  record.step = 3;
  record.update_count = 2;
  record.group_count = 1;
  record.groups[0] = {0.001, 0.9, 0.999, 1e-8, 0, static_cast<uint32_t>(Rule::kAdamW), 0};
  record.grad_norm = 1;
  record.grad_coefficient = 1;
  record.checksum = checksum_of(record);
  return record;
}

// A frame of each kind that obeys every rule.
std::string good_frame(MessageKind kind) {
  using K = MessageKind;
  if (kind == K::kStepReady) return frame_of(kind, bytes_of(StepReadyBody{1, 4, 0}), "blob");
  if (kind == K::kStepRecord)
    return frame_of(kind, bytes_of(StepRecordBody{1, good_record(), make_sums_digest(3, 99)}));
  if (kind == K::kLeaseRequest) return frame_of(kind, bytes_of(LeaseRequestBody{0, 5, 2}));
  if (kind == K::kCommitRequest) {
    return frame_of(kind, bytes_of(CommitRequestBody{1, 2, 3, 1, 1, 0}),
                    bytes_of(SlotEntry{4, 0, 99}));
  }
  if (kind == K::kLeaseGrant) {
    return frame_of(kind, bytes_of(LeaseGrantBody{1, 2, 3, 1, 1, 0}),
                    bytes_of(GrantEntry{3, 4, 5, 0, 99}));
  }
  if (kind == K::kGoReduce || kind == K::kGoGather) {
    return frame_of(kind, bytes_of(GoBody{1, 1}), std::string(3, '\1'));
  }
  if (kind == K::kRefused) return frame_of(kind, bytes_of(RefusedBody{4, 13, 2}), "no");
  if (kind == K::kStatusReply) {
    return frame_of(kind, bytes_of(StatusReplyBody{0, -1, 0, 0, 0, 1, 0}), bytes_of(RankStatus{}));
  }
  if (kind == K::kAttached) return frame_of(kind, bytes_of(AttachedBody{0, 4, 1}), "blob");
  if (kind == K::kStepRequest) {
    return frame_of(kind, bytes_of(StepRequestBody{1, 0.1, 1, 0, 0, 1}));
  }
  if (kind == K::kStepReply) {
    return frame_of(kind, bytes_of(StepReplyBody{1, 0, 0, 6, 0, 3, 0}), "why");
  }
  if (kind == K::kPrepare) return frame_of(kind, bytes_of(StepBody{1}));
  return frame_of(kind, std::string(body_bytes_of(kind), '\0'));
}

TEST(Messages, AcceptsAGoodFrameOfEveryKind) {
  EXPECT_EQ(all_kinds().size(), 37u);
  for (const MessageKind kind : all_kinds()) {
    EXPECT_EQ(why(good_frame(kind)), nullptr) << name_of(kind) << ": " << why(good_frame(kind));
    EXPECT_STRNE(name_of(kind), "?");
  }
}

TEST(Messages, RefusesEveryOtherLength) {
  for (const MessageKind kind : all_kinds()) {
    const std::string good = good_frame(kind);
    for (size_t bytes = 0; bytes < good.size() + 20; ++bytes) {
      if (bytes == good.size()) continue;
      std::string frame = good;
      frame.resize(bytes);
      EXPECT_NE(why(frame), nullptr) << name_of(kind) << " cut to " << bytes;
      // And with a header that says so: then body and payload disagree. The needs of a Go message
      // are as many bytes as there are ranks.
      if (bytes < sizeof(MessageHeader)) continue;
      const auto total = static_cast<uint32_t>(bytes);
      std::memcpy(frame.data() + offsetof(MessageHeader, bytes), &total, sizeof total);
      const bool go = kind == MessageKind::kGoReduce || kind == MessageKind::kGoGather;
      const bool needs = go && bytes >= sizeof(MessageHeader) + sizeof(GoBody);
      EXPECT_EQ(why(frame) == nullptr, needs) << name_of(kind) << " of " << bytes;
    }
  }
}

TEST(Messages, RefusesAnotherMagicVersionOrKind) {
  const auto with = [](auto change) {
    std::string frame = good_frame(MessageKind::kStatusQuery);
    change(reinterpret_cast<MessageHeader*>(frame.data()));
    return why(frame);
  };
  EXPECT_NE(with([](MessageHeader* h) { h->magic ^= 1; }), nullptr);
  EXPECT_NE(with([](MessageHeader* h) { h->version ^= 2; }), nullptr);
  EXPECT_NE(with([](MessageHeader* h) { h->kind = 0; }), nullptr);
  EXPECT_NE(with([](MessageHeader* h) { h->kind = 65535; }), nullptr);
  EXPECT_NE(with([](MessageHeader* h) { h->bytes += 1; }), nullptr);
  EXPECT_EQ(with([](MessageHeader* h) { h->sequence = UINT64_MAX; }), nullptr);
}

TEST(Messages, RefusesAFrameLongerThanAnyMessage) {
  const std::string frame(kMessageBytesMax + 1, '\0');
  EXPECT_STREQ(why(frame), "the frame is longer than any message");
}

template <class Body>
const char* with_body(MessageKind kind, const std::function<void(Body*)>& change) {
  std::string frame = good_frame(kind);
  Body body;
  std::memcpy(&body, frame.data() + sizeof(MessageHeader), sizeof body);
  change(&body);
  std::memcpy(frame.data() + sizeof(MessageHeader), &body, sizeof body);
  return why(frame);
}

TEST(Messages, RefusesEveryBrokenRuleOfAStepRequest) {
  const auto with = [](const std::function<void(StepRequestBody*)>& change) {
    return with_body<StepRequestBody>(MessageKind::kStepRequest, change);
  };
  EXPECT_NE(with([](auto* b) { b->step = 0; }), nullptr);
  EXPECT_NE(with([](auto* b) { b->lr = -1; }), nullptr);
  EXPECT_NE(with([](auto* b) { b->lr = HUGE_VAL; }), nullptr);
  EXPECT_NE(with([](auto* b) { b->grad_scale = 0; }), nullptr);
  EXPECT_NE(with([](auto* b) { b->grad_scale = std::nan(""); }), nullptr);
  EXPECT_NE(with([](auto* b) { b->max_norm = -1; }), nullptr);
  EXPECT_NE(with([](auto* b) { b->keep_blob = 2; }), nullptr);
  EXPECT_NE(with([](auto* b) { b->blob_bytes = 1; }), nullptr);
  EXPECT_EQ(with([](auto* b) { b->lr = std::nan(""); }), nullptr) << "NaN: as configured";
  EXPECT_EQ(with([](auto* b) { b->max_norm = std::nan(""); }), nullptr);
}

TEST(Messages, RefusesEveryBrokenRuleOfTheOthers) {
  EXPECT_NE(with_body<StepReadyBody>(MessageKind::kStepReady, [](auto* b) { b->step = 0; }),
            nullptr);
  EXPECT_NE(with_body<StepReadyBody>(MessageKind::kStepReady, [](auto* b) { b->keep_blob = 1; }),
            nullptr);
  EXPECT_NE(with_body<LeaseRequestBody>(MessageKind::kLeaseRequest, [](auto* b) { b->step = -1; }),
            nullptr);
  EXPECT_NE(
      with_body<LeaseRequestBody>(MessageKind::kLeaseRequest, [](auto* b) { b->chunk_count = 0; }),
      nullptr);
  EXPECT_NE(
      with_body<LeaseRequestBody>(MessageKind::kLeaseRequest, [](auto* b) { b->chunk_count = 65; }),
      nullptr);
  EXPECT_NE(
      with_body<CommitRequestBody>(MessageKind::kCommitRequest, [](auto* b) { b->step = -1; }),
      nullptr);
  EXPECT_NE(with_body<CommitRequestBody>(MessageKind::kCommitRequest,
                                         [](auto* b) { b->chunk_count = 65; }),
            nullptr);
  EXPECT_NE(with_body<CommitRequestBody>(MessageKind::kCommitRequest,
                                         [](auto* b) { b->entry_count = 2; }),
            nullptr);
  EXPECT_NE(with_body<LeaseGrantBody>(MessageKind::kLeaseGrant,
                                      [](auto* b) { b->entry_count = UINT32_MAX; }),
            nullptr);
  EXPECT_NE(
      with_body<StatusReplyBody>(MessageKind::kStatusReply, [](auto* b) { b->rank_count = 0; }),
      nullptr);
  EXPECT_NE(
      with_body<StepRecordBody>(MessageKind::kStepRecord, [](auto* b) { b->record.step = 4; }),
      nullptr);
  EXPECT_NE(
      with_body<StepRecordBody>(MessageKind::kStepRecord, [](auto* b) { b->sums.digest += 1; }),
      nullptr);
  EXPECT_STREQ(with_body<StepRecordBody>(MessageKind::kStepRecord,
                                         [](auto* b) { b->sums = make_sums_digest(4, 99); }),
               "record and sums are of different steps");
  EXPECT_NE(with_body<RefusedBody>(MessageKind::kRefused, [](auto* b) { b->status = 99; }),
            nullptr);
  EXPECT_NE(with_body<StepReplyBody>(MessageKind::kStepReply, [](auto* b) { b->status = 99; }),
            nullptr);
  EXPECT_NE(with_body<HeartbeatBody>(MessageKind::kHeartbeat, [](auto* b) { b->phase = 10; }),
            nullptr);
}

// A step that no job reaches: whoever counts on from the last of 2^63 is undefined.
TEST(Messages, RefusesStepsThatNoJobReaches) {
  const std::string low = bytes_of(Step{kNoStep - 1}), high = bytes_of(Step{kStepMax + 1});
  uint32_t kinds = 0;
  for (const MessageKind kind : all_kinds()) {
    uint32_t fields = 0;
    const std::string good = good_frame(kind);
    for (size_t at = sizeof(MessageHeader);
         at + sizeof(Step) <= sizeof(MessageHeader) + body_bytes_of(kind); at += sizeof(Step)) {
      const auto with = [&](const std::string& step) {
        return why(std::string(good).replace(at, step.size(), step));
      };
      const char* words = with(high);
      if (words == nullptr || std::strcmp(words, "a step is out of range") != 0) continue;
      EXPECT_STREQ(with(low), words) << name_of(kind);
      EXPECT_STRNE(with(bytes_of(kStepMax)), words) << name_of(kind);
      ++fields;
    }
    const bool has_two = kind == MessageKind::kWelcome || kind == MessageKind::kStatusReply;
    EXPECT_LE(fields, has_two ? 2u : 1u) << name_of(kind);
    kinds += fields != 0 ? 1 : 0;
  }
  EXPECT_EQ(kinds, 25u) << "a kind with a step that is not looked at";
  const auto record = [](Step step) {
    StepRecord with = good_record();
    with.step = with.update_count = step;
    with.checksum = checksum_of(with);
    return why_invalid(with);
  };
  EXPECT_EQ(record(kStepMax), nullptr);
  EXPECT_NE(record(kStepMax + 1), nullptr);
  EXPECT_NE(why_invalid(make_sums_digest(kStepMax + 1, 7)), nullptr);
}

TEST(Messages, RefusesReservedFieldsThatAreNotZero) {
  EXPECT_NE(with_body<HelloBody>(MessageKind::kHello, [](auto* b) { b->reserved_zero = 1; }),
            nullptr);
  EXPECT_NE(with_body<WelcomeBody>(MessageKind::kWelcome, [](auto* b) { b->reserved_zero = 1; }),
            nullptr);
  EXPECT_NE(
      with_body<HeartbeatBody>(MessageKind::kHeartbeat, [](auto* b) { b->reserved_zero = 1; }),
      nullptr);
  EXPECT_NE(with_body<IncarnationBody>(MessageKind::kIncarnationLost,
                                       [](auto* b) { b->reserved_zero = 1; }),
            nullptr);
  EXPECT_NE(
      with_body<StatusReplyBody>(MessageKind::kStatusReply, [](auto* b) { b->reserved_zero = 1; }),
      nullptr);
  EXPECT_NE(
      with_body<StepReplyBody>(MessageKind::kStepReply, [](auto* b) { b->reserved_zero_2 = 1; }),
      nullptr);
  EXPECT_NE(with_body<LeaseGrantBody>(MessageKind::kLeaseGrant, [](auto* b) { b->deferred = 2; }),
            nullptr);
  std::string grant = good_frame(MessageKind::kLeaseGrant);
  grant[sizeof(MessageHeader) + sizeof(LeaseGrantBody) + offsetof(GrantEntry, reserved_zero)] = 1;
  EXPECT_NE(why(grant), nullptr);
  std::string commit = good_frame(MessageKind::kCommitRequest);
  commit[sizeof(MessageHeader) + sizeof(CommitRequestBody) + offsetof(SlotEntry, reserved_zero)] =
      1;
  EXPECT_NE(why(commit), nullptr);
}

// Random frames, half of them good ones with a few bytes changed: never a crash or a read outside
// (the frame is copied to memory of exactly its size, which the sanitizers watch), and whatever is
// accepted has the length that its body describes.
TEST(Messages, SurvivesRandomFrames) {
  const uint64_t seed = 20261129;
  std::mt19937_64 random(seed);
  uint64_t accepted = 0;
  for (int round = 0; round < 200000; ++round) {
    std::string frame;
    if (round % 2 == 0) {
      frame = good_frame(all_kinds()[random() % all_kinds().size()]);
      const uint64_t changes = random() % 4;
      for (uint64_t c = 0; c < changes; ++c)
        frame[random() % frame.size()] = static_cast<char>(random());
    } else {
      frame.resize(random() % 600);
      for (char& byte : frame) byte = static_cast<char>(random());
      if (frame.size() >= sizeof(MessageHeader)) {
        const auto kind = all_kinds()[random() % all_kinds().size()];
        MessageHeader header{kMessageMagic,
                             kProtocolVersion,
                             static_cast<uint16_t>(kind),
                             static_cast<uint32_t>(frame.size()),
                             0,
                             0,
                             0,
                             0};
        std::memcpy(frame.data(), &header, sizeof header);
      }
    }
    const std::vector<char> exact(frame.begin(), frame.end());
    if (why_invalid_frame(exact.data(), exact.size()) != nullptr) continue;
    ++accepted;
    MessageHeader header;
    std::memcpy(&header, exact.data(), sizeof header);
    ASSERT_EQ(header.bytes, exact.size()) << "seed " << seed << ", round " << round;
    ASSERT_GE(exact.size(), sizeof header + body_bytes_of(static_cast<MessageKind>(header.kind)));
  }
  EXPECT_GT(accepted, 10000u);
}

TEST(Messages, NamesEveryPhase) {
  for (uint32_t p = 0; p <= static_cast<uint32_t>(Phase::kStopping); ++p) {
    EXPECT_STRNE(name_of(static_cast<Phase>(p)), "?") << p;
  }
}

}  // namespace
}  // namespace optlease::test
