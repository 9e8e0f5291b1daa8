// Frames on their way out: collected while a batch of messages is handled, sent together after it.
// What a slow peer's queue does not take waits here, in order and bounded, so that no peer ever
// makes the store wait. Used by HostStore only.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "actors/wire/socket.h"

namespace optlease {

class Outbox {
 public:
  // Sends what it can, oldest first, and empties `messages`.
  void flush(Socket& socket, std::vector<Message>* messages);
  // True while something waits for a peer: call flush again soon.
  bool waiting() const { return !waiting_.empty(); }
  // Frames that no peer was there for, or that a peer did not read for too long.
  uint64_t dropped() const { return dropped_; }

  static constexpr size_t kWaitingMax = 4096;  // frames a peer, beyond its socket's own queue

 private:
  // False: the peer's queue is full.
  bool send(Socket& socket, const Message& message);

  std::unordered_map<std::string, std::deque<Message>> waiting_;
  uint64_t dropped_ = 0;
};

}  // namespace optlease
