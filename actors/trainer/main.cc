// optlease-trainer: an example of a training process, and what the quick start and the crash tests
// train. One process a rank; a restarted one goes on exactly where its predecessor was killed.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <system_error>

#include "actors/trainer/training.h"
#include "kernels/cpu_isa.h"

namespace {

using optlease::StatusCode;
using optlease::TrainingOptions;

// Of this program alone, which knows the C interface and not the other programs' list; the numbers
// agree with docs/OPERATING.md where the meanings do.
constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;
constexpr int kExitConfiguration = 3;
constexpr int kExitNoResources = 4;
constexpr int kExitTimeout = 13;
constexpr int kExitNotRunning = 16;

int exit_code_for(StatusCode code) {
  if (code == StatusCode::kInvalidArgument) return kExitUsage;
  if (code == StatusCode::kNoSpace) return kExitNoResources;
  if (code == StatusCode::kTimeout) return kExitTimeout;
  if (code == StatusCode::kNotFound || code == StatusCode::kPeerLost) return kExitNotRunning;
  return kExitFailed;
}

void add_options(CLI::App& app, TrainingOptions& options, std::optional<double>& lr_peak,
                 optlease::LearningRate& lr) {
  app.add_option("--text", options.text_path,
                 "Text to learn: a file, or a directory whose *.md files are read in path order")
      ->required();
  app.add_option("--batch", options.batch, "Samples a rank and step")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  app.add_option("--steps", options.steps, "Last step; as the job says where not given")
      ->check(CLI::PositiveNumber);
  app.add_option("--seed", options.seed, "Of the order of samples")->capture_default_str();
  auto* peak = app.add_option("--lr", lr_peak, "Learning rate; as the job says where not given")
                   ->check(CLI::NonNegativeNumber);
  app.add_option("--warmup", lr.warmup_steps, "Steps of linear warm-up to --lr")
      ->check(CLI::NonNegativeNumber)
      ->needs(peak);
  auto* cosine =
      app.add_flag("--cosine", lr.cosine, "After the warm-up, a half cosine down to --lr-final")
          ->needs(peak);
  app.add_option("--lr-final", lr.final, "Learning rate at the last step, with --cosine")
      ->check(CLI::NonNegativeNumber)
      ->needs(cosine);
  app.add_option("--job", options.session.job, "Job to attach to; OPTLEASE_JOB otherwise");
  app.add_option("--rank", options.session.rank, "Rank to train as; OPTLEASE_RANK otherwise")
      ->check(CLI::Range(0, 1023));
  app.add_option("--attach-timeout-ms", options.session.attach_timeout_ms,
                 "As the job says where not given");
  app.add_option("--step-timeout-ms", options.session.step_timeout_ms,
                 "Longest wait for one step; 600000 where not given");
  app.footer(
      "OPTLEASE_LOSS_FILE names a file that gets one JSON line {\"step\":t,\"loss\":x} a step.\n"
      "The model's shape comes from the job's tensors: embed.weight [256, E], hidden.weight\n"
      "[H, C*E], hidden.bias [H], out.weight [256, H], out.bias [256]. docs/CLIENT.md says more.");
}

int run(int argc, char** argv) {
  CLI::App app{"Trains a byte-level language model through Optlease, one process a rank."};
  TrainingOptions options;
  std::optional<double> lr_peak;
  optlease::LearningRate lr;
  add_options(app, options, lr_peak, lr);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  // It has no loops of that kind, but a wrong wish is refused by every program of a job.
  if (const optlease::Status isa = optlease::select_cpu_isa(); !isa.is_ok()) {
    std::fprintf(stderr, "optlease-trainer: %s\n", isa.message().c_str());
    return kExitConfiguration;
  }
  if (lr_peak) {
    lr.peak = *lr_peak;
    options.lr = lr;
  }
  if (const char* path = std::getenv("OPTLEASE_LOSS_FILE"); path != nullptr)
    options.loss_path = path;
  const optlease::Status status = optlease::train(std::move(options));
  if (status) return 0;
  std::fprintf(stderr, "optlease-trainer: %s\n", status.text().c_str());
  return exit_code_for(status.code());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    std::fputs("optlease-trainer: memory has run out\n", stderr);
    return kExitNoResources;
  } catch (const std::system_error& error) {
    std::fprintf(stderr, "optlease-trainer: %s\n", error.what());
    const bool is_scarce = error.code() == std::errc::resource_unavailable_try_again ||
                           error.code() == std::errc::not_enough_memory;
    return is_scarce ? kExitNoResources : kExitFailed;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "optlease-trainer: %s\n", error.what());
    return kExitFailed;
  }
}
