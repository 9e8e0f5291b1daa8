#include "tests/fuzz/store_world.h"

#include <cstdlib>

#include "shm/control_build.h"
#include "shm/control_check.h"
#include "tests/fuzz/frames.h"
#include "tests/fuzz/shm_file.h"

namespace optlease::fuzz {
namespace {

constexpr uint32_t kRanks = 2;
constexpr uint64_t kArenaBytesMax = 1u << 20;
constexpr uint64_t kBlobBytesMax = 4096;  // of any input: -max_len
constexpr size_t kOutgoingMax = 256;
constexpr uint32_t kKillsMax = 3;  // each costs as much as thirty messages

// Who speaks; the numbers of an input's operations.
enum Who : uint32_t { kRank0, kRank1, kLauncher, kTool, kEarlierLife, kStranger, kTime, kKill };
enum Form : uint32_t { kHonest, kNearlyHonest, kAnyBody, kAnyBytes };

const std::vector<MessageKind> kActorKinds = {
    MessageKind::kHello,         MessageKind::kStepReady,     MessageKind::kStepRecord,
    MessageKind::kLeaseRequest,  MessageKind::kCommitRequest, MessageKind::kLeaseReturn,
    MessageKind::kPublished,     MessageKind::kHeartbeat,     MessageKind::kCorruptChunk,
    MessageKind::kResidentSaved,
};
const std::vector<MessageKind> kLauncherKinds = {MessageKind::kIncarnationStarted,
                                                 MessageKind::kIncarnationLost,
                                                 MessageKind::kIncarnationReaped};
const std::vector<MessageKind> kToolKinds = {MessageKind::kStatusQuery, MessageKind::kHoldRequest,
                                             MessageKind::kHoldRelease, MessageKind::kStopStore};

struct Files {
  ShmFile control{".ctl", kControlBytesMax};
  ShmFile arenas[kRanks] = {{".r0", kArenaBytesMax}, {".r1", kArenaBytesMax}};

  static Files& all() {
    static auto* files = [] {
      std::atexit([] {
        all().control.unlink();
        for (const ShmFile& arena : all().arenas) arena.unlink();
      });
      return make();
    }();
    return *files;
  }

