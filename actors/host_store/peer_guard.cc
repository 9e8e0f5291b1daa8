#include "actors/host_store/peer_guard.h"

#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "shm/processes.h"

namespace optlease {
namespace {

// Connections of a job are few; a stranger's that come and go must not fill memory.
constexpr size_t kSeenMax = 4096;
constexpr size_t kParentField = 1;  // of stat_after_name()

}  // namespace

int PeerGuard::parent_of(int pid) {
  const std::vector<std::string> fields = stat_after_name(pid);
  return fields.size() > kParentField ? std::atoi(fields[kParentField].c_str()) : 0;
}

PeerGuard::PeerGuard(int launcher, ParentOf parent)
    : launcher_(launcher), parent_(std::move(parent)) {
  // Where the kernel's files tell nothing, nobody can be told from anybody.
  if (parent_(::getpid()) == 0) launcher_ = 0;
}

PeerGuard::Verdict PeerGuard::check(const std::string& routing_id, int pid) {
  if (launcher_ == 0 || pid == 0 || pid == launcher_) return {};
  const auto found = seen_.find(routing_id);
  if (found != seen_.end() && found->second.pid == pid) return {found->second.status, false};
  if (seen_.size() >= kSeenMax) seen_.clear();
  Status status = judge(std::string(name_in(routing_id)), pid);
  seen_[routing_id] = {pid, status};
  return {std::move(status), true};
}

Status PeerGuard::judge(const std::string& name, int pid) {
  const PeerName::Kind kind = parse_peer_name(name).kind;
  if (kind == PeerName::Kind::kTool || kind == PeerName::Kind::kStranger) return Status::ok();
  if (kind == PeerName::Kind::kLauncher) {
    return {StatusCode::kPermission,
            format("process %d calls itself launcher, which process %d is", pid, launcher_)};
  }
  if (parent_(pid) != launcher_) {
    return {StatusCode::kPermission,
            format("process %d calls itself %s, and launcher %d has not started it", pid,
                   name.c_str(), launcher_)};
  }
  const int holder = holders_.try_emplace(name, pid).first->second;
  if (holder == pid) return Status::ok();
  return {StatusCode::kPermission,
          format("process %d calls itself %s, which process %d is", pid, name.c_str(), holder)};
}

}  // namespace optlease
