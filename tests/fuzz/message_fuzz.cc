// Frames of the lease and client protocols, and the vault's messages and sessions: any bytes at
// all, up to frames that are larger than any message may be.
//
// It may assume nothing of the bytes. It asserts: what decode() takes is encoded again to the same
// bytes; its counts are within the limits and its entries fill its payload; what is refused is
// refused in words, and always so. A vault answers only requests that its rules take, holds no more
// than it was given, and leaves no descriptor behind.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "actors/wire/codec.h"
#include "shm/contract/vault.h"
#include "shm/shared_buffer.h"
#include "shm/vault.h"
#include "tests/fuzz/frames.h"
#include "tests/fuzz/fuzz.h"

namespace optlease::fuzz {
namespace {

enum class Part : uint8_t { kFrame, kRepairedFrame, kVaultMessage, kVaultSession, kCount };

void check_counts(const Decoded& frame) {
  const size_t payload = frame.payload.size();
  switch (frame.kind) {
    case MessageKind::kLeaseRequest:
      OPTLEASE_CHECK(frame.as<LeaseRequestBody>().chunk_count - 1 < kWindowChunksMax, "a lease");
      break;
    case MessageKind::kCommitRequest:
      OPTLEASE_CHECK(frame.as<CommitRequestBody>().chunk_count - 1 < kWindowChunksMax, "a commit");
      OPTLEASE_CHECK(frame.entries<SlotEntry>().size() * sizeof(SlotEntry) == payload, "slots");
      break;
    case MessageKind::kLeaseGrant:
      OPTLEASE_CHECK(frame.entries<GrantEntry>().size() * sizeof(GrantEntry) == payload, "grants");
      break;
    case MessageKind::kStatusReply:
      OPTLEASE_CHECK(frame.as<StatusReplyBody>().rank_count <= kRankCountMax, "ranks");
      OPTLEASE_CHECK(frame.entries<RankStatus>().size() * sizeof(RankStatus) == payload, "ranks");
      break;
    case MessageKind::kGoReduce:
    case MessageKind::kGoGather:
      OPTLEASE_CHECK(payload <= kRankCountMax, "%zu ranks", payload);
      break;
    case MessageKind::kStepReady:
    case MessageKind::kStepRequest:
      OPTLEASE_CHECK(payload <= kUserBlobBytesMax, "a blob of %zu bytes", payload);
      break;
    case MessageKind::kStepRecord:
      OPTLEASE_CHECK(why_invalid(frame.as<StepRecordBody>().record) == nullptr, "a record");
      OPTLEASE_CHECK(why_invalid(frame.as<StepRecordBody>().sums) == nullptr, "sums");
      break;
    case MessageKind::kHeartbeat:
      OPTLEASE_CHECK(*name_of(static_cast<Phase>(frame.as<HeartbeatBody>().phase)) != '?', "phase");
      break;
    case MessageKind::kRefused:
      OPTLEASE_CHECK(*name_of(static_cast<StatusCode>(frame.as<RefusedBody>().status)) != '?',
                     "status");
      break;
    default:
      break;
  }
}

void try_frame(std::string_view bytes) {
  const Result<Decoded> decoded = decode(bytes);
  const char* why = why_invalid_frame(bytes.data(), bytes.size());
  OPTLEASE_CHECK(decoded.is_ok() == (why == nullptr), "decode() and why_invalid_frame() differ");
  if (!decoded.is_ok()) {
    OPTLEASE_CHECK(decoded.status().message().find(why) != std::string::npos, "refused unsaid");
    return;
  }
  taken();
  const Decoded& frame = decoded.value();
  OPTLEASE_CHECK(*name_of(frame.kind) != '?', "a kind without a name");
  check_counts(frame);
  const MessageHeader& h = frame.header;
  const std::string again =
      encode_frame({h.rank, h.incarnation, h.store_epoch}, frame.kind, h.sequence,
                   frame.body.data(), frame.body.size(), frame.payload);
  OPTLEASE_CHECK(again == bytes, "%s of %zu bytes is encoded to others", name_of(frame.kind),
                 bytes.size());
}

void try_vault_message(Input input) {
  const auto message = input.take<VaultMessage>();
  const char* why = why_invalid(message);
  if (why != nullptr) {
    OPTLEASE_CHECK(*why != '\0', "refused without a word");
    return;
  }
  taken();
  OPTLEASE_CHECK(std::strlen(message.key) - 1 < kVaultKeyBytes - 1, "a key without an end");
  OPTLEASE_CHECK(message.bytes <= kVaultBufferBytesMax, "bytes");
}

// A connection to a vault, as a stranger who may send anything has one.
class Stranger {
 public:
  explicit Stranger(const std::string& path)
      : socket_(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.data(), path.size());
    const int connected =
        ::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
    OPTLEASE_CHECK(connected == 0, "connect: %s", std::strerror(errno));
  }
  void send(std::string_view bytes, int fd) {
    (void)send_with_fd(socket_.get(), bytes.data(), bytes.size(), fd);
  }
  // Reads all replies that wait; their number.
  uint32_t take_replies() {
    uint32_t replies = 0;
    VaultMessage reply;
    while (receiver_.receive(socket_.get(), &reply_, sizeof reply_) == Progress::kMore) {
      if (!receiver_.complete(sizeof reply_)) continue;
      std::memcpy(&reply, &reply_, sizeof reply);
      const char* why = why_invalid(reply);
      OPTLEASE_CHECK(why == nullptr, "a vault answered: %s", why == nullptr ? "" : why);
      OPTLEASE_CHECK(reply.op > 64, "a vault answered with a request");
      const UniqueFd fd = receiver_.take_fd();
      const bool is_buffer = reply.op == static_cast<uint16_t>(VaultOp::kGetReply) && !reply.status;
      OPTLEASE_CHECK(static_cast<bool>(fd) == is_buffer, "a descriptor where there is none");
      receiver_.reset();
      ++replies;
    }
    return replies;
  }

