// optlease bench
#include <CLI/CLI.hpp>
#include <memory>

#include "launcher/bench/bench.h"
#include "launcher/commands/commands.h"
#include "shm/contract/limits.h"

namespace optlease {

void add_bench_command(CLI::App& app, Command* chosen) {
  auto options = std::make_shared<BenchOptions>();
  auto parameters = std::make_shared<std::string>();
  auto world_size = std::make_shared<uint32_t>(0);
  CLI::App* command = app.add_subcommand(
      "bench",
      "Measure what the link can do and what a streamed optimizer step reaches of it, in one run");
  command->add_option("config", options->config_path,
                      "A job's TOML file; without one, a built-in job with gradients from a seed");
  command
      ->add_option("--parameters", *parameters,
                   "How many, such as 512Mi (model.elements); built-in: 512Mi on cuda, 16Mi on "
                   "cpu")
      ->check([](const std::string& text) {
        return parse_count(text) ? std::string() : "\"" + text + "\" is no count such as 512Mi";
      });
  command->add_option("--steps", options->steps, "Steps to measure")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--warm-up", options->warm_up, "Steps before them that do not count")
      ->check(CLI::Range(0, 1000))
      ->capture_default_str();
  command
      ->add_option("--floor-ms", options->floor_ms,
                   "How long each of the floor's three measurements takes, before and after")
      ->check(CLI::Range(1, 60000))
      ->capture_default_str();
  command->add_option("--device", options->device, "Where: cpu or cuda (ranks.device)")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  CLI::Option* ranks =
      command->add_option("--world-size", *world_size, "How many ranks (ranks.world_size)")
          ->check(CLI::Range(1u, kRankCountMax));
  command
      ->add_option("--set", options->overrides,
                   "section.key=value: overrides a key of the job; may be repeated")
      ->expected(1)
      ->take_all();
  command->add_flag("--fresh", options->fresh, "Discard what a killed bench of this job has left");
  command->add_flag("--json", options->json, "One JSON document");
  command->callback([=] {
    if (!parameters->empty()) options->parameters = parse_count(*parameters);
    if (ranks->count() > 0) options->world_size = *world_size;
    *chosen = [options] { return run_bench(*options); };
  });
}

}  // namespace optlease
