#include "launcher/report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "launcher/memory_contract.h"

namespace optlease {
namespace {

using Json = nlohmann::ordered_json;

Json number_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

Json seconds_or_null(const std::optional<uint64_t>& ms) {
  return ms ? Json(static_cast<double>(*ms) / 1000.0) : Json(nullptr);
}

Json rehearsal_json(const std::optional<Rehearsal>& rehearsal) {
  if (!rehearsal) return nullptr;
  return {{"step", rehearsal->step},
          {"phase", name_of(rehearsal->phase)},
          {"at_rank", rehearsal->at_rank}};
}

void add_heard(const LastHeard& heard, Json* out) {
  (*out)["phase"] = heard.phase.empty() ? Json(nullptr) : Json(heard.phase);
  (*out)["phase_step"] = heard.phase.empty() ? Json(nullptr) : Json(heard.step);
  (*out)["why"] = heard.why.empty() ? Json(nullptr) : Json(heard.why);
}

// Who and what did not do its part.
void add_stuck(const RunReport& report, Json* out) {
  Json& json = *out;
  json["stalls"] = Json::array();
  for (const Stall& stall : report.stalls) {
    json["stalls"].push_back({{"step", stall.step},
                              {"seconds", static_cast<double>(stall.lasted_ms) / 1000.0},
                              {"over", stall.over},
                              {"text", stall.text}});
  }
  json["killed_at_stop"] = Json::array();
  for (const KilledAtStop& killed : report.killed_at_stop) {
    Json entry = {
        {"role", name_of(killed.seat.role)}, {"rank", killed.seat.rank}, {"pid", killed.pid}};
    add_heard(killed.heard, &entry);
    json["killed_at_stop"].push_back(std::move(entry));
  }
}

Json death_json(const DeathRecord& death) {
  Json out = {{"role", name_of(death.seat.role)},
              {"rank", death.seat.rank},
              {"incarnation", death.life},
              {"pid", death.pid},
              {"cause", name_of(death.cause)},
              {"seen_by", name_of(death.sign)},
              {"exit", death.exit ? Json(text_of(*death.exit)) : Json(nullptr)},
              {"step_committed", death.step_committed},
              {"rehearsal", rehearsal_json(death.rehearsal)},
              {"at_seconds", static_cast<double>(death.at_ms) / 1000.0}};
  out["restart_seconds"] = seconds_or_null(death.restart_ms);
  out["attach_seconds"] = seconds_or_null(death.attach_ms);
  out["recovery_seconds"] = seconds_or_null(death.recovery_ms);
  out["reap_seconds"] = seconds_or_null(death.reap_ms);
  add_heard(death.heard, &out);
  return out;
}

Json rank_json(const RankReport& rank) {
  Json out = {{"rank", rank.rank},
              {"incarnation", rank.incarnation},
              {"bytes_h2d", rank.bytes_h2d},
              {"bytes_d2h", rank.bytes_d2h},
              {"bytes_are_exact", rank.bytes_are_exact},
              {"bytes_bounced", rank.bytes_bounced},
              {"pin_refused_bytes", rank.pin_refused_bytes},
              {"staging_peak_bytes", rank.staging_peak_bytes},
              {"staging_budget_bytes", rank.staging_budget_bytes},
              {"leases_deferred", rank.leases_deferred},
              {"credit_wait_seconds", rank.credit_wait_seconds},
              {"telemetry_heard", rank.telemetry_heard}};
  out["numa"] = nullptr;
  if (rank.numa_node) {
    out["numa"] = {{"node", *rank.numa_node},
                   {"pages_sampled", rank.numa_pages},
                   {"pages_elsewhere", rank.numa_pages_elsewhere},
                   {"text", rank.numa_text}};
  }
  out["grad_norm"] = rank.grad_norm ? number_or_null(*rank.grad_norm) : Json(nullptr);
  out["digest"] = rank.digest.empty() ? Json(nullptr) : Json(rank.digest);
  for (const StepFigures& figures : rank.steps) {
    out["steps"].push_back(Json::parse(to_json(figures)));
  }
  return out;
}

Json restarts_by_role(const RunReport& report) {
  Json out = {{"host_store", 0}, {"gpu_actor", 0}, {"trainer", 0}};
  for (const DeathRecord& death : report.deaths) {
    if (!death.restart_ms) continue;
    out[name_of(death.seat.role)] = out[name_of(death.seat.role)].get<int>() + 1;
  }
  return out;
}

Json restarts_by_cause(const RunReport& report) {
  Json out = Json::object();
  for (const DeathCause cause : {DeathCause::kOwn, DeathCause::kRehearsal, DeathCause::kRequested,
                                 DeathCause::kHeartbeat, DeathCause::kStartTimeout}) {
    const auto is_one = [&](const DeathRecord& death) {
      return death.restart_ms && death.cause == cause;
    };
    out[name_of(cause)] = std::count_if(report.deaths.begin(), report.deaths.end(), is_one);
  }
  return out;
}

// "2 restarts", or "1 restart of 3 deaths" where a death was not followed by a new process.
std::string restarts_text(const RunReport& report) {
  const auto restarts = static_cast<size_t>(
      std::count_if(report.deaths.begin(), report.deaths.end(),
                    [](const DeathRecord& death) { return death.restart_ms.has_value(); }));
  std::string text = format("%zu restart%s", restarts, restarts == 1 ? "" : "s");
  if (restarts == report.deaths.size()) return text;
  const size_t deaths = report.deaths.size();
  return text + format(" of %zu death%s", deaths, deaths == 1 ? "" : "s");
}

struct Traffic {
  uint64_t bytes_h2d = 0, bytes_d2h = 0;
  bool is_exact = true;
};

Traffic traffic_of(const RunReport& report) {
  Traffic all;
  for (const RankReport& rank : report.ranks) {
    all.bytes_h2d += rank.bytes_h2d;
    all.bytes_d2h += rank.bytes_d2h;
    all.is_exact = all.is_exact && rank.bytes_are_exact;
  }
  return all;
}

Json traffic_json(const RunReport& report) {
  const Traffic all = traffic_of(report);
  return {{"bytes_h2d", all.bytes_h2d},
          {"bytes_d2h", all.bytes_d2h},
          {"bytes_are_exact", all.is_exact}};
}

Json memory_json_of(const RunReport& report) {
  return {
      {"planned_bytes", report.planned_memory_bytes},
      {"planned_shm_bytes", report.planned_shm_bytes},
      {"real_bytes", report.real_shm_bytes + report.real_buffer_bytes + report.real_process_bytes},
      {"real_shm_bytes", report.real_shm_bytes},
      {"real_buffer_bytes", report.real_buffer_bytes},
      {"real_device_buffer_bytes", report.real_device_buffer_bytes},
      {"real_process_bytes", report.real_process_bytes}};
}

uint64_t staging_peak(const RunReport& report) {
  uint64_t peak = 0;
  for (const RankReport& rank : report.ranks) peak = std::max(peak, rank.staging_peak_bytes);
  return peak;
}

void add_state(const RunReport& report, Json* out) {
  Json& json = *out;
  json["state_digest"] = report.state_digest.empty() ? Json(nullptr) : Json(report.state_digest);
  json["state_kept"] = report.state_kept;
  json["segments"] = report.segments;
  json["clean_up"] = {
      {"segments_left", report.segments_left},
      {"processes_left", report.unreaped},
      {"run_directory", report.run_directory_text},
      {"error", report.clean_up_error.empty() ? Json(nullptr) : Json(report.clean_up_error)}};
}

void add_steps(const RunReport& report, Json* out) {
  Json& json = *out;
  json["steps"] = report.steps_wanted;
  json["steps_committed"] = report.steps_committed;
  json["steps_skipped"] = report.steps_skipped;
  json["commits"] = report.commits;
  json["loss_curve"] = Json::array();
  for (const LossPoint& point : report.loss_curve) {
    json["loss_curve"].push_back({{"step", point.step}, {"loss", number_or_null(point.loss)}});
  }
  json["step_seconds"] = nullptr;
  if (const auto& times = report.step_seconds) {
    json["step_seconds"] = {{"p50", times->p50},
                            {"p90", times->p90},
                            {"p99", times->p99},
                            {"max", times->max},
                            {"steps_measured", times->steps_measured}};
  }
}

}  // namespace

std::vector<LossPoint> loss_curve_of(const std::vector<std::string>& texts) {
  std::map<Step, std::pair<double, uint32_t>> sums;
  for (const std::string& text : texts) {
    std::map<Step, double> mine;
    std::istringstream lines(text);
    std::string line;
    while (std::getline(lines, line)) {
      const auto entry = nlohmann::json::parse(line, nullptr, false);
      if (!entry.is_object()) continue;
      const auto step = entry.find("step");
      const auto loss = entry.find("loss");
      if (step == entry.end() || loss == entry.end()) continue;
      if (!step->is_number_integer() || !loss->is_number()) continue;
      mine[step->get<Step>()] = loss->get<double>();
    }
    for (const auto& [step, loss] : mine) {
      sums[step].first += loss;
      sums[step].second += 1;
    }
  }
  std::vector<LossPoint> curve;
  curve.reserve(sums.size());
  for (const auto& [step, sum] : sums) curve.push_back({step, sum.first / sum.second, sum.second});
  return curve;
}

std::string to_json(const RunReport& report) {
  const std::vector<ReportCheck> checks = checks_of(report);
  Json out;
  out["schema"] = 1;
  out["status"] = verdict_of(report);
  out["job"] = report.job;
  out["config"] = report.config_path;
  out["device"] = report.device;
  out["world_size"] = report.world_size;
  out["resumed"] = report.resumed;
  out["ending"] = name_of(report.ending);
  out["ending_text"] = report.ending_text;
  out["exit_code"] = static_cast<int>(report.exit_code);
  out["exit_name"] = name_of(report.exit_code);
  out["wall_seconds"] = report.wall_seconds;
  add_steps(report, &out);
  out["ranks"] = Json::array();
  for (const RankReport& rank : report.ranks) out["ranks"].push_back(rank_json(rank));
  out["traffic"] = traffic_json(report);
  out["restarts"] = Json::array();
  for (const DeathRecord& death : report.deaths) out["restarts"].push_back(death_json(death));
  out["restarts_by_role"] = restarts_by_role(report);
  out["restarts_by_cause"] = restarts_by_cause(report);
  add_stuck(report, &out);
  out["rehearsals"] = {{"wanted", report.rehearsals_wanted}, {"done", report.rehearsals_done}};
  out["peak_staging_bytes"] = staging_peak(report);
  out["memory"] = memory_json_of(report);
  add_state(report, &out);
  out["checks"] = Json::array();
  for (const ReportCheck& check : checks) {
    out["checks"].push_back({{"name", check.name},
                             {"passed", check.passed ? Json(*check.passed) : Json(nullptr)},
                             {"counts", check.counts},
                             {"detail", check.detail}});
  }
  return out.dump(2, ' ', false, Json::error_handler_t::replace);
}

std::string last_step_text(const RunReport& report) {
  if (report.steps_committed == kNoStep) return "";
  std::string text = format("ended at step %lld of %lld, the last one committed",
                            static_cast<long long>(report.steps_committed),
                            static_cast<long long>(report.steps_wanted));
  if (report.last_step_seconds) text += format(", in %.4f s", *report.last_step_seconds);
  return text;
}

std::string summary_text(const RunReport& report) {
  const std::vector<ReportCheck> checks = checks_of(report);
  std::string out = format(
      "%s: step %lld of %lld, %llu skipped, %.1f s", report.job.c_str(),
      static_cast<long long>(report.steps_committed), static_cast<long long>(report.steps_wanted),
      static_cast<unsigned long long>(report.steps_skipped), report.wall_seconds);
  out += ", " + restarts_text(report) + "\n";
  if (const auto& times = report.step_seconds) {
    out += format("step seconds p50 %.4f, p90 %.4f, p99 %.4f, max %.4f\n", times->p50, times->p90,
                  times->p99, times->max);
  }
  const Traffic traffic = traffic_of(report);
  out += "staging at most " + bytes_text(staging_peak(report)) + " a rank; shared memory " +
         bytes_text(report.real_shm_bytes) + "; copied " + bytes_text(traffic.bytes_h2d) +
         " to devices, " + bytes_text(traffic.bytes_d2h) + " back\n";
  for (const RankReport& rank : report.ranks) {
    if (!rank.numa_node || (rank.numa_pages > 0 && rank.numa_pages_elsewhere == 0)) continue;
    out += format("warning: the arena of rank %u: ", rank.rank) + rank.numa_text + "\n";
  }
  if (!report.state_digest.empty()) out += "state digest " + report.state_digest + "\n";
  if (report.state_kept && report.clean_up_error.empty()) {
    out +=
        "the state is kept in shared memory: go on with --resume, remove it with `optlease clean " +
        report.job + "`\n";
  }
  const bool was_stopped = report.ending == Ending::kStopped;
  if (was_stopped && !report.state_kept && report.steps_committed != kNoStep) {
    out +=
        "the state was removed: `optlease stop --keep` or job.keep_state = true would have kept "
        "it\n";
  }
  for (const ReportCheck& check : checks) {
    // What follows from the wish to stop is no failure.
    if (was_stopped && is_about_the_end(check)) continue;
    if (!check.failed()) continue;
    out +=
        (check.counts ? "check failed: " : "warning: ") + check.name + ": " + check.detail + "\n";
  }
  out += format("%s (%s): %s\n", name_of(report.ending), name_of(report.exit_code),
                report.ending_text.c_str());
  return out;
}

}  // namespace optlease
