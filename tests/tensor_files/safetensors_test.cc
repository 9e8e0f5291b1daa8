#include <sys/stat.h>

#include <cstring>

#include "actors/tensor_files/safetensors.h"
#include "tests/tensor_files/craft.h"

namespace optlease {
namespace {

// Parses a header by itself; what a test expects to be refused names the words of the refusal.
Status parse(const std::string& header, uint64_t data_bytes) {
  std::vector<FileTensor> tensors;
  std::map<std::string, std::string> metadata;
  return parse_safetensors_header(header, data_bytes, &tensors, &metadata);
}

void expect_refused(const std::string& header, uint64_t data_bytes, const std::string& words,
                    StatusCode code = StatusCode::kCorrupt) {
  const Status status = parse(header, data_bytes);
  EXPECT_EQ(status.code(), code) << header << " -> " << status.text();
  EXPECT_NE(status.message().find(words), std::string::npos) << status.text();
}

std::string tensor(const std::string& name, const std::string& dtype, const std::string& shape,
                   const std::string& offsets) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
         ",\"data_offsets\":" + offsets + "}";
}

TEST(Safetensors, ReadsAFileMadeByHand) {
  const TempFolder folder;
  // Table order is not byte order, and the header is padded as other writers pad it.
  const std::string path = put(
      folder / "a.safetensors",
      craft("{\"__metadata__\":{\"format\":\"pt\"}," + tensor("b", "I64", "[1]", "[8,16]") + "," +
                tensor("a", "F32", "[2,1]", "[0,8]") + "," + tensor("c", "BF16", "[]", "[16,18]") +
                "," + tensor("none", "U8", "[0,7]", "[18,18]") + "}   ",
            std::string("\x00\x00\x80\x3f\x00\x00\x00\xc0"
                        "\x2a\x00\x00\x00\x00\x00\x00\x00"
                        "\x80\x3f",
                        18)));
  Result<SafetensorsReader> reader = SafetensorsReader::open(path);
  ASSERT_TRUE(reader.is_ok()) << reader.status().text();
  const SafetensorsReader& file = reader.value();
  ASSERT_EQ(file.tensors().size(), 4u);
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_EQ(file.tensors()[1].name, "b");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  const FileTensor* a = file.find("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->shape, (std::vector<uint64_t>{2, 1}));
  EXPECT_EQ(a->elements, 2u);
  float values[2] = {};
  ASSERT_TRUE(file.read(*a, 0, 8, values).is_ok());
  EXPECT_EQ(values[0], 1.0f);
  EXPECT_EQ(values[1], -2.0f);
  uint64_t answer = 0;
  ASSERT_TRUE(file.read(*file.find("b"), 0, 8, &answer).is_ok());
  EXPECT_EQ(answer, 42u);
  EXPECT_EQ(file.find("c")->elements, 1u);
  EXPECT_EQ(file.find("none")->bytes(), 0u);
  EXPECT_EQ(file.find("d"), nullptr);
}

TEST(Safetensors, ReadsNothingBeyondATensor) {
  const TempFolder folder;
  const std::string path = put(folder / "a", craft("{" + tensor("a", "U8", "[4]", "[0,4]") + "," +
                                                       tensor("b", "U8", "[4]", "[4,8]") + "}",
                                                   "abcdefgh"));
  Result<SafetensorsReader> reader = SafetensorsReader::open(path);
  ASSERT_TRUE(reader.is_ok()) << reader.status().text();
  const SafetensorsReader& file = reader.value();
  char out[8] = {};
  EXPECT_TRUE(file.read(*file.find("a"), 2, 2, out).is_ok());
  EXPECT_EQ(std::string(out, 2), "cd");
  EXPECT_TRUE(file.read(*file.find("a"), 4, 0, out).is_ok());
  EXPECT_EQ(file.read(*file.find("a"), 2, 3, out).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(file.read(*file.find("a"), 5, 0, out).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(file.read(*file.find("a"), 1, UINT64_MAX, out).code(), StatusCode::kInvalidArgument);
}

TEST(Safetensors, RefusesHeaderLengthsThatTheFileDoesNotHave) {
  const TempFolder folder;
  for (const uint64_t length :
       {uint64_t{3}, uint64_t{100}, uint64_t{1} << 40, uint64_t{1} << 63, UINT64_MAX}) {
    const std::string path = put(folder / "a", little_endian(length) + "{}");
    const Result<SafetensorsReader> reader = SafetensorsReader::open(path);
    EXPECT_EQ(reader.status().code(), StatusCode::kCorrupt) << length;
    EXPECT_NE(reader.status().message().find(path), std::string::npos);
    EXPECT_NE(reader.status().message().find(std::to_string(length)), std::string::npos);
  }
}

TEST(Safetensors, RefusesEveryTruncation) {
  const TempFolder folder;
  const std::string whole =
      craft("{" + tensor("a", "F32", "[2]", "[0,8]") + "}", std::string(8, 'x'));
  ASSERT_TRUE(SafetensorsReader::open(put(folder / "a", whole)).is_ok());
  for (size_t bytes = 0; bytes < whole.size(); ++bytes)
    EXPECT_EQ(SafetensorsReader::open(put(folder / "a", whole.substr(0, bytes))).status().code(),
              StatusCode::kCorrupt)
        << bytes;
  EXPECT_EQ(SafetensorsReader::open(put(folder / "a", whole + "x")).status().code(),
            StatusCode::kCorrupt);
}

TEST(Safetensors, ReportsAFileThatShrankAfterItWasOpened) {
  const TempFolder folder;
  const std::string whole =
      craft("{" + tensor("a", "U8", "[4096]", "[0,4096]") + "}", std::string(4096, 'x'));
  Result<SafetensorsReader> reader = SafetensorsReader::open(put(folder / "a", whole));
  ASSERT_TRUE(reader.is_ok());
  std::filesystem::resize_file(folder / "a", whole.size() - 4000);
  char out[4096];
  EXPECT_EQ(reader.value().read(*reader.value().find("a"), 0, 4096, out).code(), StatusCode::kIo);
}

TEST(Safetensors, RefusesWhatIsNoFile) {
  const TempFolder folder;
  EXPECT_EQ(SafetensorsReader::open(folder / "gone").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(SafetensorsReader::open(folder.path()).status().code(), StatusCode::kInvalidArgument);
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(SafetensorsReader::open(folder / "pipe").status().code(), StatusCode::kInvalidArgument);
}

TEST(Safetensors, RefusesOverlapsGapsAndOffsetsOutOfTheFile) {
  const std::string a = tensor("a", "U8", "[4]", "[0,4]");
  EXPECT_TRUE(parse("{" + a + "," + tensor("b", "U8", "[4]", "[4,8]") + "}", 8).is_ok());
  expect_refused("{" + a + "," + tensor("b", "U8", "[4]", "[3,7]") + "}", 7, "inside the end");
  expect_refused("{" + a + "," + tensor("b", "U8", "[4]", "[0,4]") + "}", 4, "inside the end");
  expect_refused("{" + a + "," + tensor("b", "U8", "[4]", "[5,9]") + "}", 9, "past the end");
  expect_refused("{" + tensor("b", "U8", "[4]", "[1,5]") + "}", 5, "past the end");
  expect_refused("{" + a + "}", 3, "cover 4 bytes but the file holds 3");
  expect_refused("{" + a + "}", 5, "cover 4 bytes but the file holds 5");
  expect_refused("{" + tensor("a", "U8", "[4]", "[4,0]") + "}", 4, "run backwards");
  expect_refused(
      "{" + tensor("a", "U8", "[4]", "[18446744073709551612,18446744073709551615]") + "}", 4,
      "span 3 bytes");
  expect_refused("{}", 1, "cover 0 bytes");
}

TEST(Safetensors, RefusesSizesThatShapeAndDtypeDoNotGive) {
  expect_refused("{" + tensor("a", "F32", "[2]", "[0,4]") + "}", 4, "2 elements of F32 are 8");
  expect_refused("{" + tensor("a", "F32", "[4294967296,4294967296]", "[0,4]") + "}", 4, "2^64");
  expect_refused("{" + tensor("a", "F64", "[4611686018427387904]", "[0,0]") + "}", 0, "2^64 bits");
  expect_refused("{" + tensor("a", "F4", "[3]", "[0,1]") + "}", 1, "whole number of bytes");
  expect_refused("{" + tensor("a", "Q3", "[3]", "[0,3]") + "}", 3, "'Q3'",
                 StatusCode::kUnsupported);
  EXPECT_TRUE(parse("{" + tensor("a", "F8_E4M3", "[3]", "[0,3]") + "}", 3).is_ok());
}

TEST(Safetensors, RefusesHeadersThatAreNotTheFormats) {
  const std::string a = tensor("a", "U8", "[1]", "[0,1]");
  expect_refused("", 0, "begin with '{'");
  expect_refused(" {}", 0, "begin with '{'");
  expect_refused("[]", 0, "begin with '{'");
  expect_refused("{", 0, "no JSON");
  expect_refused("{}x", 0, "no JSON");
  expect_refused("{" + tensor("\xff\xfe", "U8", "[1]", "[0,1]") + "}", 1, "no JSON in UTF-8");
  expect_refused("{" + tensor("a\\u0000b", "U8", "[1]", "[0,1]") + "}", 1, "zero byte");
  expect_refused("{\"a\":1}", 0, "exactly dtype, shape");
  expect_refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "exactly dtype, shape");
  expect_refused("{" + tensor("a", "U8", "[1.0]", "[0,1]") + "}", 1, "whole number");
  expect_refused("{" + tensor("a", "U8", "[-1]", "[0,1]") + "}", 1, "whole number");
  expect_refused("{" + tensor("a", "U8", "[18446744073709551617]", "[0,1]") + "}", 1,
                 "whole number");
  expect_refused("{" + tensor("a", "U8", "1", "[0,1]") + "}", 1, "no array");
  expect_refused("{" + tensor("a", "U8", "[1]", "[0,1,2]") + "}", 1, "two whole numbers");
  expect_refused("{\"__metadata__\":{\"k\":1}," + a + "}", 1, "__metadata__");
  expect_refused("{\"a\":" + std::string(100000, '[') + std::string(100000, ']') + "}", 0, "nests");
}

TEST(Safetensors, RefusesNamesThatAreThereTwice) {
  const std::string a = tensor("a", "U8", "[1]", "[0,1]");
  expect_refused("{" + a + "," + a + "}", 1, "'a' twice");
  expect_refused("{" + a + "," + tensor("\\u0061", "U8", "[1]", "[1,2]") + "}", 2, "'a' twice");
  expect_refused(
      "{\"a\":{\"dtype\":\"U8\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
      "'dtype' twice");
  expect_refused("{\"__metadata__\":{\"k\":\"1\",\"k\":\"2\"}}", 0, "'k' twice");
}

TEST(SafetensorsHeader, ThatNestsWithoutEndIsRefusedBeforeItIsParsed) {
  std::vector<FileTensor> tensors;
  std::map<std::string, std::string> metadata;
  for (const std::string open : {"[", "{\"\":"}) {
    std::string header = "{\"a\":";
    while (header.size() < 1u << 20) header += open;
    const Status status = parse_safetensors_header(header, 0, &tensors, &metadata);
    EXPECT_EQ(status.code(), StatusCode::kCorrupt);
    EXPECT_NE(status.message().find("nests deeper"), std::string::npos) << status.text();
  }
  const std::string brackets =
      "{\"[[[[[[\\\"{{{{{{\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}";
  EXPECT_TRUE(parse_safetensors_header(brackets, 1, &tensors, &metadata).is_ok())
      << "brackets in a name";
}

}  // namespace
}  // namespace optlease