 private:
  static Files* make() {
    auto* files = new Files;
    const SegmentPlan& plan = sample_plan(1);
    for (uint32_t r = 0; r < kRanks; ++r) {
      const ArenaSpec arena = arena_of(plan, Rank(r));
      const ArenaHeader header = make_arena_header(r, arena, kJobId);
      files->arenas[r].set(Output().put(header).text(), header.total_bytes);
    }
    return files;
  }
};

// As the store left it: before its first step, with step 1 committed, with step 2 open.
const std::string& image_of(uint8_t start) {
  static const std::vector<std::string> images = [] {
    const SegmentPlan& plan = sample_plan(1);
    std::vector<std::string> made = {control_image(plan, kNoStep), control_image(plan, 1),
                                     control_image(plan, 1)};
    auto* base = made[1].data();
    const auto* header = reinterpret_cast<const SegmentHeader*>(base);
    auto* ranks = reinterpret_cast<RankRecord*>(base + header->ranks_offset);
    for (uint32_t r = 0; r < kRanks; ++r) ranks[r].steps[0].step = kNoStep;
    return made;
  }();
  return images[start % images.size()];
}

}  // namespace

StoreWorld::StoreWorld(uint8_t start) : plan_(sample_plan(1)) {
  Files& files = Files::all();
  const std::string& image = image_of(start);
  files.control.set(image, segment_bytes(image));
  const auto* header = reinterpret_cast<const SegmentHeader*>(files.control.data());
  for (uint32_t bank = 0; bank < 2 * kRanks; ++bank) {
    const uint64_t at = header->blobs_offset + uint64_t{bank} * kUserBlobBytesMax;
    std::memset(files.control.data() + at, 0, kBlobBytesMax);
  }
  names_.control = files.control.name();
  for (const ShmFile& arena : files.arenas) names_.arenas.push_back(arena.name());
  open();
  committed_ = service_->coordinator().step_committed();
  versions_.assign(service_->store().view().header().chunk_count, kNoStep);
  check();
}

void StoreWorld::open() {
  Result<ChunkStore> store = ChunkStore::recover(plan_, names_);
  OPTLEASE_CHECK(store.is_ok(), "a killed store's segments: %s", store.status().text().c_str());
  const StoreOptions options{.lease_ms = 200, .quarantine_grace_ms = 20, .credits = {}};
  Result<StoreService> service = StoreService::start(std::move(store).value(), options, now_ms_);
  OPTLEASE_CHECK(service.is_ok(), "a killed store: %s", service.status().text().c_str());
  service_.emplace(std::move(service).value());
}

void StoreWorld::restart_store() {
  service_.reset();
  open();
  check();
}

StoreWorld::Talker StoreWorld::talker(uint32_t number, Input* input) const {
  const auto actor = [](uint32_t rank, uint64_t incarnation) {
    return Talker{actor_peer_name(Rank{rank}, Incarnation{incarnation}), Rank{rank}, incarnation};
  };
  switch (number) {
    case kRank0:
    case kRank1:
      return actor(number, lives_[number]);
    case kLauncher:
      return {"launcher", Rank{0}, 0};
    case kTool:
      return {"tool.1", Rank{0}, 0};
    case kEarlierLife: {
      const uint32_t rank = input->byte() % kRanks;
      return actor(rank, lives_[rank] - 1);
    }
    default:
      return {std::string(input->take_bytes(input->byte() % 16)), Rank{0}, 0};
  }
}

void StoreWorld::step(Input* input) {
  const uint8_t what = input->byte();
  const uint32_t who = what & 7;
  if (who == kKill && kills_++ < kKillsMax) return restart_store();
  if (who == kTime || who == kKill) {
    now_ms_ += 4ull * input->byte();
  } else {
    const Talker from = talker(who, input);
    const std::string frame = frame_of(from, what >> 3 & 3, input);
    const uint64_t refused = service_->refusals();
    service_->handle(from.peer, frame, now_ms_);
    if (service_->refusals() == refused && decode(frame).is_ok()) taken();
  }
  settle();
  check();
}

std::string StoreWorld::frame_of(const Talker& from, uint32_t form, Input* input) {
  if (form == kAnyBytes) return repaired(input->take_bytes(input->take<uint16_t>()));
  const auto& kinds = from.peer == "launcher" ? kLauncherKinds
                      : from.peer == "tool.1" ? kToolKinds
                                              : kActorKinds;
  // A strange kind now and then: the number is beyond those that this sender has.
  const uint8_t number = input->byte();
  const MessageKind kind =
      number < 128 ? kinds[number % kinds.size()] : every_kind()[number % every_kind().size()];
  std::string frame;
  if (form == kAnyBody) {
    const std::string_view bytes = input->take_bytes(input->byte());
    const uint32_t body_bytes = body_bytes_of(kind);
    MessageHeader header{};
    header.kind = static_cast<uint16_t>(kind);
    header.rank = from.rank.value;
    header.incarnation = from.incarnation;
    header.store_epoch = service_->store().epoch().value;
    frame.assign(reinterpret_cast<const char*>(&header), sizeof header);
    frame.append(bytes);
    frame.resize(std::max(frame.size(), sizeof header + body_bytes));
    return repaired(frame);
  }
  frame = honest(from, kind, input);
  if (form == kNearlyHonest) {
    frame[input->take<uint16_t>() % frame.size()] ^= static_cast<char>(input->byte());
  }
  return frame;
}

void StoreWorld::settle() {
  service_->settle(now_ms_);
  std::vector<Message>& outgoing = *service_->outgoing();
  OPTLEASE_CHECK(outgoing.size() <= kOutgoingMax, "%zu messages at once", outgoing.size());
  for (const Message& message : outgoing) hear(message);
  outgoing.clear();
}

void StoreWorld::hear(const Message& message) {
  const Result<Decoded> decoded = decode(message.frame);
  OPTLEASE_CHECK(decoded.is_ok(), "the store says: %s", decoded.status().text().c_str());
  const Decoded& frame = decoded.value();
  if (frame.kind == MessageKind::kHoldReply) hold_id_ = frame.as<HoldBody>().hold_id;
  if (frame.kind != MessageKind::kLeaseGrant) return;
  OPTLEASE_CHECK(frame.header.rank < kRanks, "a grant to rank %u", frame.header.rank);
  grants_[frame.header.rank] = {frame.as<LeaseGrantBody>(), frame.entries<GrantEntry>()};
}

void StoreWorld::check() {
  const std::string broken = service_->check_invariants();
  OPTLEASE_CHECK(broken.empty(), "%s", broken.c_str());
  const ControlView& view = service_->store().view();
  const Status rest = check_control_at_rest(view);
  OPTLEASE_CHECK(rest.is_ok(), "%s", rest.text().c_str());
  OPTLEASE_CHECK(view.step_committed() >= committed_, "step %lld after %lld",
                 static_cast<long long>(view.step_committed()), static_cast<long long>(committed_));
  committed_ = view.step_committed();
  size_t at = 0;
  for (uint32_t r = 0; r < kRanks; ++r) {
    for (uint32_t c = 0; c < view.chunks(Rank(r)).size(); ++c, ++at) {
      const Step version = view.version(Rank(r), ChunkIndex(c));
      OPTLEASE_CHECK(version >= versions_[at], "chunk %u of rank %u went back", c, r);
      versions_[at] = version;
    }
  }
}

}  // namespace optlease::fuzz