 private:
  UniqueFd socket_;
  FdReceiver receiver_;
  VaultMessage reply_{};
};

// The lowest number that a new descriptor would get.
int next_descriptor() {
  const UniqueFd fd(::dup(STDIN_FILENO));
  return fd.get();
}

// Each piece: who sends it, how long it is, with or without a descriptor, and its bytes.
void try_vault_session(Input input) {
  const int descriptors = next_descriptor();
  const std::string path = scratch_folder() + "/vault.sock";
  {
    Result<Vault> vault = Vault::listen(path);
    OPTLEASE_CHECK(vault.is_ok(), "%s", vault.status().text().c_str());
    Result<UniqueFd> memory = create_memfd("fuzz", 4096);
    OPTLEASE_CHECK(memory.is_ok(), "%s", memory.status().text().c_str());
    Stranger strangers[] = {Stranger(path), Stranger(path)};
    vault.value().serve(0);  // their time begins
    uint32_t replies = 0;
    uint64_t sent = 0;
    for (uint64_t now_ms = 1; !input.empty() && now_ms < 64; ++now_ms) {
      const uint8_t how = input.byte();
      const std::string_view piece = input.take_bytes((how & 2) != 0 ? sizeof(VaultMessage) : how);
      sent += piece.size();
      strangers[how & 1].send(piece, (how & 4) != 0 ? memory.value().get() : -1);
      vault.value().serve(now_ms);
      for (Stranger& stranger : strangers) replies += stranger.take_replies();
    }
    const auto whole_messages = static_cast<uint32_t>(sent / sizeof(VaultMessage));
    OPTLEASE_CHECK(replies <= whole_messages, "%u replies to %u", replies, whole_messages);
    OPTLEASE_CHECK(vault.value().holdings().size() <= whole_messages, "more than was put");
    OPTLEASE_CHECK(vault.value().held_bytes() <= 4096ull * whole_messages, "bytes of nothing");
    if (replies > 0) taken();
    vault.value().serve(kVaultPeerTimeoutMs + 100);
    OPTLEASE_CHECK(vault.value().peer_count() == 0, "a silent peer is kept");
  }
  OPTLEASE_CHECK(next_descriptor() == descriptors, "a descriptor is left open");
}

std::string seed_of(Part part, std::string_view bytes) {
  return Output().byte(static_cast<uint32_t>(part)).bytes(bytes).text();
}

VaultMessage vault_request(VaultOp op, uint64_t bytes) {
  VaultMessage request{};
  request.magic = kVaultMagic;
  request.version = kVaultVersion;
  request.op = static_cast<uint16_t>(op);
  request.bytes = bytes;
  std::memcpy(request.key, "param.0.dense", 13);
  return request;
}

}  // namespace
}  // namespace optlease::fuzz

std::vector<std::string> fuzz_seeds() {
  using namespace optlease;
  using namespace optlease::fuzz;
  std::vector<std::string> seeds;
  for (const std::string& frame : frame_of_every_kind()) {
    seeds.push_back(seed_of(Part::kFrame, frame));
    // The same with a header of zeros: only what repair() does not know counts.
    std::string bare = frame;
    std::fill_n(bare.begin(), 6, '\0');
    seeds.push_back(seed_of(Part::kRepairedFrame, bare));
  }
  const VaultMessage put = vault_request(VaultOp::kPut, 4096);
  const VaultMessage get = vault_request(VaultOp::kGet, 0);
  seeds.push_back(seed_of(Part::kVaultMessage, Output().put(put).text()));
  seeds.push_back(seed_of(Part::kVaultMessage, Output().put(get).text()));
  seeds.push_back(
      seed_of(Part::kVaultSession,
              Output().byte(2 | 4).put(put).byte(2 | 1).put(get).byte(2).put(get).text()));
  return seeds;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace optlease::fuzz;
  Input input(data, size);
  switch (static_cast<Part>(input.byte() % static_cast<uint8_t>(Part::kCount))) {
    case Part::kFrame:
      try_frame(input.rest());
      break;
    case Part::kRepairedFrame:
      try_frame(repaired(input.rest()));
      break;
    case Part::kVaultMessage:
      try_vault_message(input);
      break;
    case Part::kVaultSession:
      try_vault_session(input);
      break;
    case Part::kCount:
      break;
  }
  return 0;
}
