// The training loop and the program against a fake job whose actor applies Adam: what a trainer
// that is stopped or killed at any step leaves for the next one.
#include "actors/trainer/training.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "actors/trainer/loss_log.h"
#include "actors/trainer/progress.h"
#include "kernels/formats.h"
#include "tests/client/fake_job.h"
#include "tests/trainer/small_model.h"

namespace optlease {
namespace {

// Adam on FP32 main weights, published in the space's own element type.
struct AdamActor {
  AdamActor(DType params, DType grads)
      : param_dtype(params),
        grad_dtype(grads),
        main(seeded_params(kSmallShape, 21, 0.1f)),
        mean(main.size()),
        square(main.size()) {}

  void publish(const FakeSpace& space) const {
    for (size_t i = 0; i < main.size(); ++i) {
      if (param_dtype == DType::kF32) static_cast<float*>(space.params)[i] = main[i];
      if (param_dtype == DType::kBF16)
        static_cast<uint16_t*>(space.params)[i] = bf16_from_f32(main[i]);
    }
  }

  void update(const StepRequestBody& step, const FakeSpace& space) {
    const double lr = std::isnan(step.lr) ? 0.01 : step.lr;
    const double t = static_cast<double>(step.step);
    const double size = lr * std::sqrt(1 - std::pow(0.999, t)) / (1 - std::pow(0.9, t));
    for (size_t i = 0; i < main.size(); ++i) {
      const float grad = grad_dtype == DType::kF32
                             ? static_cast<const float*>(space.grads)[i]
                             : f32_from_bf16(static_cast<const uint16_t*>(space.grads)[i]);
      mean[i] += 0.1f * (grad - mean[i]);
      square[i] += 0.001f * (grad * grad - square[i]);
      main[i] -= static_cast<float>(size * mean[i] / (std::sqrt(square[i]) + 1e-8));
    }
    publish(space);
  }

  DType param_dtype;
  DType grad_dtype;
  std::vector<float> main, mean, square;
};

// A fake job with a model, a text and a loss file.
class Training : public testing::Test {
 protected:
  Training() {
    char pattern[] = "/tmp/optlease-training.XXXXXX";
    dir_ = ::mkdtemp(pattern);
    std::ofstream(dir_ + "/text.md") << small_text();
  }
  ~Training() override { std::filesystem::remove_all(dir_); }

  void start(uint32_t rank = 0, uint32_t world_size = 1, DType params = DType::kF32,
             DType grads = DType::kF32) {
    job_.reset();
    std::filesystem::remove(loss_path());
    actor_ = std::make_unique<AdamActor>(params, grads);
    job_ = std::make_unique<FakeJob>(
        small_model_plan("training", world_size, params, grads), rank,
        [this](const StepRequestBody& step, const std::vector<FakeSpace>& spaces) {
          actor_->update(step, spaces[0]);
        });
    actor_->publish(job_->spaces()[0]);
    ::setenv("OPTLEASE_JOB", "training", 1);
    ::setenv("OPTLEASE_RANK", std::to_string(rank).c_str(), 1);
  }

  TrainingOptions options(int64_t steps = 0) const {
    TrainingOptions options;
    options.text_path = dir_ + "/text.md";
    options.batch = 16;
    options.steps = steps;
    options.loss_path = loss_path();
    return options;
  }

