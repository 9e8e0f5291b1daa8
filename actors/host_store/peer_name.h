// Who speaks, by the routing id of its socket (docs/PROTOCOL.md, "Who talks to whom"). Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "shm/contract/ids.h"

namespace optlease {

struct PeerName {
  enum class Kind {
    kActor,     // "r<rank>.i<incarnation>"; this and the others with or without "@<anything>"
    kLauncher,  // "launcher"
    kTool,      // "tool.<anything>"
    kStranger,  // none of these: its frames are counted and dropped
  };
  Kind kind = Kind::kStranger;
  Rank rank = {};                // kActor
  Incarnation incarnation = {};  // kActor
};

// The name in a routing id: what stands before the '@' of private_routing_id().
std::string_view name_in(std::string_view routing_id);
PeerName parse_peer_name(std::string_view routing_id);
std::string actor_peer_name(Rank rank, Incarnation incarnation);

}  // namespace optlease
