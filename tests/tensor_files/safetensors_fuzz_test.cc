#include <cstdio>
#include <random>

#include "actors/tensor_files/safetensors.h"
#include "tests/tensor_files/craft.h"

namespace optlease {
namespace {

constexpr uint32_t kSeed = 20261129;

std::string honest_file() {
  return craft(
      "{\"__metadata__\":{\"format\":\"pt\",\"step\":\"12\"},"
      "\"model.embed\":{\"dtype\":\"BF16\",\"shape\":[4,2],\"data_offsets\":[0,16]},"
      "\"model.norm\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[16,24]},"
      "\"model.count\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[24,32]}}",
      std::string(32, 'd'));
}

std::string mutated(const std::string& whole, std::mt19937* random) {
  static const std::string kJson = "{}[],:\"0123456789-e.\\u";
  std::string bytes = whole;
  const uint32_t edits = 1 + (*random)() % 4;
  for (uint32_t edit = 0; edit < edits && !bytes.empty(); ++edit) {
    const size_t at = (*random)() % bytes.size();
    switch ((*random)() % 6) {
      case 0:
        bytes[at] = static_cast<char>((*random)());
        break;
      case 1:
        bytes[at] = kJson[(*random)() % kJson.size()];
        break;
      case 2:
        bytes.erase(at, 1 + (*random)() % 16);
        break;
      case 3:
        bytes.insert(at, 1 + (*random)() % 8, kJson[(*random)() % kJson.size()]);
        break;
      case 4:
        bytes.insert(at, bytes.substr((*random)() % bytes.size(), 64));
        break;
      case 5:
        bytes[at % 8] = static_cast<char>((*random)());
        break;
    }
  }
  return bytes;
}

// Every tensor of a file that was accepted can be read to its last byte.
void expect_readable(const SafetensorsReader& file) {
  std::string out;
  for (const FileTensor& tensor : file.tensors()) {
    out.resize(tensor.bytes());
    EXPECT_TRUE(file.read(tensor, 0, tensor.bytes(), out.data()).is_ok()) << tensor.name;
  }
}

TEST(SafetensorsFuzz, MutatedFilesAreRefusedInWordsOrWhollyReadable) {
  std::printf("seed %u\n", kSeed);
  std::mt19937 random(kSeed);
  const TempFolder folder;
  const std::string whole = honest_file();
  ASSERT_TRUE(SafetensorsReader::open(put(folder / "a", whole)).is_ok());
  uint32_t refused = 0;
  constexpr uint32_t kRounds = 6000;
  for (uint32_t round = 0; round < kRounds; ++round) {
    const Result<SafetensorsReader> file =
        SafetensorsReader::open(put(folder / "a", mutated(whole, &random)));
    if (file.is_ok()) {
      expect_readable(file.value());
    } else {
      ++refused;
      EXPECT_FALSE(file.status().message().empty());
    }
  }
  EXPECT_GT(refused, kRounds / 2);
  EXPECT_LT(refused, kRounds);  // data bytes may change freely
}

TEST(SafetensorsFuzz, HeadersThatKeepTheirLengthRightAreRefusedOrCoverTheData) {
  std::printf("seed %u\n", kSeed);
  std::mt19937 random(kSeed);
  const std::string whole = honest_file();
  const std::string header = whole.substr(8, whole.size() - 8 - 32);
  for (uint32_t round = 0; round < 20000; ++round) {
    std::vector<FileTensor> tensors;
    std::map<std::string, std::string> metadata;
    if (!parse_safetensors_header(mutated(header, &random), 32, &tensors, &metadata)) continue;
    uint64_t covered = 0;
    for (const FileTensor& tensor : tensors) {
      ASSERT_EQ(tensor.begin, covered);
      covered = tensor.end;
    }
    ASSERT_EQ(covered, 32u);
  }
}

}  // namespace
}  // namespace optlease
