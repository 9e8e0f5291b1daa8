#include "actors/trainer/training.h"

#include <cstdio>
#include <utility>

#include "actors/trainer/byte_model.h"
#include "actors/trainer/corpus.h"
#include "actors/trainer/loss_log.h"
#include "actors/trainer/model_table.h"
#include "actors/trainer/progress.h"

namespace optlease {

namespace {

constexpr int64_t kStepsALine = 10;

// Where to go on: the progress committed with the last step, or a start.
Result<TrainingProgress> find_progress(const JobSession& session, const Corpus& corpus,
                                       const TrainingOptions& options) {
  const int64_t step = session.last_step();
  const auto blob = session.user_blob();
  if (!blob) return blob.status();
  if (blob.value().empty()) {
    // Steps without a blob were taken by somebody else; their samples count as seen.
    TrainingProgress start;
    start.step = step;
    start.next_sample = static_cast<uint64_t>(step) * options.batch * session.world_size();
    start.seed = options.seed;
    start.text_hash = corpus.text_hash();
    return start;
  }
  auto progress = decode_progress(blob.value());
  if (!progress) return progress.status();
  if (progress.value().step != step)
    return Status{
        StatusCode::kCorrupt,
        format("the user blob belongs to step %lld, the job is at step %lld",
               static_cast<long long>(progress.value().step), static_cast<long long>(step))};
  if (progress.value().text_hash != corpus.text_hash() || progress.value().seed != options.seed)
    return Status{
        StatusCode::kInvalidArgument,
        format("the job was trained up to step %lld on text 0x%016llx with seed %llu; this is text "
               "0x%016llx with seed %llu. Give the same --text and --seed, or start a new job",
               static_cast<long long>(step),
               static_cast<unsigned long long>(progress.value().text_hash),
               static_cast<unsigned long long>(progress.value().seed),
               static_cast<unsigned long long>(corpus.text_hash()),
               static_cast<unsigned long long>(options.seed))};
  return progress;
}

std::string loss_path_of(std::string path, uint32_t rank) {
  constexpr std::string_view kMark = "{rank}";
  if (const size_t at = path.find(kMark); at != std::string::npos)
    path.replace(at, kMark.size(), std::to_string(rank));
  return path;
}

void say(const JobSession& session, int64_t step, double loss, const optlease_step_result& result) {
  std::printf("rank %u step %lld loss %.6f grad_norm %.6g%s\n", session.rank(),
              static_cast<long long>(step), loss, result.grad_norm,
              result.skipped != 0 ? " skipped" : "");
  std::fflush(stdout);
}

// Everything that one step needs, made once.
struct Trainer {
  JobSession session;
  Corpus corpus;
  ByteModelTable table;
  ByteModel model;
  LossLog log;
  Batch batch;

  Status step(const TrainingOptions& options, int64_t last, TrainingProgress* progress);
};

Status Trainer::step(const TrainingOptions& options, int64_t last, TrainingProgress* progress) {
  const uint32_t world_size = session.world_size();
  corpus.fill(progress->next_sample, options.batch, session.rank(), world_size, &batch);
  const auto params = session.read_params();
  if (!params) return params.status();
  OPTLEASE_TRY(session.prepare());
  const double loss = model.forward_backward(tensors_at(table, *params.value()),
                                             tensors_at(table, session.zeroed_grads()),
                                             batch.contexts, batch.targets);
  TrainingProgress next = advanced(*progress, options.batch * world_size, loss);
  std::optional<double> lr;
  if (options.lr) lr = learning_rate_at(*options.lr, next.step);
  const auto result = session.step(lr, encode_progress(next));
  if (!result) return result.status();
  *progress = std::move(next);
  OPTLEASE_TRY(log.append(progress->step, loss));
  if (progress->step % kStepsALine == 0 || progress->step == last)
    say(session, progress->step, loss, result.value());
  return Status::ok();
}

}  // namespace

Status train(TrainingOptions options) {
  // The text first: a wrong path is told before any rank waits for this one.
  auto text = read_text(options.text_path);
  if (!text) return text.status();
  auto session = JobSession::attach(options.session);
  if (!session) return session.status();
  const int64_t last = options.steps != 0 ? options.steps : session.value().job_steps();
  if (last <= 0)
    return {StatusCode::kInvalidArgument, "the job names no number of steps: give --steps"};
  if (options.lr) options.lr->total_steps = last;
  const auto rows = session.value().tensors();
  if (!rows) return rows.status();
  const auto table = find_byte_model(rows.value());
  if (!table) return table.status();
  auto corpus = Corpus::of(std::move(text.value()), table.value().shape.context, options.seed);
  if (!corpus) return corpus.status();
  auto progress = find_progress(session.value(), corpus.value(), options);
  if (!progress) return progress.status();

  Trainer trainer{std::move(session.value()),
                  std::move(corpus.value()),
                  table.value(),
                  ByteModel(table.value().shape, options.batch),
                  LossLog(),
                  Batch()};
  TrainingProgress& at = progress.value();
  if (!options.loss_path.empty()) {
    auto log =
        LossLog::open(loss_path_of(options.loss_path, trainer.session.rank()), at.step, at.losses);
    if (!log) return log.status();
    trainer.log = std::move(log.value());
  }
  std::printf("rank %u of %u: step %lld of %lld, context %llu, embed %llu, hidden %llu\n",
              trainer.session.rank(), trainer.session.world_size(), static_cast<long long>(at.step),
              static_cast<long long>(last),
              static_cast<unsigned long long>(table.value().shape.context),
              static_cast<unsigned long long>(table.value().shape.embed),
              static_cast<unsigned long long>(table.value().shape.hidden));
  std::fflush(stdout);
  while (at.step < last) OPTLEASE_TRY(trainer.step(options, last, &at));
  return Status::ok();
}

}  // namespace optlease
