// Whether the process at the other end of a connection may speak under the name that it gave: only
// the launcher is the launcher, only its children are actors, and a name that a process has is no
// other's. Looks at a connection once. Used by HostStore before StoreService sees a frame; that one
// believes names. Not thread-safe.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "actors/host_store/peer_name.h"
#include "shm/contract/status.h"

namespace optlease {

class PeerGuard {
 public:
  // The parent of a process; 0 where there is no such process.
  using ParentOf = std::function<int(int pid)>;
  static int parent_of(int pid);

  // `launcher`: the process that started this store; 0: it was started by hand, and whoever may
  // open its socket is believed.
  explicit PeerGuard(int launcher, ParentOf parent = parent_of);

  struct Verdict {
    Status status;       // Permission, with words for the log and the peer
    bool is_new = true;  // the first time that this is said of the connection
  };
  // `pid` 0: not known, and believed.
  Verdict check(const std::string& routing_id, int pid);

 private:
  struct Seen {
    int pid = 0;
    Status status;
  };
  Status judge(const std::string& name, int pid);

  int launcher_;
  ParentOf parent_;
  std::map<std::string, Seen> seen_;    // by routing id
  std::map<std::string, int> holders_;  // by name: an actor's process
};

}  // namespace optlease
