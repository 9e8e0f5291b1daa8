#include "actors/tensor_files/model_source.h"

#include "tests/tensor_files/craft.h"

namespace optlease {
namespace {

std::string file_with(const std::string& name, const std::string& data) {
  return craft("{\"" + name + "\":{\"dtype\":\"U8\",\"shape\":[" + std::to_string(data.size()) +
                   "],\"data_offsets\":[0," + std::to_string(data.size()) + "]}}",
               data);
}

std::string index_of(const std::string& weight_map) {
  return "{\"metadata\":{\"total_size\":8},\"weight_map\":{" + weight_map + "}}";
}

TEST(ModelSource, ReadsASingleFile) {
  const TempFolder folder;
  const Result<ModelSource> model =
      ModelSource::open(put(folder / "m.safetensors", file_with("a", "abcd")));
  ASSERT_TRUE(model.is_ok()) << model.status().text();
  char out[2];
  ASSERT_TRUE(model.value().read_elements("a", 1, 2, out).is_ok());
  EXPECT_EQ(std::string(out, 2), "bc");
  EXPECT_EQ(model.value().read_elements("a", 3, 2, out).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(model.value().read_elements("a", 1, UINT64_MAX, out).code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(model.value().read_elements("b", 0, 1, out).code(), StatusCode::kNotFound);
}

TEST(ModelSource, FollowsTheIndexOfADirectory) {
  const TempFolder folder;
  put(folder / "model-00001-of-00002.safetensors", file_with("a", "aaaa"));
  put(folder / "model-00002-of-00002.safetensors", file_with("b", "bbbb"));
  put(folder / "unrelated.safetensors", "no safetensors file at all");
  put(folder / "model.safetensors.index.json",
      index_of("\"a\":\"model-00001-of-00002.safetensors\","
               "\"b\":\"model-00002-of-00002.safetensors\""));
  const Result<ModelSource> model = ModelSource::open(folder.path());
  ASSERT_TRUE(model.is_ok()) << model.status().text();
  EXPECT_EQ(model.value().names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(model.value().file_of("b"), folder / "model-00002-of-00002.safetensors");
  char out[4];
  ASSERT_TRUE(model.value().read_elements("b", 0, 4, out).is_ok());
  EXPECT_EQ(std::string(out, 4), "bbbb");
}

TEST(ModelSource, TakesEveryFileOfADirectoryWithoutIndex) {
  const TempFolder folder;
  put(folder / "one.safetensors", file_with("a", "aaaa"));
  put(folder / "two.safetensors", file_with("b", "bbbb"));
  put(folder / "config.json", "{}");
  const Result<ModelSource> model = ModelSource::open(folder.path());
  ASSERT_TRUE(model.is_ok()) << model.status().text();
  EXPECT_EQ(model.value().names(), (std::vector<std::string>{"a", "b"}));
}

TEST(ModelSource, FollowsLinksAsDownloadCachesMakeThem) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "snapshot");
  put(folder / "blob", file_with("a", "aaaa"));
  std::filesystem::create_symlink("../blob", folder / "snapshot/model.safetensors");
  EXPECT_TRUE(ModelSource::open(folder / "snapshot").is_ok());
}

TEST(ModelSource, RefusesIndexesThatLeadOutOfTheirDirectory) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "model");
  put(folder / "secret.safetensors", file_with("a", "aaaa"));
  put(folder / "model/.hidden.safetensors", file_with("a", "aaaa"));
  for (const std::string& name :
       {std::string("../secret.safetensors"), folder / "secret.safetensors",
        std::string("./../secret.safetensors"), std::string(".."), std::string(""),
        std::string(".hidden.safetensors"), std::string("sub\\\\secret.safetensors"),
        std::string("secret.safetensors\\u0000"), std::string("config.json")}) {
    put(folder / "model/model.safetensors.index.json", index_of("\"a\":\"" + name + "\""));
    const Result<ModelSource> model = ModelSource::open(folder / "model");
    EXPECT_EQ(model.status().code(), StatusCode::kInvalidArgument) << name;
    EXPECT_NE(model.status().message().find("tensor 'a'"), std::string::npos)
        << model.status().text();
  }
}

TEST(ModelSource, RefusesIndexesThatAreNoneOrDoNotHold) {
  const TempFolder folder;
  put(folder / "x.safetensors", file_with("a", "aaaa"));
  const auto code_with = [&folder](const std::string& index) {
    put(folder / "model.safetensors.index.json", index);
    return ModelSource::open(folder.path()).status().code();
  };
  EXPECT_EQ(code_with(""), StatusCode::kCorrupt);
  EXPECT_EQ(code_with("[]"), StatusCode::kCorrupt);
  EXPECT_EQ(code_with("{\"weight_map\":[]}"), StatusCode::kCorrupt);
  EXPECT_EQ(code_with(index_of("\"a\":1")), StatusCode::kInvalidArgument);
  EXPECT_EQ(code_with(index_of("\"b\":\"x.safetensors\"")), StatusCode::kCorrupt);
  EXPECT_EQ(code_with(index_of("\"a\":\"y.safetensors\"")), StatusCode::kNotFound);
  EXPECT_EQ(code_with(index_of("\"a\":\"x.safetensors\"")), StatusCode::kOk);
}

// A document is printed by recursion: one deep enough would end the process.
TEST(ModelSource, RefusesAnIndexThatNestsWithoutEnd) {
  const TempFolder folder;
  const std::string deep(1'000'000, '[');
  put(folder / "model.safetensors.index.json",
      index_of("\"a\":" + deep + std::string(deep.size(), ']')));
  const Status status = ModelSource::open(folder.path()).status();
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_NE(status.message().find("nests deeper"), std::string::npos) << status.text();
}

TEST(ModelSource, RefusesATensorThatIsInTwoFiles) {
  const TempFolder folder;
  put(folder / "one.safetensors", file_with("a", "aaaa"));
  put(folder / "two.safetensors", file_with("a", "bbbb"));
  const Status status = ModelSource::open(folder.path()).status();
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_NE(status.message().find("one.safetensors"), std::string::npos) << status.text();
  EXPECT_NE(status.message().find("two.safetensors"), std::string::npos) << status.text();
}

TEST(ModelSource, RefusesPlacesWithoutAModel) {
  const TempFolder folder;
  EXPECT_EQ(ModelSource::open(folder.path()).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(ModelSource::open(folder / "gone").status().code(), StatusCode::kNotFound);
}

TEST(ModelSource, RefusesElementsOfLessThanAByte) {
  const TempFolder folder;
  const Result<ModelSource> model = ModelSource::open(
      put(folder / "m.safetensors",
          craft("{\"a\":{\"dtype\":\"F4\",\"shape\":[2],\"data_offsets\":[0,1]}}", "x")));
  ASSERT_TRUE(model.is_ok()) << model.status().text();
  char out[2];
  EXPECT_EQ(model.value().read_elements("a", 0, 1, out).code(), StatusCode::kUnsupported);
}

}  // namespace
}  // namespace optlease
