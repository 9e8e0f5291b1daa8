#include "actors/gpu_actor/nccl_group.h"

#include <cstring>

#include "actors/gpu_actor/cuda_status.h"
#include "actors/gpu_actor/cuda_wait.h"

namespace optlease {
namespace {

constexpr std::chrono::microseconds kLookAtFiles{1000};
constexpr std::chrono::microseconds kLookAtGpu{20};
constexpr std::chrono::microseconds kLookWhileComputing{100};
constexpr int64_t kLookAtPeersMs = 20;
// What a peer sent before it ended may still be on its way.
constexpr int64_t kLossGraceMs = 500;

unsigned long long printable(uint64_t value) { return value; }

std::chrono::microseconds look_at_gpu(const GatherFeed* feed) {
  return feed == nullptr ? kLookAtGpu : kLookWhileComputing;
}

}  // namespace

NcclGroup::NcclGroup(const GroupPlace& place, uint64_t timeout_ms,
                     const std::atomic<uint64_t>* aborted_epoch)
    : rendezvous_(place), timeout_ms_(timeout_ms), aborted_epoch_(aborted_epoch) {}

Status NcclGroup::cancelled() const {
  return Status(StatusCode::kCancelled,
                format("group epoch %llu was aborted", printable(rendezvous_.place().group_epoch)));
}

Status NcclGroup::poll(std::chrono::microseconds sleep, const std::string& what,
                       const GatherFeed* feed, const std::function<Result<bool>()>& is_done) {
  const auto limit = std::chrono::milliseconds(timeout_ms_);
  const auto begun = GatherFeed::Clock::now();
  const uint32_t nobody = rendezvous_.world();
  PatientLoop loop(sleep);
  int64_t next_look_ms = kLookAtPeersMs;
  int64_t gone_since_ms = 0;
  uint32_t gone = nobody;
  while (true) {
    const Result<bool> done = is_done();
    if (!done) return done.status();
    if (done.value()) return Status::ok();
    if (aborted_epoch_->load() >= rendezvous_.place().group_epoch) return cancelled();
    const int64_t waited_ms = loop.waited_ms();
    if (gone == nobody && waited_ms >= next_look_ms) {
      next_look_ms = waited_ms + kLookAtPeersMs;
      gone_since_ms = waited_ms;
      gone = rendezvous_.first_gone();
    }
    if (gone != nobody && waited_ms - gone_since_ms >= kLossGraceMs)
      return Status(StatusCode::kPeerLost,
                    format("%s: rank %u has ended or has left group epoch %llu", what.c_str(), gone,
                           printable(rendezvous_.place().group_epoch)));
    const auto counted = feed == nullptr ? begun : feed->counts_from(begun);
    if (GatherFeed::Clock::now() - counted > limit)
      return Status(StatusCode::kTimeout,
                    format("%s: nothing arrived in %llu ms (gradients.collective_timeout_ms)",
                           what.c_str(), printable(timeout_ms_)));
    loop.pause();
  }
}

Status NcclGroup::meet_peers() {
  std::string what = "connecting the group";
  return poll(kLookAtFiles, what, nullptr, [&]() -> Result<bool> {
    const Result<uint32_t> missing = rendezvous_.first_missing();
    if (!missing) return missing.status();
    what = format("connecting the group, for rank %u", missing.value());
    return missing.value() == rendezvous_.world();
  });
}

Result<ncclUniqueId> NcclGroup::agree_on_id() {
  static_assert(sizeof(ncclUniqueId) == sizeof(NcclIdBytes));
  ncclUniqueId id;
  NcclIdBytes bytes;
  if (rendezvous_.place().rank == 0) {
    OPTLEASE_TRY(nccl_status(*nccl_, nccl_->get_unique_id(&id), "ncclGetUniqueId", nullptr));
    std::memcpy(bytes.data(), &id, bytes.size());
    OPTLEASE_TRY(rendezvous_.publish_id(bytes));
    return id;
  }
  const std::string what = "connecting the group, for rank 0's id";
  OPTLEASE_TRY(poll(kLookAtFiles, what, nullptr, [&]() -> Result<bool> {
    const Result<NcclIdBytes> read = rendezvous_.read_id();
    if (read.is_ok()) bytes = read.value();
    if (read.is_ok() || read.status().code() == StatusCode::kBusy) return read.is_ok();
    return read.status();
  }));
  std::memcpy(&id, bytes.data(), bytes.size());
  return id;
}

Status NcclGroup::connect(const GpuUuid& gpu) {
  const GroupPlace& place = rendezvous_.place();
  if (place.world == 1) return Status::ok();
  const Result<const NcclLibrary*> nccl = nccl_library();
  if (!nccl) return nccl.status();
  nccl_ = nccl.value();
  OPTLEASE_TRY(rendezvous_.announce(gpu));
  OPTLEASE_TRY(meet_peers());
  const Result<ncclUniqueId> id = agree_on_id();
  if (!id) return id.status();
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const ncclResult_t begun = nccl_->comm_init_rank_config(
      &comm_, static_cast<int>(place.world), id.value(), static_cast<int>(place.rank), &config);
  OPTLEASE_TRY(nccl_status(*nccl_, begun, "ncclCommInitRankConfig", comm_));
  OPTLEASE_TRY(poll(kLookAtGpu, "connecting the group, in NCCL", nullptr,
                    [&] { return is_settled("ncclCommInitRankConfig"); }));
  if (place.rank == 0) remove_earlier_epochs(place);
  return Status::ok();
}

// Whether the communicator has taken what it was given.
Result<bool> NcclGroup::is_settled(const char* call) {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = nccl_->comm_get_async_error(comm_, &state);
  OPTLEASE_TRY(nccl_status(*nccl_, asked, "ncclCommGetAsyncError", comm_));
  OPTLEASE_TRY(nccl_status(*nccl_, state, call, comm_));
  return state == ncclSuccess;
}

Status NcclGroup::exchange(std::span<const NcclTransfer> transfers, cudaStream_t stream,
                           const GatherFeed* feed) {
  if (transfers.empty()) return Status::ok();
  OPTLEASE_CHECK(comm_ != nullptr, "%zu transfers in a world of one", transfers.size());
  OPTLEASE_TRY(nccl_status(*nccl_, nccl_->group_start(), "ncclGroupStart", comm_));
  Status first;
  for (const NcclTransfer& transfer : transfers) {
    const auto peer = static_cast<int>(transfer.peer);
    if (!first.is_ok()) break;
    const ncclResult_t given =
        transfer.is_receive
            ? nccl_->recv(transfer.data, transfer.bytes, ncclInt8, peer, comm_, stream)
            : nccl_->send(transfer.data, transfer.bytes, ncclInt8, peer, comm_, stream);
    first = nccl_status(*nccl_, given, transfer.is_receive ? "ncclRecv" : "ncclSend", comm_);
  }
  const ncclResult_t ended = nccl_->group_end();  // even after a failure: the group is the thread's
  OPTLEASE_TRY(first);
  OPTLEASE_TRY(nccl_status(*nccl_, ended, "ncclGroupEnd", comm_));
  // Only then is the work in the stream, and only then may an event come after it.
  return poll(look_at_gpu(feed), "enqueuing transfers", feed,
              [&] { return is_settled("ncclGroupEnd"); });
}

Status NcclGroup::wait(cudaEvent_t event, const std::string& what, const GatherFeed* feed) {
  return poll(look_at_gpu(feed), what, feed, [&]() -> Result<bool> {
    const cudaError_t state = query_event(event);
    if (state == cudaSuccess) return true;
    if (state != cudaErrorNotReady) return cuda_status(state, what);
    if (comm_ == nullptr) return false;
    const Result<bool> settled = is_settled("a transfer");
    if (!settled) return settled.status();
    return false;
  });
}

ncclComm_t NcclGroup::release() {
  rendezvous_.leave();
  const ncclComm_t comm = comm_;
  comm_ = nullptr;
  return comm;
}

}  // namespace optlease
