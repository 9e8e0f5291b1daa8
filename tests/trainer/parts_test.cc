// The trainer's parts that hold no model: text and order of samples, user blob, learning rate,
// tensor table, loss file.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "actors/trainer/corpus.h"
#include "actors/trainer/learning_rate.h"
#include "actors/trainer/loss_log.h"
#include "actors/trainer/model_table.h"
#include "actors/trainer/progress.h"

namespace optlease {
namespace {

namespace fs = std::filesystem;

class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    char pattern[] = "/tmp/optlease-trainer.XXXXXX";
    path_ = ::mkdtemp(pattern);
  }
  ~TemporaryDirectory() { fs::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

void write_file(const std::string& path, const std::string& text) {
  fs::create_directories(fs::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(TrainerText, IsAFileOrTheMarkdownOfADirectoryByName) {
  const TemporaryDirectory dir;
  write_file(dir / "b.md", "B");
  write_file(dir / "a/z.md", "A");
  write_file(dir / "c.txt", "not this");
  EXPECT_EQ(read_text(dir / "c.txt").value(), "not this");
  EXPECT_EQ(read_text(dir / "").value(), "AB");
  EXPECT_EQ(read_text(dir / "none").status().code(), StatusCode::kIo);
  fs::create_directory(dir / "empty");
  EXPECT_EQ(read_text(dir / "empty").status().code(), StatusCode::kNotFound);
}

TEST(SampleOrder, VisitsEachPositionOnceAnEpochAndDiffersBetweenEpochs) {
  for (const uint64_t positions : {1, 2, 3, 12, 97, 360}) {
    const SampleOrder order(9, positions);
    std::vector<uint64_t> epochs[2];
    for (uint64_t epoch = 0; epoch < 2; ++epoch) {
      for (uint64_t i = 0; i < positions; ++i)
        epochs[epoch].push_back(order.position_of(epoch * positions + i));
      const std::set<uint64_t> seen(epochs[epoch].begin(), epochs[epoch].end());
      EXPECT_EQ(seen.size(), positions);
      EXPECT_EQ(*seen.rbegin(), positions - 1);
    }
    if (positions > 50) {
      EXPECT_NE(epochs[0], epochs[1]);
    }
  }
}

TEST(Corpus, GivesRanksDifferentSamplesThatTogetherAreTheJobsOrder) {
  const std::string text = "abcdefghijklmnopqrstuvwxyz";
  const auto corpus = Corpus::of(text, 3, 1);
  ASSERT_TRUE(corpus.is_ok());
  Batch alone, even, odd;
  corpus.value().fill(4, 6, 0, 1, &alone);
  corpus.value().fill(4, 3, 0, 2, &even);
  corpus.value().fill(4, 3, 1, 2, &odd);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(alone.targets[2 * i], even.targets[i]);
    EXPECT_EQ(alone.targets[2 * i + 1], odd.targets[i]);
  }
  std::set<uint8_t> targets(alone.targets.begin(), alone.targets.end());
  EXPECT_EQ(targets.size(), 6u);
  for (int i = 0; i < 6; ++i)  // a target follows its context
    EXPECT_EQ(alone.targets[i], alone.contexts[3 * i + 2] + 1);
}

TEST(Corpus, RefusesATextNoLongerThanAContext) {
  EXPECT_EQ(Corpus::of("abc", 3, 1).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Corpus::of("abcd", 3, 1).is_ok());
}

TEST(TrainerProgress, ComesBackFromItsBlob) {
  TrainingProgress progress{7, 1234, 5, 0xabcdef, {3.5, 2.25}};
  EXPECT_EQ(decode_progress(encode_progress(progress)).value(), progress);
  for (int i = 0; i < 100; ++i) progress = advanced(progress, 64, i);
  EXPECT_EQ(progress.step, 107);
  EXPECT_EQ(progress.next_sample, 1234u + 6400);
  EXPECT_EQ(progress.losses.size(), kLossTailMax);
  EXPECT_EQ(progress.losses.back(), 99.0);
  EXPECT_EQ(decode_progress(encode_progress(progress)).value(), progress);
}

TEST(TrainerProgress, RefusesABlobThatIsNotItsOwn) {
  std::string blob = encode_progress({7, 1234, 5, 0xabcdef, {3.5, 2.25}});
  EXPECT_EQ(decode_progress("").status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(decode_progress(blob.substr(0, blob.size() - 1)).status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(decode_progress(blob + "x").status().code(), StatusCode::kCorrupt);
  std::string other = blob;
  other[0] ^= 1;
  EXPECT_EQ(decode_progress(other).status().code(), StatusCode::kCorrupt);
  blob[4] ^= 2;
  EXPECT_EQ(decode_progress(blob).status().code(), StatusCode::kWrongVersion);
}

TEST(LearningRate, WarmsUpLinearlyThenFollowsTheCosine) {
  const LearningRate rate{0.8, 4, 14, true, 0.2};
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 1), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 4), 0.8);
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 9), 0.5);
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 14), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate_at(rate, 99), 0.2);
  const LearningRate constant{0.3, 0, 0, false, 0};
  EXPECT_DOUBLE_EQ(learning_rate_at(constant, 1), 0.3);
  EXPECT_DOUBLE_EQ(learning_rate_at(constant, 1000), 0.3);
}

