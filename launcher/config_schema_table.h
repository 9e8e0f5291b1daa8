// The table itself: one row a key. Included by config_schema.cc alone. A new key is a row here, its
// binding in config_bind.cc and its row in configs/README.md (a test prints the row that is
// missing).
#pragma once

#include "launcher/config_schema.h"
#include "shm/contract/ids.h"
#include "shm/contract/limits.h"

namespace optlease {

inline constexpr KeyRange kAny{};
constexpr KeyRange at_least(double min) { return {.min = min}; }
constexpr KeyRange above(double min) { return {.min = min, .open_min = true}; }
constexpr KeyRange between(double min, double max) { return {.min = min, .max = max}; }
constexpr KeyRange in_parts(double min, double max, double parts) {
  return {.min = min, .max = max, .parts = parts};
}
constexpr KeyRange from_until(double min, double max) {
  return {.min = min, .max = max, .open_max = true};
}

// Bounds beyond which a value can only be a slip: 2^46 elements (geometry.h), a week.
inline constexpr double kElementsMax = 70368744177664.0;
inline constexpr double kSecondsMax = 7 * 24 * 3600;
inline constexpr double kMillisecondsMax = kSecondsMax * 1000;
inline constexpr auto kStepsMax = static_cast<double>(kStepMax);
inline constexpr KeyRange kTimeoutRange{
    .min = 0, .max = kSecondsMax, .open_min = true, .parts = 1000};
inline constexpr KeyRange kSizeRange = in_parts(0, 1048576, 1 << 20);  // MiB, kept as bytes

inline constexpr const char* kDTypes = "F32|BF16|F16";
inline constexpr const char* kMainForms = "fp32|bf16+remainder";
inline constexpr const char* kPhases =
    "before_lease|copy_in|update|copy_out|before_commit|after_commit|between_steps|prepared|"
    "answered|gather";

inline constexpr SectionRule kSections[] = {
    {"job", false, "The run as a whole."},
    {"ranks", false, "How many ranks, and what they compute on."},
    {"model", false, "The parameters and where their first values come from."},
    {"model.parameters", true, "One parameter: a row of the tensor table."},
    {"spaces", true, "A set of parameters sharded over one group of ranks."},
    {"optimizer", false, "The update rule, with torch.optim's names and defaults."},
    {"offload", false, "How the state is cut and streamed."},
    {"gradients", false, "Where gradients come from and how they are combined."},
    {"trainer", false, "Your own training process, one a rank."},
    {"restart", false, "How deaths are noticed and answered."},
    {"telemetry", false, "What monitors see."},
    {"rehearse", true, "A kill on purpose: proof that the job survives it."},
};

using enum KeyType;

inline constexpr KeyRule kKeys[] = {
    {"job", "name", kString, "", nullptr, kAny, "",
     "Names the run directory and the segments: letters, digits, `_`, `-`; at most 48."},
    {"job", "steps", kInteger, "steps", nullptr, between(0, kStepsMax), "",
     "The job is done when this step is committed; 0 only initialises the state."},
    {"job", "keep_state", kBool, "", "false", kAny, "",
     "Keep the segments at a clean end, so that a later start with more steps goes on from them."},

    {"ranks", "world_size", kInteger, "ranks", nullptr, between(1, kRankCountMax), "",
     "GPU actors; one a rank."},
    {"ranks", "device", kString, "", "\"cpu\"", kAny, "cpu|cuda",
     "`cuda` needs a build with the CUDA device, and a GPU for each rank."},
    {"ranks", "numa", kNuma, "", "\"auto\"", kAny, "",
     "NUMA node of each rank's arena; `auto`: that of its GPU; an array names one a rank (-1: "
     "none)."},

    {"model", "source", kString, "", "\"\"", kAny, "",
     "A `.safetensors` file or a directory of them, relative to this file; empty: values drawn "
     "from `seed`."},
    {"model", "seed", kInteger, "", "0", at_least(0), "",
     "Of the drawn values; the same seed gives the same bits on any number of ranks."},
    {"model", "elements", kInteger, "elements", "", between(1, kElementsMax), "",
     "Instead of a table: one flat parameter `flat` of this size. `model.parameters = N` says the "
     "same; as an override it replaces what the file gives."},
    {"model", "parameters", kTables, "", "", kAny, "",
     "The tensor table. With a `source` it may be left out and is then taken from there."},
    {"model", "param_dtype", kDType, "", "\"F32\"", kAny, kDTypes,
     "Of the parameters that the trainer reads; main weights are FP32 always."},
    {"model", "grad_dtype", kDType, "", "\"F32\"", kAny, kDTypes,
     "Of the gradients that the trainer writes."},

    {"model.parameters", "name", kString, "", nullptr, kAny, "",
     "At most 191 bytes; as in the state dict."},
    {"model.parameters", "shape", kIntegers, "elements", nullptr, between(0, kElementsMax), "",
     "At most 8 dimensions; `[]` is a scalar."},
    {"model.parameters", "space", kString, "", "", kAny, "",
     "The space that holds it; absent: the first one."},
    {"model.parameters", "init", kString, "", "\"normal\"", kAny, "normal|zeros|ones",
     "First values where there is no `source`."},
    {"model.parameters", "std", kNumber, "", "0.02", between(0, kFp32Max), "",
     "Standard deviation of `init = \"normal\"`."},

    {"spaces", "name", kString, "", nullptr, kAny, "",
     "At most 63 bytes. Without any `[[spaces]]` there is one, `dense`, over all ranks."},
    {"spaces", "ranks", kRanks, "", "\"all\"", kAny, "", "The data-parallel group that shards it."},
    {"spaces", "param_dtype", kDType, "", "", kAny, kDTypes, "Absent: `model.param_dtype`."},
    {"spaces", "grad_dtype", kDType, "", "", kAny, kDTypes, "Absent: `model.grad_dtype`."},
    {"spaces", "lr_scale", kNumber, "", "1.0", between(0, kFp32Max), "",
     "Multiplies `optimizer.lr` for this space."},
    {"spaces", "weight_decay", kNumber, "", "", between(0, kFp32Max), "",
     "Absent: `optimizer.weight_decay`."},

    {"optimizer", "rule", kString, "", "\"adamw\"", kAny, "adamw|adam",
     "`adam` adds weight decay to the gradient, `adamw` decouples it."},
    {"optimizer", "main", kString, "", "\"fp32\"", kAny, kMainForms,
     "How main weights lie in memory. `bf16+remainder`: a BF16 that stays on the device and 16 "
     "bits "
     "that travel, exact; 10 instead of 12 bytes a parameter each way. Parameters must be BF16."},
    {"optimizer", "lr", kNumber, "", "0.001", between(0, kFp32Max), "",
     "Learning rate; a trainer may give another with each step."},
    {"optimizer", "betas", kNumberPair, "", "[0.9, 0.999]", from_until(0, 1), "",
     "Decay of `exp_avg` and of `exp_avg_sq`."},
    {"optimizer", "eps", kNumber, "", "1e-8", between(kFp32Min, kFp32Max), "",
     "Added to the denominator."},
    {"optimizer", "weight_decay", kNumber, "", "0.01", between(0, kFp32Max), "",
     "Of every space that does not say otherwise."},
    {"optimizer", "max_norm", kNumber, "", "0.0", at_least(0), "",
     "Clips the global gradient norm, over all spaces and ranks; 0: no clipping."},

    {"offload", "chunk_size_mb", kNumber, "MiB", "64.0", kSizeRange, "",
     "Largest chunk, all its state arrays together; fractions are allowed; 0: one chunk a shard. "
     "It is made smaller, to a sixteenth, where equal slots would leave over 2 % of an arena "
     "unused."},
    {"offload", "window_chunks", kInteger, "chunks", "1", between(1, kWindowChunksMax), "",
     "Chunks that are leased, copied and committed together."},
    {"offload", "prefetch_windows", kInteger, "windows", "2", between(1, kLeasesInFlightMax - 1),
     "", "Windows leased ahead of the one being updated."},
    {"offload", "staging_buffers", kInteger, "windows", "3", between(1, 16), "",
     "Windows a rank holds on its device; three keep both directions busy."},
    {"offload", "in_flight_mb", kNumber, "MiB", "0.0", kSizeRange, "",
     "Most bytes leased at once on the node, one window of each rank at least; 0: no ceiling."},
    {"offload", "fraction", kNumber, "", "1.0", in_parts(0, 1, 1e6), "",
     "Share of the state's travelling bytes that is offloaded, in millionths; the rest stays on "
     "the "
     "device, main weights first. 0: nothing travels. See docs/OPERATING.md."},

    {"gradients", "source", kString, "", "\"trainer\"", kAny, "trainer|replay|synthetic",
     "The trainer's shared buffer, recorded files, or numbers drawn from `seed`."},
    {"gradients", "replay_path", kString, "", "", kAny, "",
     "`.safetensors` files, relative to this file; `{step}` and `{rank}` are replaced."},
    {"gradients", "seed", kInteger, "", "0", at_least(0), "", "Of synthetic gradients."},
    {"gradients", "average", kBool, "", "true", kAny, "",
     "Divide the sum by the number of ranks of the space."},
    {"gradients", "nonfinite_steps", kIntegers, "steps", "[]", between(1, kStepsMax), "",
     "Synthetic gradients of these steps hold a NaN: each step must be skipped."},
    {"gradients", "collective_timeout_s", kNumber, "s", "30.0", between(1, kSecondsMax), "",
     "A collective in which nothing arrives for so long has lost a peer."},
    {"gradients", "durable", kBool, "", "", kAny, "",
     "Summed shards are in shared memory before their step opens, so that it survives even the "
     "death of all processes at once. Absent: true on `cpu`, false on `cuda`, where it costs a "
     "copy a step."},

    {"trainer", "command", kStrings, "", "[]", kAny, "",
     "argv; `{rank}`, `{job}` and `{config_dir}` (where this file lies) are replaced; `optlease-*` "
     "is found beside the launcher."},
    {"trainer", "environment", kStringTable, "", "{}", kAny, "",
     "Added to the launcher's own environment."},
    {"trainer", "attach_timeout_s", kNumber, "s", "30.0", kTimeoutRange, "",
     "How long the client library tries to attach."},

    {"restart", "intensity", kInteger, "restarts", "10", between(0, 1000000), "",
     "More restarts than this within `period_s` end the job."},
    {"restart", "period_s", kNumber, "s", "60.0", kTimeoutRange, "", "See `intensity`."},
    {"restart", "backoff_ms", kInteger, "ms", "20", between(0, kMillisecondsMax), "",
     "Wait before a restart, doubled with each of the same process."},
    {"restart", "backoff_max_ms", kInteger, "ms", "2000", between(0, kMillisecondsMax), "",
     "The longest such wait."},
    {"restart", "start_timeout_s", kNumber, "s", "30.0", kTimeoutRange, "",
     "A process must say hello within this."},
    {"restart", "heartbeat_timeout_s", kNumber, "s", "10.0", kTimeoutRange, "",
     "An actor silent for longer is killed and restarted."},
    {"restart", "lease_ms", kInteger, "ms", "5000", between(10, kMillisecondsMax), "",
     "A lease without a heartbeat ends after this."},
    {"restart", "quarantine_grace_ms", kInteger, "ms", "100", between(0, kMillisecondsMax), "",
     "A dead process's slots rest this long after it was reaped."},
    {"restart", "stop_timeout_s", kNumber, "s", "10.0", kTimeoutRange, "",
     "A process that is asked to stop is killed after this."},

    {"telemetry", "interval_ms", kInteger, "ms", "200", between(10, 3600000), "",
     "Between two documents of an actor."},
    {"telemetry", "step_log", kBool, "", "false", kAny, "",
     "Each actor notes the figures of every step; they are in the report (docs/OPERATING.md)."},

    {"rehearse", "role", kString, "", nullptr, kAny, "host_store|gpu_actor|trainer",
     "Who is killed."},
    {"rehearse", "rank", kInteger, "", "0", between(0, kRankCountMax - 1), "",
     "Whose actor or trainer; unused for the host store."},
    {"rehearse", "step", kInteger, "", nullptr, between(1, kStepsMax), "",
     "The step in which it happens."},
    {"rehearse", "phase", kString, "", "\"copy_out\"", kAny, kPhases,
     "The moment within the step."},
    {"rehearse", "at_rank", kInteger, "", "", between(0, kRankCountMax - 1), "",
     "The rank whose actor reaches the phase; absent: `rank`. Of several rehearsals of one moment "
     "each happens, the end of that actor last."},
};

}  // namespace optlease
