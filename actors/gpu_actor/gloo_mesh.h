// The connected ranks of one group epoch: a full mesh of Gloo TCP pairs on the loopback interface,
// and transfers over it that end for one of three reasons besides success: the peer is gone,
// nothing arrived in time, or the epoch was aborted. Used by gloo_collectives.cc alone, which
// decides what is sent. One thread calls; any failure leaves the mesh fit only for destruction.
//
// A port on the loopback interface is open to every user of the machine. What a peer is told
// through the rendezvous files, which are this user's alone, it must say in its first message: that
// is how a stranger is known who takes its place.
//
// What Gloo itself does not do, and this adds: it never reports the loss of a peer to the receive
// that was under way (so each pair also has a receive that never completes, which does hear of it);
// a timeout inside Gloo would close every pair; writing to a lost peer raises SIGPIPE.
#pragma once

#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <type_traits>
#include <vector>

#include "actors/gpu_actor/gather_feed.h"
#include "actors/gpu_actor/gloo_rendezvous.h"
#include "actors/gpu_actor/wait_watch.h"
#include "shm/contract/status.h"

namespace optlease {

// One message to or from one peer. Destroyed before the memory that it names.
struct Transfer {
  uint32_t peer = 0;
  uint64_t slot = 0;     // both ends name the same; one message a slot and direction at a time
  void* data = nullptr;  // read only where is_receive is false
  uint64_t bytes = 0;
  bool is_receive = false;
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer;  // set while posted
};

// Slots that no transfer may use.
inline constexpr uint64_t kReservedSlotsFrom = uint64_t{1} << 63;

// Opens the transport: one thread of Gloo's. Kept for all epochs of a process.
Result<std::shared_ptr<gloo::transport::Device>> open_loopback_device();

class GlooMesh {
 public:
  // Publishes, connects to every peer and shakes hands with it. `aborted_epoch` and `watch` outlive
  // the mesh.
  static Result<std::unique_ptr<GlooMesh>> connect(
      const std::shared_ptr<gloo::transport::Device>& device, const GroupPlace& place,
      uint64_t timeout_ms, const std::atomic<uint64_t>* aborted_epoch, WaitWatch* watch);
  ~GlooMesh();
  GlooMesh(const GlooMesh&) = delete;
  GlooMesh& operator=(const GlooMesh&) = delete;

  Status post(Transfer* transfer);
  // REQUIRES: posted. Each wait has the whole timeout for itself, from when `feed` (may be null)
  // says that time counts.
  Status wait(Transfer* transfer, const GatherFeed* feed = nullptr);

 private:
  using Clock = std::chrono::steady_clock;
  using Secret = std::array<unsigned char, 16>;

  struct Handshake {
    uint64_t group_epoch;
    uint32_t rank;
    uint32_t world;
    Secret secret;  // that the receiver published for the sender
  };
  static_assert(sizeof(Handshake) == 32 && std::is_trivially_copyable_v<Handshake>);

  GlooMesh(const GroupPlace& place, uint64_t timeout_ms, const std::atomic<uint64_t>* aborted_epoch,
           WaitWatch* watch);
  Status create_pairs(gloo::transport::Device* device);
  Status connect_pair(uint32_t peer, Clock::time_point deadline);
  Result<std::string> await_address(uint32_t peer, Clock::time_point deadline);
  Status post_loss_detectors();
  Status shake_hands();
  Status check_handshake(uint32_t peer, const Handshake& their) const;
  Status check_time(uint32_t peer, Clock::time_point deadline) const;
  Status check_peer(uint32_t peer) const;
  bool wait_in_gloo(Transfer* transfer, std::chrono::milliseconds limit,
                    std::string* failure) const;
  Status lost(uint32_t peer, const std::string& why) const;

  GroupPlace place_;
  uint64_t timeout_ms_;
  const std::atomic<uint64_t>* aborted_epoch_;
  WaitWatch* watch_;
  std::shared_ptr<gloo::transport::Context> context_;
  std::vector<Secret> expected_;  // by rank; of ours alone
  std::vector<Secret> told_;      // by rank: what each peer expects of this one
  char never_received_ = 0;
  std::vector<std::unique_ptr<gloo::transport::UnboundBuffer>> loss_detectors_;  // by rank
};

}  // namespace optlease
