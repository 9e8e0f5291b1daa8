#include "actors/monitor/monitor_state.h"

#include <algorithm>
#include <tuple>

namespace optlease {
namespace {

constexpr int64_t kSilentMsMin = 2000;
constexpr int64_t kSilentIntervals = 5;

bool is_newer(const ActorTelemetry& a, const ActorTelemetry& b) {
  return std::tie(a.incarnation, a.sequence) > std::tie(b.incarnation, b.sequence);
}

}  // namespace

Status MonitorState::on_frame(uint32_t rank, Source source, const std::string& frame,
                              int64_t now_ms) {
  OPTLEASE_CHECK(rank < ranks_.size(), "rank %u of %zu", rank, ranks_.size());
  RankView& view = ranks_[rank];
  Result<ActorTelemetry> parsed = telemetry_from_json(frame);
  if (!parsed) {
    ++view.bad_documents;
    return parsed.status();
  }
  const ActorTelemetry& document = parsed.value();
  if (document.rank != rank || document.job != job_) {
    ++view.bad_documents;
    return Status(StatusCode::kInvalidArgument,
                  format("the socket of rank %u sent a document of rank %u, job '%s'", rank,
                         document.rank, document.job.c_str()));
  }
  if (view.last && document.incarnation < view.last->incarnation) {
    return Status(StatusCode::kStaleStep, "a document of an actor that has been replaced");
  }
  // Any document is a sign of life, also one whose content is known already.
  view.last_ms = now_ms;
  if (source == Source::kPublished) count_gap(view, document);
  if (view.last && !is_newer(document, *view.last)) {
    return Status(StatusCode::kStaleStep, "a document that is no newer than the last one");
  }
  view.last = document;
  return Status::ok();
}

// Sequences start anew with each incarnation, and a monitor that attaches late has missed nothing:
// the first document it hears of an incarnation is where counting starts.
void MonitorState::count_gap(RankView& rank, const ActorTelemetry& document) {
  if (rank.published_incarnation == document.incarnation &&
      document.sequence > rank.published_sequence) {
    rank.gaps += document.sequence - rank.published_sequence - 1;
  }
  if (rank.published_incarnation != document.incarnation ||
      document.sequence > rank.published_sequence) {
    rank.published_incarnation = document.incarnation;
    rank.published_sequence = document.sequence;
  }
}

uint32_t MonitorState::ranks_heard() const {
  return static_cast<uint32_t>(std::count_if(
      ranks_.begin(), ranks_.end(), [](const RankView& rank) { return rank.last.has_value(); }));
}

bool MonitorState::is_silent(const RankView& rank, int64_t now_ms) const {
  const int64_t patience_ms =
      std::max(kSilentMsMin, kSilentIntervals * static_cast<int64_t>(interval_ms_));
  return rank.last.has_value() && now_ms - rank.last_ms > patience_ms;
}

}  // namespace optlease