  std::string loss_path() const { return dir_ + "/loss.jsonl"; }
  std::string losses() const {
    std::ifstream file(loss_path());
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::vector<float> weights() const { return actor_->main; }

  std::string dir_;
  std::unique_ptr<AdamActor> actor_;
  std::unique_ptr<FakeJob> job_;
};

void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
}

TEST_F(Training, RunsToTheJobsLastStepAndLogsEveryLoss) {
  start();
  const Status status = train(options());
  ASSERT_TRUE(status.is_ok()) << status.text();
  EXPECT_EQ(job_->step_committed(), 12);
  const std::string log = losses();
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 12);
  EXPECT_TRUE(log.starts_with("{\"step\":1,\"loss\":5.5")) << log;  // ln 256 = 5.545
  const auto progress = decode_progress(job_->blob());
  ASSERT_TRUE(progress.is_ok());
  EXPECT_EQ(progress.value().next_sample, 12u * 16);
  EXPECT_LT(progress.value().losses.back(), progress.value().losses.front());
  EXPECT_TRUE(train(options()).is_ok());  // nothing left to do
  EXPECT_EQ(job_->seen().steps_applied, 12u);
}

TEST_F(Training, GoesOnExactlyWhereAnEarlierProcessStopped) {
  start();
  ASSERT_TRUE(train(options()).is_ok());
  const std::string undisturbed = losses();
  const std::vector<float> expected = weights();
  start();
  for (const int64_t stop : {1, 5, 6, 12}) ASSERT_TRUE(train(options(stop)).is_ok());
  EXPECT_EQ(losses(), undisturbed);
  expect_same_bits(weights(), expected);
}

TEST_F(Training, SurvivesCrashesOfTheActor) {
  start();
  ASSERT_TRUE(train(options()).is_ok());
  const std::string undisturbed = losses();
  start();
  for (const bool after_commit : {false, true, true}) {
    job_->crash_on_step(after_commit, 50);
    ASSERT_TRUE(train(options(job_->step_committed() + 4)).is_ok());
  }
  EXPECT_EQ(losses(), undisturbed);
  EXPECT_EQ(job_->seen().steps_applied, 12u);
}

TEST_F(Training, FillsTheLossLineOfAStepWhoseTrainerDiedAfterTheCommit) {
  start();
  ASSERT_TRUE(train(options()).is_ok());
  const std::string undisturbed = losses();
  start();
  ASSERT_TRUE(train(options(6)).is_ok());
  std::filesystem::resize_file(loss_path(), std::filesystem::file_size(loss_path()) - 30);
  ASSERT_TRUE(train(options()).is_ok());
  EXPECT_EQ(losses(), undisturbed);
}

TEST_F(Training, TrainsWithBf16ParametersAndGradients) {
  start(0, 1, DType::kBF16, DType::kBF16);
  ASSERT_TRUE(train(options()).is_ok());
  const std::string narrow = losses();
  const auto progress = decode_progress(job_->blob());
  ASSERT_TRUE(progress.is_ok());
  EXPECT_LT(progress.value().losses.back(), progress.value().losses.front() - 0.05);
  start();
  ASSERT_TRUE(train(options()).is_ok());
  EXPECT_NE(losses(), narrow);
  EXPECT_NEAR(decode_progress(job_->blob()).value().losses.back(), progress.value().losses.back(),
              0.05);
}

TEST_F(Training, SeesOtherDataOnAnotherRank) {
  start(0, 2);
  ASSERT_TRUE(train(options(3)).is_ok());
  const std::string rank_0 = losses();
  EXPECT_EQ(decode_progress(job_->blob()).value().next_sample, 3u * 16 * 2);
  start(1, 2);
  ASSERT_TRUE(train(options(3)).is_ok());
  EXPECT_NE(losses(), rank_0);
}

TEST_F(Training, AsksForTheScheduledLearningRate) {
  start();
  TrainingOptions with_rate = options(3);
  with_rate.lr = LearningRate{0.4, 4, 0, false, 0};
  ASSERT_TRUE(train(with_rate).is_ok());
  EXPECT_DOUBLE_EQ(job_->seen().step.lr, 0.3);
  ASSERT_TRUE(train(options(4)).is_ok());
  EXPECT_TRUE(std::isnan(job_->seen().step.lr));
}

TEST_F(Training, RefusesToGoOnWithAnotherTextSeedOrBlob) {
  start();
  ASSERT_TRUE(train(options(2)).is_ok());
  TrainingOptions other = options(4);
  other.seed = 9;
  EXPECT_EQ(train(other).code(), StatusCode::kInvalidArgument);
  std::ofstream(dir_ + "/text.md", std::ios::app) << "more";
  EXPECT_EQ(train(options(4)).code(), StatusCode::kInvalidArgument);
  job_->set_committed(2, "somebody else's blob, which is quite a bit longer than a header is");
  EXPECT_EQ(train(options(4)).code(), StatusCode::kCorrupt);
  EXPECT_EQ(job_->step_committed(), 2);
}

TEST_F(Training, NamesTensorsThatAreNotTheModel) {
  const FakeJob job(three_space_plan("other-model"), 0,
                    [](const StepRequestBody&, const std::vector<FakeSpace>&) {});
  ::setenv("OPTLEASE_JOB", "other-model", 1);
  ::setenv("OPTLEASE_RANK", "0", 1);
  const Status status = train(options());
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("no tensor embed.weight"), std::string::npos) << status.text();
}

pid_t spawn_trainer(const std::string& text) {
  const std::string program = std::string(OPTLEASE_BIN_DIR) + "/optlease-trainer";
  std::vector<std::string> words = {program, "--text", text, "--batch", "16"};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  pid_t pid = -1;
  EXPECT_EQ(::posix_spawn(&pid, program.c_str(), nullptr, nullptr, argv.data(), environ), 0);
  return pid;
}

TEST_F(Training, ProgramKilledAtAnyMomentGoesOnToTheSameLosses) {
  start();
  ASSERT_TRUE(train(options()).is_ok());
  const std::string undisturbed = losses();
  const std::vector<float> expected = weights();
  start();
  ::setenv("OPTLEASE_LOSS_FILE", loss_path().c_str(), 1);
  std::mt19937 random(31);
  RecordProperty("seed", 31);
  // Each life is killed once it has taken at least one step, until one reaches the end.
  while (job_->step_committed() < 11) {
    const int64_t before = job_->step_committed();
    const pid_t pid = spawn_trainer(dir_ + "/text.md");
    ASSERT_GT(pid, 0);
    while (job_->step_committed() == before)
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
    ::kill(pid, SIGKILL);
    ASSERT_EQ(::waitpid(pid, nullptr, 0), pid);
  }
  int exit_status = -1;
  const pid_t pid = spawn_trainer(dir_ + "/text.md");
  ASSERT_EQ(::waitpid(pid, &exit_status, 0), pid);
  EXPECT_EQ(exit_status, 0);
  ::unsetenv("OPTLEASE_LOSS_FILE");
  EXPECT_EQ(losses(), undisturbed);
  expect_same_bits(weights(), expected);
}

}  // namespace
}  // namespace optlease