std::vector<TensorRow> good_rows() {
  return {{"out.bias", {256}, 1, 7},
          {"embed.weight", {256, 8}, 0, 0},
          {"hidden.weight", {20, 24}, 0, 2048},
          {"hidden.bias", {20}, 1, 300},
          {"out.weight", {256, 20}, 0, 2528}};
}

TEST(ModelTable, FindsTheModelInAnyOrderAndSpaces) {
  const auto table = find_byte_model(good_rows());
  ASSERT_TRUE(table.is_ok()) << table.status().text();
  EXPECT_EQ(table.value().shape.context, 3u);
  EXPECT_EQ(table.value().shape.embed, 8u);
  EXPECT_EQ(table.value().shape.hidden, 20u);
  std::vector<float> first(8000), second(400);
  const auto at = tensors_at(table.value(), std::vector<float*>{first.data(), second.data()});
  EXPECT_EQ(at.out_weight, first.data() + 2528);
  EXPECT_EQ(at.hidden_bias, second.data() + 300);
}

TEST(ModelTable, NamesWhatIsNotTheModel) {
  const auto text_with = [](auto change) {
    auto rows = good_rows();
    change(rows);
    return find_byte_model(rows).status().text();
  };
  using Rows = std::vector<TensorRow>&;
  EXPECT_NE(text_with([](Rows r) { r[1].name = "wte"; }).find("no tensor embed.weight"),
            std::string::npos);
  EXPECT_NE(text_with([](Rows r) {
              r.push_back({"extra", {1}, 0, 0});
            }).find("6 tensors"),
            std::string::npos);
  EXPECT_NE(text_with([](Rows r) {
              r[2].shape = {20, 25};
            }).find("no multiple"),
            std::string::npos);
  EXPECT_NE(text_with([](Rows r) { r[0].shape = {255}; }).find("out.bias is not [256]"),
            std::string::npos);
  EXPECT_NE(text_with([](Rows r) {
              r[3].shape = {20, 1};
            }).find("hidden.bias has 2 dimensions"),
            std::string::npos);
  EXPECT_NE(text_with([](Rows r) { r[1].shape = {256, 0}; }).find("is 0"), std::string::npos);
  EXPECT_NE(text_with([](Rows r) { r.clear(); }).find("the job has none"), std::string::npos);
}

TEST(LossLog, HasEachStepOnceWhateverTheLastLifeLeft) {
  const TemporaryDirectory dir;
  const std::string path = dir / "loss.jsonl";
  const std::string whole = loss_line(1, 5.5) + loss_line(2, 5.25) + loss_line(3, 5.0);
  const std::vector<double> losses = {5.5, 5.25, 5.0};
  // Nothing, a line too few, half a line, an empty line's worth of nothing missing.
  for (const std::string& left :
       {std::string(), loss_line(1, 5.5), loss_line(1, 5.5) + "{\"step\":2,\"lo",
        std::string("{\"st"), whole}) {
    write_file(path, left);
    auto log = LossLog::open(path, 3, losses);
    ASSERT_TRUE(log.is_ok()) << log.status().text();
    EXPECT_EQ(text_of(path), whole) << "left: " << left;
    ASSERT_TRUE(log.value().append(4, 4.75).is_ok());
    EXPECT_EQ(text_of(path), whole + loss_line(4, 4.75));
  }
}

TEST(LossLog, CannotInventLossesThatTheBlobDoesNotHold) {
  const TemporaryDirectory dir;
  const std::string path = dir / "loss.jsonl";
  ASSERT_TRUE(LossLog::open(path, 10, {1.5}).is_ok());
  EXPECT_EQ(text_of(path), loss_line(10, 1.5));
  EXPECT_EQ(LossLog::open(dir / "none/loss", 0, {}).status().code(), StatusCode::kIo);
}

TEST(LossLog, WritesJsonAlsoForALossThatIsNotFinite) {
  EXPECT_EQ(loss_line(3, 0.5), "{\"step\":3,\"loss\":0.5}\n");
  EXPECT_EQ(loss_line(3, std::nan("")), "{\"step\":3,\"loss\":null}\n");
}

}  // namespace
}  // namespace optlease
