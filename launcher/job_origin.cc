#include "launcher/job_origin.h"

#include <filesystem>

#include "launcher/files.h"

namespace optlease {
namespace {

std::string named(const std::string& source) {
  return source.empty() ? "\"\" (drawn from model.seed)" : "\"" + source + "\"";
}

bool same_init(const ModelPlan& a, const ModelPlan& b) {
  if (a.init.size() != b.init.size()) return false;
  for (size_t s = 0; s < a.init.size(); ++s) {
    if (a.init[s].size() != b.init[s].size()) return false;
    for (size_t t = 0; t < a.init[s].size(); ++t) {
      const TensorInit& was = a.init[s][t];
      const TensorInit& is = b.init[s][t];
      if (was.kind != is.kind) return false;
      if (was.kind == InitKind::kNormal && was.std_dev != is.std_dev) return false;
    }
  }
  return true;
}

}  // namespace

std::optional<JobPlan> plan_of_stored_state(const RunDirectory& run, uint64_t hash) {
  for (const std::string& path : {run.job_file(), run.kept_file()}) {
    auto plan = read_job_plan(path);
    if (plan && layout_hash(plan.value().segment) == hash) return std::move(plan).value();
  }
  return std::nullopt;
}

bool draws_weights(const JobPlan& plan) {
  if (!plan.model.source.empty()) return false;
  for (const auto& space : plan.model.init) {
    for (const TensorInit& init : space) {
      if (init.kind == InitKind::kNormal) return true;
    }
  }
  return false;
}

std::string model_difference(const JobPlan& stored, const JobPlan& wanted, bool complete) {
  // Of two seeds that nothing is drawn from, neither says anything.
  if (draws_weights(stored) && draws_weights(wanted) && stored.model.seed != wanted.model.seed) {
    return format("model.seed was %llu and is now %llu",
                  static_cast<unsigned long long>(stored.model.seed),
                  static_cast<unsigned long long>(wanted.model.seed));
  }
  // A complete state has its weights: a file may have moved since. One that is half made would get
  // its other half from elsewhere.
  if (complete) return "";
  if (stored.model.source != wanted.model.source) {
    return "model.source was " + named(stored.model.source) + " and is now " +
           named(wanted.model.source);
  }
  if (stored.model.source.empty() && !same_init(stored.model, wanted.model)) {
    return "parameters have another init or std";
  }
  return "";
}

Status keep_only_origin(const RunDirectory& run) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::is_directory(fs::symlink_status(run.path(), error))) return Status::ok();
  // A directory that lost its plan has nothing to keep.
  fs::rename(run.job_file(), run.kept_file(), error);
  return remove_entries(run.path(),
                        [&](const std::string& path) { return path == run.kept_file(); });
}

}  // namespace optlease
