#include "launcher/compare_reports.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "launcher/json_text.h"

namespace optlease {
namespace {

using Json = nlohmann::json;

constexpr size_t kCurveRows = 11;

std::string seconds_text(const Json& value) {
  return value.is_number() ? format("%.3f s", value.get<double>()) : std::string("not seen");
}

std::string loss_at(const Json& curve, int64_t step) {
  for (const Json& point : curve) {
    if (point.at("step").get<int64_t>() == step && point.at("loss").is_number()) {
      return format("%.6f", point.at("loss").get<double>());
    }
  }
  return "-";
}

// Evenly spaced steps of the first curve, its first and last among them.
std::vector<int64_t> steps_shown(const Json& curve) {
  std::vector<int64_t> steps;
  const size_t points = curve.size();
  const size_t rows = std::min(points, kCurveRows);
  for (size_t row = 0; row < rows; ++row) {
    const size_t index = rows == 1 ? 0 : row * (points - 1) / (rows - 1);
    steps.push_back(curve.at(index).at("step").get<int64_t>());
  }
  return steps;
}

// A run that was stopped early is compared as far as it went.
std::string curves_verdict(const Json& a, const Json& b) {
  const size_t common = std::min(a.size(), b.size());
  if (!std::equal(a.begin(), a.begin() + static_cast<ptrdiff_t>(common), b.begin())) {
    return "The loss curves differ.\n";
  }
  if (a.size() == b.size()) {
    return "All " + std::to_string(common) + " losses are equal to the last bit.\n";
  }
  return format("The first %zu losses are equal to the last bit; only the %s has %zu more.\n",
                common, a.size() > b.size() ? "first" : "second",
                std::max(a.size(), b.size()) - common);
}

std::string curves_text(const Json& a, const Json& b) {
  const Json& curve_a = a.at("loss_curve");
  const Json& curve_b = b.at("loss_curve");
  if (curve_a.empty() && curve_b.empty()) return "No trainer reported a loss.\n";
  std::string text = format("%8s  %14s  %14s\n", "step", "loss, first", "loss, second");
  for (int64_t step : steps_shown(curve_a)) {
    text += format("%8lld  %14s  %14s\n", static_cast<long long>(step),
                   loss_at(curve_a, step).c_str(), loss_at(curve_b, step).c_str());
  }
  return text + curves_verdict(curve_a, curve_b);
}

// A configured kill is named by its place; of others the committed step at that moment is known.
std::string how_it_died(const Json& death) {
  const auto rehearsal = death.find("rehearsal");
  if (rehearsal != death.end() && rehearsal->is_object()) {
    return format("killed in step %lld, %s of rank %u",
                  static_cast<long long>(rehearsal->at("step").get<int64_t>()),
                  rehearsal->at("phase").get<std::string>().c_str(),
                  rehearsal->at("at_rank").get<unsigned>());
  }
  return format("died with step %lld committed (%s)",
                static_cast<long long>(death.at("step_committed").get<int64_t>()),
                death.at("cause").get<std::string>().c_str());
}

std::string deaths_text(const std::string& name, const Json& report) {
  const Json& deaths = report.at("restarts");
  if (deaths.empty()) return name + ": no process died.\n";
  std::string text = name + ":\n";
  for (const Json& death : deaths) {
    const std::string role = death.at("role").get<std::string>();
    const std::string who = role == "host_store"
                                ? role
                                : format("%s %u", role.c_str(), death.at("rank").get<unsigned>());
    text += format("  %-12s %s: new process after %s, back at work after %s\n", who.c_str(),
                   how_it_died(death).c_str(), seconds_text(death.at("restart_seconds")).c_str(),
                   seconds_text(death.at("recovery_seconds")).c_str());
  }
  return text;
}

std::string digest_of(const Json& report) {
  const Json& digest = report.at("state_digest");
  return digest.is_string() ? digest.get<std::string>() : std::string();
}

}  // namespace

Result<ReportComparison> compare_reports(const std::string& name_a, const std::string& json_a,
                                         const std::string& name_b, const std::string& json_b) {
  try {
    const auto a = parse_flat_json<Json>(json_a);
    const auto b = parse_flat_json<Json>(json_b);
    if (a.is_discarded() || b.is_discarded()) {
      return Status(StatusCode::kInvalidArgument,
                    "'" + (a.is_discarded() ? name_a : name_b) + "' is no JSON, or nests too deep");
    }
    ReportComparison out;
    out.text = "first:  " + name_a + "\nsecond: " + name_b + "\n\n" + curves_text(a, b) + "\n" +
               deaths_text("first", a) + deaths_text("second", b) + "\n";
    const std::string digest_a = digest_of(a);
    const std::string digest_b = digest_of(b);
    out.same_state = !digest_a.empty() && digest_a == digest_b;
    out.both_passed = a.at("status") == "passed" && b.at("status") == "passed";
    out.text += "state digest, first:  " + (digest_a.empty() ? "none" : digest_a) + "\n" +
                "state digest, second: " + (digest_b.empty() ? "none" : digest_b) + "\n";
    out.text += digest_a.empty() || digest_b.empty()
                    ? "Without both digests nothing is known of the states.\n"
                : out.same_state ? "The two states are equal, bit for bit.\n"
                                 : "The two states DIFFER.\n";
    if (!out.both_passed) out.text += "At least one run did not pass its own checks.\n";
    return out;
  } catch (const nlohmann::json::exception& error) {
    return Status(
        StatusCode::kInvalidArgument,
        format("'%s' or '%s' is no run report: %s", name_a.c_str(), name_b.c_str(), error.what()));
  }
}

}  // namespace optlease
