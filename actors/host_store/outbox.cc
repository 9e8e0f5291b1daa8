#include "actors/host_store/outbox.h"

#include <utility>

namespace optlease {

bool Outbox::send(Socket& socket, const Message& message) {
  const Status sent = socket.send(message);
  if (sent.code() == StatusCode::kBusy) return false;
  if (!sent.is_ok()) ++dropped_;  // its process is gone; the launcher will say so
  return true;
}

void Outbox::flush(Socket& socket, std::vector<Message>* messages) {
  for (auto peer = waiting_.begin(); peer != waiting_.end();) {
    std::deque<Message>& queue = peer->second;
    while (!queue.empty() && send(socket, queue.front())) queue.pop_front();
    peer = queue.empty() ? waiting_.erase(peer) : std::next(peer);
  }
  for (Message& message : *messages) {
    const auto peer = waiting_.find(message.peer);
    if (peer == waiting_.end() && send(socket, message)) continue;
    std::deque<Message>& queue = waiting_[message.peer];
    if (queue.size() >= kWaitingMax) {
      ++dropped_;
      continue;
    }
    queue.push_back(std::move(message));
  }
  messages->clear();
}

}  // namespace optlease
