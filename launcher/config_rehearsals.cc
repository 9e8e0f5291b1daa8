// The rules of [[rehearse]]: check_rehearsals of config_check.h.
#include <algorithm>

#include "launcher/config_check.h"

namespace optlease {
namespace {

// The moments that a step has only where windows are updated.
bool is_of_a_window(RehearsePhase phase) {
  switch (phase) {
    case RehearsePhase::kBeforeLease:
    case RehearsePhase::kCopyIn:
    case RehearsePhase::kUpdate:
    case RehearsePhase::kCopyOut:
    case RehearsePhase::kBeforeCommit:
    case RehearsePhase::kAfterCommit:
      return true;
    case RehearsePhase::kBetweenSteps:
    case RehearsePhase::kPrepared:
    case RehearsePhase::kAnswered:
      return false;
  }
  return false;
}

long long num(Step step) { return static_cast<long long>(step); }

// The rules of one entry; `refuse` takes a key and the words.
template <class Refuse>
void check_rehearsal(const Rehearsal& rehearsal, const ConfigValue& item, const Config& config,
                     Refuse&& refuse) {
  const auto check_rank = [&](const char* key, uint32_t rank) {
    if (rank < config.world_size || item.find(key) == nullptr) return;
    refuse(key, format("found rank %u, but ranks.world_size is %u", rank, config.world_size));
  };
  check_rank("rank", rehearsal.rank);
  check_rank("at_rank", rehearsal.at_rank);
  if (rehearsal.step > config.steps) {
    refuse("step", format("found step %lld, but job.steps is %lld", num(rehearsal.step),
                          num(config.steps)));
  }
  const auto& skipped = config.gradients.synthetic_nonfinite_steps;
  if (is_of_a_window(rehearsal.phase) &&
      std::find(skipped.begin(), skipped.end(), rehearsal.step) != skipped.end()) {
    refuse("step",
           format("found step %lld, whose gradients are not finite (gradients.nonfinite_steps): "
                  "nothing streams in it and \"%s\" never comes; take another step, or "
                  "\"between_steps\"",
                  num(rehearsal.step), name_of(rehearsal.phase)));
  }
  if (item.find("role") != nullptr && rehearsal.role == Role::kTrainer &&
      config.trainer.command.empty()) {
    refuse("role",
           "found \"trainer\", but there is no trainer.command: the launcher has no trainer to "
           "kill");
  }
}

}  // namespace

void check_rehearsals(const std::string& file, const ConfigValue& root, const Config& config,
                      std::vector<ConfigError>* errors) {
  const ConfigValue* array = root.find("rehearse");
  const ConfigValue none;
  for (size_t i = 0; i < config.rehearsals.size(); ++i) {
    const bool is_there = array != nullptr && i < array->items.size();
    const auto refuse = [&](const char* key, std::string text) {
      const std::string path = "rehearse." + std::to_string(i) + "." + key;
      errors->push_back({place_of(file, root, path), path, std::move(text)});
    };
    check_rehearsal(config.rehearsals[i], is_there ? array->items[i] : none, config, refuse);
  }
}

}  // namespace optlease
