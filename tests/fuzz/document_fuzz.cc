// JSON documents and the files of a run directory: telemetry as the monitor reads it, job plans,
// step logs and losses, the launcher's requests, bench datagrams, reports that are compared, and
// the rendezvous files of a group.
//
// It may assume nothing of the text. It asserts: what was taken is written again and read the same;
// numbers are within their limits; what was refused was refused in words; the monitor's view only
// goes forward and can always be drawn.
#include <cmath>
#include <fstream>
#include <map>

#include "actors/gpu_actor/gloo_rendezvous.h"
#include "actors/gpu_actor/nccl_rendezvous.h"
#include "actors/monitor/monitor_state.h"
#include "actors/monitor/render.h"
#include "actors/runtime/floor_messages.h"
#include "actors/runtime/step_figures.h"
#include "launcher/compare_reports.h"
#include "launcher/control_channel.h"
#include "launcher/report.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/segment_image.h"

namespace optlease::fuzz {
namespace {

enum class Part : uint8_t {
  kTelemetry,
  kPlan,
  kStepLog,
  kLosses,
  kRequest,
  kFloor,
  kReports,
  kGlooFile,
  kNcclFiles,
  kCount
};

// What both ends of a list of documents are written with.
constexpr char kNext = '\0';

std::string next_document(Input* input) {
  std::string text;
  while (!input->empty()) {
    const char c = static_cast<char>(input->byte());
    if (c == kNext) break;
    text.push_back(c);
  }
  return text;
}

// True where a document was taken; then it is read again as it was written.
template <class T>
bool try_document(const Result<T>& read, const auto& read_again) {
  if (!read.is_ok()) {
    OPTLEASE_CHECK(!read.status().message().empty(), "refused without a word");
    return false;
  }
  taken();
  const std::string text = to_json(read.value());
  const Result<T> again = read_again(text);
  OPTLEASE_CHECK(again.is_ok(), "written and not read: %s", again.status().text().c_str());
  OPTLEASE_CHECK(to_json(again.value()) == text, "read as another");
  return true;
}

// Frames of two ranks, as a monitor hears them.
void try_telemetry(Input input) {
  MonitorState state("fuzz", 2, 9, 200);
  std::map<uint32_t, uint64_t> lives;
  for (int64_t now_ms = 0; !input.empty(); now_ms += 700) {
    const uint8_t from = input.byte();
    const std::string frame = next_document(&input);
    try_document(telemetry_from_json(frame), telemetry_from_json);
    const auto source =
        (from & 2) != 0 ? MonitorState::Source::kSnapshot : MonitorState::Source::kPublished;
    if (!state.on_frame(from & 1, source, frame, now_ms).is_ok()) continue;
    const uint64_t life = state.ranks()[from & 1].last->incarnation;
    OPTLEASE_CHECK(life >= lives[from & 1], "the view went back to an earlier life");
    lives[from & 1] = life;
  }
  for (const std::string& line : render(state, 100'000)) {
    OPTLEASE_CHECK(line.find('\n') == std::string::npos, "a line of the monitor is two");
  }
}

void try_plan(const std::string& text) {
  const Result<JobPlan> plan = job_plan_from_json(text);
  if (!try_document(plan, job_plan_from_json)) return;
  // What every process of the job does with it first.
  (void)layout_hash(plan.value().segment);
  for (uint32_t r = 0; r < plan.value().segment.world_size; ++r) {
    const ArenaSpec arena = arena_of(plan.value().segment, Rank(r));
    OPTLEASE_CHECK(arena.chunks.empty() == (arena.slot_count == 0), "chunks without slots");
    (void)plan.value().staging_budget_bytes(Rank(r));
  }
}

void try_step_log(const std::string& text) {
  constexpr size_t kStepsMax = 4;
  const std::vector<StepFigures> steps = step_figures_of(text, kStepsMax);
  OPTLEASE_CHECK(steps.size() <= kStepsMax, "%zu steps", steps.size());
  std::string again;
  for (size_t i = 0; i < steps.size(); ++i) {
    OPTLEASE_CHECK(i == 0 || steps[i - 1].step < steps[i].step, "steps do not ascend");
    again += to_json(steps[i]) + "\n";
  }
  OPTLEASE_CHECK(step_figures_of(again, kStepsMax).size() == steps.size(), "written and not read");
  if (!steps.empty()) taken();
}

void try_losses(Input input) {
  const std::string first = next_document(&input);
  const std::vector<LossPoint> curve = loss_curve_of({first, std::string(input.rest())});
  for (size_t i = 0; i < curve.size(); ++i) {
    OPTLEASE_CHECK(curve[i].ranks >= 1 && curve[i].ranks <= 2, "%u ranks", curve[i].ranks);
    OPTLEASE_CHECK(i == 0 || curve[i - 1].step < curve[i].step, "steps do not ascend");
  }
  if (!curve.empty()) taken();
}

void try_floor(const std::string& text) {
  const Result<FloorSetup> setup = floor_setup_from(text);
  if (try_document(setup, floor_setup_from)) {
    const FloorSetup& s = setup.value();
    OPTLEASE_CHECK(why_invalid(s).empty() && s.round_bytes() / s.copies == s.copy_bytes &&
                       s.memory_bytes() / s.copies == 2 * s.slot_bytes,
                   "a floor of %u copies", s.copies);
  }
  try_document(floor_order_from(text), floor_order_from);
  try_document(floor_reply_from(text), floor_reply_from);
}

void try_reports(Input input) {
  const std::string first = next_document(&input);
  const auto comparison = compare_reports("a", first, "b", std::string(input.rest()));
  if (comparison.is_ok()) return taken();
  OPTLEASE_CHECK(!comparison.status().message().empty(), "refused without a word");
}

// Rank 0 of a group of two, and what lies where rank 1 would write.
const GroupPlace& group() {
  static const GroupPlace place{scratch_folder() + "/group", 7, 0, 2};
  return place;
}

void put_file(const std::string& name, std::string_view bytes) {
  std::ofstream(folder_of(group()) + "/" + name, std::ios::binary | std::ios::trunc) << bytes;
}

std::string get_file(const std::string& name) {
  const Result<std::string> bytes = read_rendezvous_file(folder_of(group()) + "/" + name);
  return bytes.is_ok() ? bytes.value() : "";
}

void try_gloo_file(std::string_view bytes) {
  static const bool made = publish_addresses(group(), {"", "x"}).is_ok();
  put_file("1", bytes);
  const Result<std::string> address = read_address(group(), 1);
  OPTLEASE_CHECK(made && (address.is_ok() || address.status().code() == StatusCode::kCorrupt), "%s",
                 address.status().text().c_str());
  if (!address.is_ok()) return;
  taken();
  OPTLEASE_CHECK(address.value().size() < bytes.size(), "an address longer than its file");
}

void try_nccl_files(Input input) {
  NcclRendezvous rendezvous(group());
  OPTLEASE_CHECK(rendezvous.announce({1}).is_ok(), "announce");
  put_file("gpu_rank_1", input.take_bytes(input.byte()));
  put_file("nccl_id", input.rest());
  const Result<uint32_t> missing = rendezvous.first_missing();
  if (missing.is_ok()) {
    OPTLEASE_CHECK(missing.value() == 2, "a file that is there is missing");
    // Nobody holds the lock of a file that was only put there.
    OPTLEASE_CHECK(rendezvous.first_gone() == 1, "a rank that never lived is not gone");
  }
  const Result<NcclIdBytes> id = rendezvous.read_id();
  if (missing.is_ok() || id.is_ok()) taken();
}

std::string seed_of(Part part, std::string_view text) {
  return Output().byte(static_cast<uint32_t>(part)).bytes(text).text();
}

JobPlan sample_job_plan(uint32_t sample) {
  JobPlan plan;
  plan.segment = sample_plan(sample);
  plan.steps = 3;
  plan.optimizer.groups = {{.lr = 1e-3,
                            .beta1 = 0.9,
                            .beta2 = 0.999,
                            .eps = 1e-8,
                            .weight_decay = 0,
                            .rule = static_cast<uint32_t>(Rule::kAdamW),
                            .reserved_zero = 0}};
  plan.trainer.command = {"trainer", "{rank}"};
  plan.rehearsals.emplace_back();
  return plan;
}

// Rank 1's files, from those that rank 0 writes by the same code.
void add_rendezvous_seeds(std::vector<std::string>* seeds) {
  GroupPlace peer = group();
  peer.rank = 1;
  OPTLEASE_CHECK(publish_addresses(peer, {"address", ""}).is_ok(), "publish");
  seeds->push_back(seed_of(Part::kGlooFile, get_file("1")));
  NcclRendezvous rendezvous(peer);
  OPTLEASE_CHECK(rendezvous.announce({2}).is_ok() && rendezvous.publish_id({3}).is_ok(), "nccl");
  const std::string presence = get_file("gpu_rank_1");
  const std::string files = Output()
                                .byte(static_cast<uint32_t>(presence.size()))
                                .bytes(presence)
                                .bytes(get_file("nccl_id"))
                                .text();
  seeds->push_back(seed_of(Part::kNcclFiles, files));
}

}  // namespace
}  // namespace optlease::fuzz

std::vector<std::string> fuzz_seeds() {
  using namespace optlease;
  using namespace optlease::fuzz;
  const std::string end(1, kNext);
  ActorTelemetry telemetry;
  telemetry.job = "fuzz";
  telemetry.device = "cpu";
  const std::string document = to_json(telemetry);
  StepFigures figures;
  figures.step = 1;
  RunReport report;
  report.deaths.emplace_back();
  report.loss_curve = {{1, 0.5, 1}};
  const std::string text = to_json(report);
  std::vector<std::string> seeds = {
      seed_of(Part::kTelemetry, end + document + end + "\2" + document),
      seed_of(Part::kStepLog, to_json(figures) + "\n" + to_json(figures)),
      seed_of(Part::kLosses, "{\"step\":1,\"loss\":0.5}\n" + end + "{\"step\":1,\"loss\":1}"),
      seed_of(Part::kRequest, to_json(ControlRequest{ControlRequest::Command::kRestart, 3, {}})),
      seed_of(Part::kRequest, to_json(ControlRequest{ControlRequest::Command::kStop, 0, true})),
      seed_of(Part::kFloor, to_json(FloorSetup{"cpu", 0, 4096, 4096, 2})),
      seed_of(Part::kFloor, to_json(FloorOrder{})),
      seed_of(Part::kFloor, to_json(FloorReply{})),
      seed_of(Part::kReports, text + end + text),
  };
  for (uint32_t sample = 0; sample < kSampleCount; ++sample) {
    seeds.push_back(seed_of(Part::kPlan, to_json(sample_job_plan(sample))));
  }
  add_rendezvous_seeds(&seeds);
  return seeds;
}

std::vector<std::string> fuzz_words() { return optlease::telemetry_field_names(); }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace optlease;
  using namespace optlease::fuzz;
  Input input(data, size);
  const auto part = static_cast<Part>(input.byte() % static_cast<uint8_t>(Part::kCount));
  const auto text = [&input] { return std::string(input.rest()); };
  if (part == Part::kTelemetry) try_telemetry(input);
  if (part == Part::kPlan) try_plan(text());
  if (part == Part::kStepLog) try_step_log(text());
  if (part == Part::kLosses) try_losses(input);
  if (part == Part::kRequest) {
    try_document(control_request_from_json(text()), control_request_from_json);
  }
  if (part == Part::kFloor) try_floor(text());
  if (part == Part::kReports) try_reports(input);
  if (part == Part::kGlooFile) try_gloo_file(input.rest());
  if (part == Part::kNcclFiles) try_nccl_files(input);
  return 0;
}
