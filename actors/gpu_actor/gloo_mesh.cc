#include "actors/gpu_actor/gloo_mesh.h"

#include <gloo/transport/address.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <thread>

#include "shm/eintr.h"

namespace optlease {
namespace {

using std::chrono::milliseconds;

constexpr uint64_t kHandshakeSlot = kReservedSlotsFrom;
constexpr uint64_t kLossSlot = kReservedSlotsFrom + 1;
constexpr milliseconds kAddressPollInterval{2};
// Gloo's own time limits close the whole mesh; the watch is always earlier.
constexpr std::chrono::hours kNeverInGloo{1000};

void draw(void* bytes, size_t count) {
  const ssize_t got = retry_eintr([&] { return ::getrandom(bytes, count, 0); });
  OPTLEASE_CHECK(got == static_cast<ssize_t>(count), "getrandom: %s", std::strerror(errno));
}

// Gloo writes with writev, which raises SIGPIPE when the peer has died. A disposition that the
// program chose stays.
void ignore_sigpipe() {
  struct sigaction current {};
  if (::sigaction(SIGPIPE, nullptr, &current) == 0 && !(current.sa_flags & SA_SIGINFO) &&
      current.sa_handler == SIG_DFL) {
    struct sigaction ignore {};
    ignore.sa_handler = SIG_IGN;
    ::sigaction(SIGPIPE, &ignore, nullptr);
  }
}

}  // namespace

Result<std::shared_ptr<gloo::transport::Device>> open_loopback_device() {
  ignore_sigpipe();
  try {
    gloo::transport::tcp::attr attributes("127.0.0.1");
    attributes.ai_family = AF_INET;
    return gloo::transport::tcp::CreateDevice(attributes);
  } catch (const std::exception& error) {
    return Status(StatusCode::kIo,
                  std::string("Gloo cannot open a TCP device on 127.0.0.1: ") + error.what());
  }
}

Result<std::unique_ptr<GlooMesh>> GlooMesh::connect(
    const std::shared_ptr<gloo::transport::Device>& device, const GroupPlace& place,
    uint64_t timeout_ms, const std::atomic<uint64_t>* aborted_epoch, WaitWatch* watch) {
  std::unique_ptr<GlooMesh> mesh(new GlooMesh(place, timeout_ms, aborted_epoch, watch));
  const auto deadline = Clock::now() + milliseconds(timeout_ms);
  OPTLEASE_TRY(mesh->create_pairs(device.get()));
  for (uint32_t peer = 0; peer < place.world; ++peer)
    if (peer != place.rank) OPTLEASE_TRY(mesh->connect_pair(peer, deadline));
  OPTLEASE_TRY(mesh->post_loss_detectors());
  OPTLEASE_TRY(mesh->shake_hands());
  return mesh;
}

GlooMesh::GlooMesh(const GroupPlace& place, uint64_t timeout_ms,
                   const std::atomic<uint64_t>* aborted_epoch, WaitWatch* watch)
    : place_(place),
      timeout_ms_(timeout_ms),
      aborted_epoch_(aborted_epoch),
      watch_(watch),
      expected_(place.world),
      told_(place.world),
      loss_detectors_(place.world) {}

// Buffers end before the context that they belong to.
GlooMesh::~GlooMesh() { loss_detectors_.clear(); }

Status GlooMesh::lost(uint32_t peer, const std::string& why) const {
  return Status(StatusCode::kPeerLost,
                format("rank %u lost rank %u of group epoch %llu: %s", place_.rank, peer,
                       static_cast<unsigned long long>(place_.group_epoch), why.c_str()));
}

Status GlooMesh::create_pairs(gloo::transport::Device* device) {
  PeerAddresses addresses(place_.world);
  try {
    context_ = device->createContext(static_cast<int>(place_.rank), static_cast<int>(place_.world));
    context_->setTimeout(kNeverInGloo);
    for (uint32_t peer = 0; peer < place_.world; ++peer) {
      if (peer == place_.rank) continue;
      const auto bytes = context_->createPair(static_cast<int>(peer))->address().bytes();
      draw(expected_[peer].data(), expected_[peer].size());
      addresses[peer].assign(expected_[peer].begin(), expected_[peer].end());
      addresses[peer].append(bytes.begin(), bytes.end());
    }
  } catch (const std::exception& error) {
    return Status(StatusCode::kIo, std::string("Gloo cannot listen on 127.0.0.1: ") + error.what());
  }
  return publish_addresses(place_, addresses);
}

Status GlooMesh::check_time(uint32_t peer, Clock::time_point deadline) const {
  if (aborted_epoch_->load() >= place_.group_epoch)
    return Status(StatusCode::kCancelled,
                  format("group epoch %llu was aborted while rank %u waited for rank %u",
                         static_cast<unsigned long long>(place_.group_epoch), place_.rank, peer));
  if (Clock::now() >= deadline)
    return Status(StatusCode::kTimeout,
                  format("rank %u waited %llu ms for rank %u of group epoch %llu in vain: it hangs "
                         "or was stopped",
                         place_.rank, static_cast<unsigned long long>(timeout_ms_), peer,
                         static_cast<unsigned long long>(place_.group_epoch)));
  return Status::ok();
}

Result<std::string> GlooMesh::await_address(uint32_t peer, Clock::time_point deadline) {
  for (;;) {
    Result<std::string> address = read_address(place_, peer);
    if (address || address.status().code() != StatusCode::kBusy) return address;
    OPTLEASE_TRY(check_time(peer, deadline));
    std::this_thread::sleep_for(kAddressPollInterval);
  }
}

Status GlooMesh::connect_pair(uint32_t peer, Clock::time_point deadline) {
  const Result<std::string> entry = await_address(peer, deadline);
  if (!entry) return entry.status();
  Secret& told = told_[peer];
  if (entry.value().size() < told.size())
    return Status(StatusCode::kCorrupt,
                  format("rank %u published no address for rank %u", peer, place_.rank));
  std::memcpy(told.data(), entry.value().data(), told.size());
  gloo::transport::Pair* pair = context_->getPair(static_cast<int>(peer)).get();
  std::string failure;
  watch_->arm([this, peer, deadline] { return check_time(peer, deadline); },
              [pair] { pair->close(); });
  try {
    pair->connect({entry.value().begin() + told.size(), entry.value().end()});
  } catch (const std::exception& error) {
    failure = error.what();
  }
  OPTLEASE_TRY(watch_->disarm());
  return failure.empty() ? Status::ok() : lost(peer, failure);
}

Status GlooMesh::post_loss_detectors() {
  for (uint32_t peer = 0; peer < place_.world; ++peer) {
    if (peer == place_.rank) continue;
    try {
      loss_detectors_[peer] = context_->createUnboundBuffer(&never_received_, 1);
      loss_detectors_[peer]->recv(static_cast<int>(peer), kLossSlot, 0, 1);
    } catch (const std::exception& error) {
      return lost(peer, error.what());
    }
  }
  return Status::ok();
}

// A listening socket takes whoever comes first: a stranger, or a rank of another epoch whose port
// was given away again, is found out here.
Status GlooMesh::shake_hands() {
  std::vector<Handshake> mine(place_.world, {place_.group_epoch, place_.rank, place_.world, {}});
  std::vector<Handshake> theirs(place_.world, Handshake{0, 0, 0, {}});
  std::vector<Transfer> transfers;
  for (uint32_t peer = 0; peer < place_.world; ++peer) {
    if (peer == place_.rank) continue;
    mine[peer].secret = told_[peer];
    transfers.push_back({peer, kHandshakeSlot, &theirs[peer], sizeof(Handshake), true, nullptr});
    transfers.push_back({peer, kHandshakeSlot, &mine[peer], sizeof(Handshake), false, nullptr});
  }
  for (Transfer& transfer : transfers) OPTLEASE_TRY(post(&transfer));
  for (Transfer& transfer : transfers) OPTLEASE_TRY(wait(&transfer));
  for (uint32_t peer = 0; peer < place_.world; ++peer)
    if (peer != place_.rank) OPTLEASE_TRY(check_handshake(peer, theirs[peer]));
  return Status::ok();
}

Status GlooMesh::check_handshake(uint32_t peer, const Handshake& their) const {
  if (their.group_epoch != place_.group_epoch || their.rank != peer || their.world != place_.world)
    return lost(peer, format("its place was taken by rank %u of %u of group epoch %llu", their.rank,
                             their.world, static_cast<unsigned long long>(their.group_epoch)));
  if (their.secret != expected_[peer])
    return lost(peer, "its place was taken by a process that cannot read this job's files");
  return Status::ok();
}

Status GlooMesh::post(Transfer* transfer) {
  const int peer = static_cast<int>(transfer->peer);
  try {
    transfer->buffer = context_->createUnboundBuffer(transfer->data, transfer->bytes);
    if (transfer->is_receive)
      transfer->buffer->recv(peer, transfer->slot, 0, transfer->bytes);
    else
      transfer->buffer->send(peer, transfer->slot, 0, transfer->bytes);
  } catch (const std::exception& error) {
    if (aborted_epoch_->load() >= place_.group_epoch)
      return check_time(transfer->peer, Clock::time_point::max());
    return lost(transfer->peer, error.what());
  }
  return Status::ok();
}

// Looks without waiting: an abort that is already set returns at once, after any error.
Status GlooMesh::check_peer(uint32_t peer) const {
  gloo::transport::UnboundBuffer* detector = loss_detectors_[peer].get();
  try {
    detector->abortWaitRecv();
    detector->waitRecv(nullptr, milliseconds(0));
  } catch (const std::exception& error) {
    return lost(peer, error.what());
  }
  return Status::ok();
}

bool GlooMesh::wait_in_gloo(Transfer* transfer, milliseconds limit, std::string* failure) const {
  try {
    return transfer->is_receive ? transfer->buffer->waitRecv(nullptr, limit)
                                : transfer->buffer->waitSend(nullptr, limit);
  } catch (const std::exception& error) {
    *failure = error.what();
    return false;
  }
}

Status GlooMesh::wait(Transfer* transfer, const GatherFeed* feed) {
  const uint32_t peer = transfer->peer;
  const auto begun = Clock::now();
  gloo::transport::UnboundBuffer* buffer = transfer->buffer.get();
  OPTLEASE_CHECK(buffer != nullptr, "a transfer with rank %u was not posted", peer);
  watch_->arm(
      [this, peer, begun, feed] {
        const auto counted = feed == nullptr ? begun : feed->counts_from(begun);
        OPTLEASE_TRY(check_time(peer, counted + milliseconds(timeout_ms_)));
        return check_peer(peer);
      },
      [buffer, is_receive = transfer->is_receive] {
        if (is_receive)
          buffer->abortWaitRecv();
        else
          buffer->abortWaitSend();
      });
  std::string failure;
  bool done = wait_in_gloo(transfer, kNeverInGloo, &failure);
  Status reason = watch_->disarm();
  // A peer that sent all it had to and then left is no loss: what it sent has arrived. The first
  // look may only take back the interruption.
  if (!done && reason.code() == StatusCode::kPeerLost)
    done = wait_in_gloo(transfer, milliseconds(0), &failure) ||
           wait_in_gloo(transfer, milliseconds(0), &failure);
  if (done) {
    transfer->buffer.reset();
    return Status::ok();
  }
  if (!reason.is_ok()) return reason;
  return lost(peer, failure);
}

}  // namespace optlease
