#include "actors/host_store/peer_name.h"

#include <charconv>

#include "shm/contract/status.h"

namespace optlease {
namespace {

// The whole of `text` as a decimal number.
template <class Number>
bool parse_number(std::string_view text, Number* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc{} && end == text.data() + text.size() && !text.empty();
}

}  // namespace

std::string_view name_in(std::string_view routing_id) {
  return routing_id.substr(0, routing_id.find('@'));
}

PeerName parse_peer_name(std::string_view routing_id) {
  routing_id = name_in(routing_id);
  if (routing_id == "launcher") return {.kind = PeerName::Kind::kLauncher};
  if (routing_id.starts_with("tool.") && routing_id.size() > 5) {
    return {.kind = PeerName::Kind::kTool};
  }
  const size_t dot = routing_id.find(".i");
  if (!routing_id.starts_with("r") || dot == std::string_view::npos) return {};
  PeerName peer{.kind = PeerName::Kind::kActor};
  if (!parse_number(routing_id.substr(1, dot - 1), &peer.rank.value) ||
      !parse_number(routing_id.substr(dot + 2), &peer.incarnation.value)) {
    return {};
  }
  return peer;
}

std::string actor_peer_name(Rank rank, Incarnation incarnation) {
  return format("r%u.i%llu", rank.value, static_cast<unsigned long long>(incarnation.value));
}

}  // namespace optlease
