#include "tests/soak/shapes.h"

namespace optlease::soak {
namespace {

constexpr int kSteps = 250;

// What all have: deaths are expected, and waited for as shortly as can be.
std::vector<std::string> with_common(std::vector<std::string> overrides) {
  for (const char* each : {"restart.intensity=1000000", "restart.backoff_ms=1",
                           "restart.backoff_max_ms=4", "restart.quarantine_grace_ms=20"}) {
    overrides.push_back(each);
  }
  return overrides;
}

std::vector<std::string> synthetic(std::vector<std::string> more) {
  more.push_back("model.elements=6000");
  return with_common(std::move(more));
}

// Every eighth step, as long as there are some.
std::string skipped_steps() {
  std::string list = "gradients.nonfinite_steps=[5, 6";
  for (int step = 13; step < kSteps; step += 8) list += ", " + std::to_string(step);
  return list + "]";
}

const char* const kNoneSkipped = "gradients.nonfinite_steps=[]";
const char* const kExperts =
    "model.parameters=["
    "{name=\"embed.weight\", shape=[100, 16], space=\"dense\"}, "
    "{name=\"norm.weight\", shape=[64], space=\"dense\", init=\"ones\"}, "
    "{name=\"up.weight\", shape=[64, 32], space=\"expert_0\"}, "
    "{name=\"up.weight\", shape=[64, 32], space=\"expert_1\"}]";

std::vector<Shape> make_shapes() {
  return {
      {"plain", "synthetic.toml", kSteps,
       synthetic({"offload.chunk_size_mb=0.0078125", kNoneSkipped})},
      {"skipping", "synthetic.toml", kSteps,
       synthetic({"offload.chunk_size_mb=0.0078125", skipped_steps()}), false, true, false},
      {"three ranks", "synthetic.toml", kSteps,
       synthetic({"offload.chunk_size_mb=0", "ranks.world_size=3", "offload.staging_buffers=1",
                  kNoneSkipped})},
      {"remainder", "synthetic.toml", kSteps,
       synthetic({"offload.chunk_size_mb=0.01", "optimizer.main=bf16+remainder", skipped_steps()}),
       false, true, true},
      {"fraction", "synthetic.toml", kSteps,
       synthetic({"offload.chunk_size_mb=0.005", "offload.fraction=0.4",
                  "offload.prefetch_windows=4", kNoneSkipped}),
       false, false, true},
      {"experts", "moe.toml", kSteps, with_common({"offload.chunk_size_mb=0.0078125", kExperts})},
      {"trainers", "quickstart.toml", kSteps / 2,
       with_common({"trainer.command=[\"optlease-trainer\", \"--text\", "
                    "\"{config_dir}/../LICENSE\", \"--batch\", \"1\", \"--seed\", \"1\"]"}),
       true, false, false},
  };
}

}  // namespace

bool Shape::offers(Need need) const {
  switch (need) {
    case Need::kNothing:
      return true;
    case Need::kTrainers:
      return has_trainers;
    case Need::kNoTrainers:
      return !has_trainers;
    case Need::kSkippedSteps:
      return skips_steps;
    case Need::kResidentPart:
      return has_resident_part;
  }
  return false;
}

std::span<const Shape> shapes() {
  static const std::vector<Shape> all = make_shapes();
  return all;
}

}  // namespace optlease::soak
