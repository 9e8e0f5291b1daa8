#include "actors/runtime/floor_messages.h"

#include <type_traits>

#include "actors/runtime/json_fields.h"
#include "shm/contract/limits.h"

namespace optlease {
namespace {

constexpr uint64_t kMeasureMsMax = 600'000;

template <class A, class T>
requires std::is_same_v<std::remove_const_t<T>, FloorSetup>
void fields(A& a, T& m) {
  a("device", m.device);
  a("rank", m.rank);
  a("copy_bytes", m.copy_bytes);
  a("slot_bytes", m.slot_bytes);
  a("copies", m.copies);
}
template <class A, class T>
requires std::is_same_v<std::remove_const_t<T>, FloorOrder>
void fields(A& a, T& m) {
  a("direction", m.direction);
  a("measure_ms", m.measure_ms);
}
template <class A, class T>
requires std::is_same_v<std::remove_const_t<T>, FloorReply>
void fields(A& a, T& m) {
  a("failure", m.failure);
  a("exit_code", m.exit_code);
  a("rounds", m.rounds);
  a("round_seconds", m.round_seconds);
  a("best_round_seconds", m.best_round_seconds);
  a("bounced_bytes", m.bounced_bytes);
  a("pinned_ms", m.pinned_ms);
}

template <class T>
std::string write(const T& message) {
  JsonFieldWriter writer;
  fields(writer, message);
  return writer.text();
}

template <class T>
Result<T> read(std::string_view datagram, const char* what) {
  T message;
  JsonFieldReader reader(datagram, JsonFieldReader::Nulls::kRefused);
  fields(reader, message);
  if (reader.error().empty()) return message;
  return Status(StatusCode::kInvalidArgument,
                format("a floor %s is invalid: ", what) + reader.error());
}

}  // namespace

const char* name_of(FloorDirection direction) {
  switch (direction) {
    case FloorDirection::kIn:
      return "in";
    case FloorDirection::kOut:
      return "out";
    case FloorDirection::kBoth:
      return "both";
  }
  return "?";
}

std::string why_invalid(const FloorSetup& setup) {
  if (setup.device != "cpu" && setup.device != "cuda") return "device is neither cpu nor cuda";
  if (setup.rank >= kRankCountMax) return "rank is too large";
  if (setup.copies == 0 || setup.copies > 1u << 24) return "copies is not from 1 to 2^24";
  if (setup.copy_bytes == 0) return "copy_bytes is 0";
  if (setup.slot_bytes % kPageBytes != 0) return "slot_bytes is not whole pages";
  if (setup.slot_bytes < setup.copy_bytes) return "slot_bytes is less than copy_bytes";
  if (setup.slot_bytes > (UINT64_MAX >> 2) / setup.copies) return "it is too much memory";
  return "";
}

std::string to_json(const FloorSetup& setup) { return write(setup); }
std::string to_json(const FloorOrder& order) { return write(order); }
std::string to_json(const FloorReply& reply) { return write(reply); }

Result<FloorSetup> floor_setup_from(std::string_view datagram) {
  auto setup = read<FloorSetup>(datagram, "setup");
  if (!setup) return setup;
  const std::string why = why_invalid(setup.value());
  if (why.empty()) return setup;
  return Status(StatusCode::kInvalidArgument, "a floor setup is invalid: " + why);
}

Result<FloorOrder> floor_order_from(std::string_view datagram) {
  auto order = read<FloorOrder>(datagram, "order");
  if (order.is_ok() && order.value().measure_ms > kMeasureMsMax) {
    return Status(StatusCode::kInvalidArgument, "a floor order is invalid: measure_ms is too long");
  }
  return order;
}

Result<FloorReply> floor_reply_from(std::string_view datagram) {
  return read<FloorReply>(datagram, "reply");
}

}  // namespace optlease
