#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>

#include "actors/tensor_files/safetensors.h"
#include "tests/tensor_files/craft.h"

namespace optlease {
namespace {

FileTensor row(const std::string& name, const std::string& dtype, std::vector<uint64_t> shape) {
  FileTensor tensor;
  tensor.name = name;
  tensor.dtype = dtype;
  tensor.shape = std::move(shape);
  return tensor;
}

size_t files_in(const TempFolder& folder) {
  size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    (void)entry;
    ++count;
  }
  return count;
}

TEST(SafetensorsWriter, WritesTheBytesThatTheFormatPrescribes) {
  const TempFolder folder;
  Result<SafetensorsWriter> writer = SafetensorsWriter::begin(
      folder / "a", {{"format", "pt"}}, {row("z", "F32", {2}), row("b", "U8", {})});
  ASSERT_TRUE(writer.is_ok()) << writer.status().text();
  ASSERT_TRUE(writer.value().append("1234", 4).is_ok());
  ASSERT_TRUE(writer.value().append("56789", 5).is_ok());
  ASSERT_TRUE(writer.value().finish().is_ok());
  std::string header =
      "{\"__metadata__\":{\"format\":\"pt\"},"
      "\"z\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
      "\"b\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[8,9]}}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  EXPECT_EQ(get(folder / "a"), craft(header, "123456789"));
}

TEST(SafetensorsWriter, GivesTheFileTheModeThatItsUserWants) {
  const TempFolder folder;
  for (const auto& [mask, mode] : {std::pair<mode_t, unsigned>{0022, 0644}, {0077, 0600}}) {
    const mode_t before = ::umask(mask);
    Result<SafetensorsWriter> writer =
        SafetensorsWriter::begin(folder / "a", {}, {row("z", "U8", {1})});
    EXPECT_EQ(::umask(before), mask);
    ASSERT_TRUE(writer.is_ok() && writer.value().append("1", 1).is_ok());
    ASSERT_TRUE(writer.value().finish().is_ok());
    struct stat found {};
    ASSERT_EQ(::stat((folder / "a").c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & 07777, mode);
  }
}

TEST(SafetensorsWriter, RoundTripsThroughTheReader) {
  const TempFolder folder;
  {
    Result<SafetensorsWriter> writer = SafetensorsWriter::begin(
        folder / "a", {{"step", "7"}},
        {row("x", "BF16", {3, 5}), row("empty", "F32", {0}), row("quote\"\n\xc3\xa9", "I32", {1})});
    ASSERT_TRUE(writer.is_ok()) << writer.status().text();
    ASSERT_TRUE(writer.value().append(std::string(30, 'x').data(), 30).is_ok());
    ASSERT_TRUE(writer.value().append("iiii", 4).is_ok());
    ASSERT_TRUE(writer.value().finish().is_ok());
  }
  const Result<SafetensorsReader> reader = SafetensorsReader::open(folder / "a");
  ASSERT_TRUE(reader.is_ok()) << reader.status().text();
  EXPECT_EQ(reader.value().metadata().at("step"), "7");
  EXPECT_EQ(reader.value().find("x")->shape, (std::vector<uint64_t>{3, 5}));
  char out[4];
  ASSERT_TRUE(reader.value().read(*reader.value().find("quote\"\n\xc3\xa9"), 0, 4, out).is_ok());
  EXPECT_EQ(std::string(out, 4), "iiii");
}

TEST(SafetensorsWriter, LeavesTheOldFileUntilItFinishes) {
  const TempFolder folder;
  put(folder / "a", "old");
  {
    Result<SafetensorsWriter> writer =
        SafetensorsWriter::begin(folder / "a", {}, {row("x", "U8", {4})});
    ASSERT_TRUE(writer.is_ok());
    ASSERT_TRUE(writer.value().append("12", 2).is_ok());
    EXPECT_EQ(get(folder / "a"), "old");
    EXPECT_EQ(writer.value().finish().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(get(folder / "a"), "old");
  }
  EXPECT_EQ(get(folder / "a"), "old");
  EXPECT_EQ(files_in(folder), 1u) << "the temporary file must go";
}

TEST(SafetensorsWriter, RefusesMoreBytesThanTheTableHas) {
  const TempFolder folder;
  Result<SafetensorsWriter> writer =
      SafetensorsWriter::begin(folder / "a", {}, {row("x", "U8", {4})});
  ASSERT_TRUE(writer.is_ok());
  ASSERT_TRUE(writer.value().append("123", 3).is_ok());
  EXPECT_EQ(writer.value().append("45", 2).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(writer.value().append("4", 1).is_ok());
  ASSERT_TRUE(writer.value().finish().is_ok());
  EXPECT_EQ(files_in(folder), 1u);
}

TEST(SafetensorsWriter, RefusesTablesThatNoReaderWouldTake) {
  const TempFolder folder;
  const auto code = [&folder](std::vector<FileTensor> table) {
    return SafetensorsWriter::begin(folder / "a", {}, std::move(table)).status().code();
  };
  EXPECT_EQ(code({row("x", "U8", {1}), row("x", "U8", {1})}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({row("x", "Q3", {1})}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({row("__metadata__", "U8", {1})}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({row("\xff", "U8", {1})}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({row("x", "U8", {1ull << 40, 1ull << 40})}), StatusCode::kInvalidArgument);
  EXPECT_EQ(code({row("x", "F4", {1})}), StatusCode::kInvalidArgument);
  EXPECT_EQ(files_in(folder), 0u);
  EXPECT_EQ(SafetensorsWriter::begin(folder / "no/such/a", {}, {}).status().code(),
            StatusCode::kIo);
}

TEST(SafetensorsWriter, ReportsAWriteThatTheSystemRefuses) {
  const TempFolder folder;
  Result<SafetensorsWriter> writer =
      SafetensorsWriter::begin(folder / "a", {}, {row("x", "U8", {1 << 20})});
  ASSERT_TRUE(writer.is_ok());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = writer.value().append(std::string(1 << 20, 'x').data(), 1 << 20);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, handler);
  EXPECT_EQ(status.code(), StatusCode::kIo) << status.text();
}

}  // namespace
}  // namespace optlease
