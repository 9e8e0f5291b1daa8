// The lifeline between the launcher and one child: a SOCK_SEQPACKET pair. Its end-of-file is how
// each learns of the other's death, long before a driver has torn down a device context. One
// request runs over it: a rehearsed kill (docs/PROTOCOL.md, "Rehearsed kills").
#pragma once

#include <cstdint>
#include <string_view>

#include "shm/contract/status.h"

namespace optlease {

// The child's end. Not thread-safe. Owns the descriptor and sets close-on-exec on it.
class Lifeline {
 public:
  // A child that was started by hand has no lifeline: never closed, rehearsals are refused.
  Lifeline() = default;
  // -1 gives the same as the default. InvalidArgument where `fd` is no SOCK_SEQPACKET socket.
  static Result<Lifeline> adopt(int fd);
  Lifeline(Lifeline&& other) noexcept;
  Lifeline& operator=(Lifeline&& other) noexcept;
  ~Lifeline();

  int fd() const { return fd_; }  // for polling; -1: none
  // True once the launcher's end is closed. Never blocks; unexpected datagrams are read away.
  bool closed();
  // Tells the launcher that the rehearsal's place is reached and waits for its answer. Ok: the kill
  // is done (or this very process is gone). Timeout, PeerLost otherwise.
  Status rehearse(uint32_t index, int timeout_ms);

 private:
  explicit Lifeline(int fd) : fd_(fd) {}
  int fd_ = -1;
};

// The launcher's end.
struct LifelinePair {
  int launcher_fd = -1;  // close-on-exec, non-blocking
  int child_fd = -1;     // close-on-exec: the child clears it after fork, before exec
};
Result<LifelinePair> make_lifeline();

struct LifelineEvent {
  enum class Kind {
    kNothing,    // no datagram there now
    kRehearsal,  // `rehearsal` is reached; answer_rehearsal after the kill
    kNoise,      // a datagram that is none of ours: ignore it
    kClosed,     // the child is dead or has closed its end
  };
  Kind kind = Kind::kNothing;
  uint32_t rehearsal = 0;
};
// Reads one datagram; never blocks on a descriptor of make_lifeline.
LifelineEvent read_lifeline(int launcher_fd);
// Pure part of it: "R<index>" in decimal, nothing else.
LifelineEvent parse_lifeline_datagram(std::string_view datagram);
// The one byte that the child waits for. PeerLost where the child is gone.
Status answer_rehearsal(int launcher_fd);

}  // namespace optlease
