// safetensors files and the index of a model in several of them.
//
// It may assume nothing of a file. It asserts: the tensors of a header that was taken cover the
// data section without gap or overlap, in order, each as large as its shape and dtype say; each can
// be read to its last byte and no further; a file that is written from them is read back the same;
// an index leads to files beside it and nowhere else.
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "actors/tensor_files/model_source.h"
#include "actors/tensor_files/safetensors.h"
#include "shm/shared_buffer.h"
#include "tests/fuzz/fuzz.h"

namespace optlease::fuzz {
namespace {

enum class Part : uint8_t { kHeader, kFile, kIndex, kWriter, kCount };
constexpr uint64_t kDataBytesMax = 1u << 16;

void check_tensors(const std::vector<FileTensor>& tensors, uint64_t data_bytes) {
  uint64_t covered = 0;
  for (const FileTensor& tensor : tensors) {
    OPTLEASE_CHECK(tensor.begin == covered && tensor.end >= covered, "a gap or an overlap");
    covered = tensor.end;
    uint64_t elements = 1;
    for (const uint64_t dim : tensor.shape) elements *= dim;
    OPTLEASE_CHECK(elements == tensor.elements, "elements");
    const uint32_t bits = safetensors_bits_of(tensor.dtype);
    OPTLEASE_CHECK(bits != 0 && tensor.elements * bits == tensor.bytes() * 8, "bytes");
    OPTLEASE_CHECK(tensor.name.find('\0') == std::string::npos, "a name with a zero");
  }
  OPTLEASE_CHECK(covered == data_bytes, "the tensors cover another number of bytes");
}

bool try_header(std::string_view header, uint64_t data_bytes, std::vector<FileTensor>* tensors,
                std::map<std::string, std::string>* metadata) {
  const Status status = parse_safetensors_header(header, data_bytes, tensors, metadata);
  if (!status.is_ok()) {
    OPTLEASE_CHECK(!status.message().empty(), "refused without a word");
    return false;
  }
  taken();
  check_tensors(*tensors, data_bytes);
  return true;
}

void check_readable(const SafetensorsReader& file) {
  std::string out;
  for (const FileTensor& tensor : file.tensors()) {
    OPTLEASE_CHECK(file.find(tensor.name) == &tensor, "a tensor is not found by its name");
    out.resize(tensor.bytes());
    OPTLEASE_CHECK(file.read(tensor, 0, tensor.bytes(), out.data()).is_ok(), "not readable");
    char one = 0;
    OPTLEASE_CHECK(!file.read(tensor, tensor.bytes(), 1, &one).is_ok(), "read past its end");
  }
}

// A file that never has a name on any disk.
const std::string& set_memory_file(std::string_view bytes) {
  static const UniqueFd fd(::memfd_create("fuzz", MFD_CLOEXEC));
  static const std::string path = format("/proc/self/fd/%d", fd.get());
  OPTLEASE_CHECK(::ftruncate(fd.get(), 0) == 0, "ftruncate");
  const ssize_t put = ::pwrite(fd.get(), bytes.data(), bytes.size(), 0);
  OPTLEASE_CHECK(put == static_cast<ssize_t>(bytes.size()), "pwrite");
  return path;
}

void try_file(std::string_view bytes) {
  const Result<SafetensorsReader> file = SafetensorsReader::open(set_memory_file(bytes));
  if (!file.is_ok()) return;
  taken();
  check_readable(file.value());
}

// The same with a right length before the header.
std::string file_of(std::string_view header, std::string_view data) {
  return Output().put(uint64_t{header.size()}).bytes(header).bytes(data).text();
}

// What a header describes is written as a file and read again.
void try_writer(std::string_view header, uint64_t data_bytes) {
  std::vector<FileTensor> tensors;
  std::map<std::string, std::string> metadata;
  if (!try_header(header, data_bytes, &tensors, &metadata)) return;
  const std::string path = scratch_folder() + "/written.safetensors";
  Result<SafetensorsWriter> writer = SafetensorsWriter::begin(path, metadata, tensors);
  OPTLEASE_CHECK(writer.is_ok(), "%s", writer.status().text().c_str());
  const std::string data(data_bytes, 'd');
  OPTLEASE_CHECK(writer.value().append(data.data(), data.size()).is_ok(), "append");
  OPTLEASE_CHECK(writer.value().finish().is_ok(), "finish");
  const Result<SafetensorsReader> again = SafetensorsReader::open(path);
  OPTLEASE_CHECK(again.is_ok(), "%s", again.status().text().c_str());
  OPTLEASE_CHECK(again.value().metadata() == metadata, "another metadata");
  OPTLEASE_CHECK(again.value().tensors().size() == tensors.size(), "other tensors");
  for (const FileTensor& tensor : tensors) {
    const FileTensor* found = again.value().find(tensor.name);
    OPTLEASE_CHECK(found != nullptr && found->shape == tensor.shape &&
                       found->dtype == tensor.dtype && found->begin == tensor.begin,
                   "another tensor '%s'", tensor.name.c_str());
  }
  check_readable(again.value());
}

constexpr const char* kHeaderA =
    "{\"__metadata__\":{\"format\":\"pt\"},"
    "\"m.embed\":{\"dtype\":\"BF16\",\"shape\":[4,2],\"data_offsets\":[0,16]},"
    "\"m.norm\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[16,24]}}";
constexpr const char* kHeaderB =
    "{\"m.count\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]}}";

// A model of two files; what the input says is its index.
const std::string& model_folder() {
  static const std::string folder = [] {
    const std::string path = scratch_folder() + "/model";
    std::filesystem::create_directory(path);
    std::ofstream(path + "/a.safetensors") << file_of(kHeaderA, std::string(24, 'a'));
    std::ofstream(path + "/b.safetensors") << file_of(kHeaderB, std::string(8, 'b'));
    std::ofstream(path + "/../outside.safetensors") << file_of(kHeaderB, std::string(8, 'x'));
    return path;
  }();
  return folder;
}

void try_index(std::string_view index) {
  const std::string folder = model_folder();
  std::ofstream(folder + "/model.safetensors.index.json", std::ios::binary | std::ios::trunc)
      << index;
  const Result<ModelSource> model = ModelSource::open(folder);
  if (!model.is_ok()) {
    OPTLEASE_CHECK(!model.status().message().empty(), "refused without a word");
    return;
  }
  taken();
  std::string out;
  for (const std::string& name : model.value().names()) {
    const FileTensor* tensor = model.value().find(name);
    OPTLEASE_CHECK(tensor != nullptr && tensor->name == name, "'%s' is not there", name.c_str());
    const std::string& file = model.value().file_of(name);
    OPTLEASE_CHECK(
        file.starts_with(folder + "/") && file.find('/', folder.size() + 1) == std::string::npos,
        "'%s' leads to %s", name.c_str(), file.c_str());
    out.resize(tensor->bytes());
    OPTLEASE_CHECK(model.value().read_elements(name, 0, tensor->elements, out.data()).is_ok(),
                   "not readable");
    OPTLEASE_CHECK(!model.value().read_elements(name, 1, tensor->elements, out.data()).is_ok(),
                   "read past its end");
  }
}

}  // namespace
}  // namespace optlease::fuzz

std::vector<std::string> fuzz_seeds() {
  using namespace optlease::fuzz;
  const auto of = [](Part part) { return Output().byte(static_cast<uint32_t>(part)); };
  const std::string index =
      "{\"metadata\":{},\"weight_map\":{\"m.embed\":\"a.safetensors\","
      "\"m.norm\":\"a.safetensors\",\"m.count\":\"b.safetensors\"}}";
  return {of(Part::kHeader).put(uint32_t{24}).bytes(kHeaderA).text(),
          of(Part::kHeader).put(uint32_t{8}).bytes(kHeaderB).text(),
          of(Part::kWriter).put(uint32_t{24}).bytes(kHeaderA).text(),
          of(Part::kFile).bytes(file_of(kHeaderA, std::string(24, 'a'))).text(),
          of(Part::kIndex).bytes(index).text()};
}

std::vector<std::string> fuzz_words() {
  return {"__metadata__", "dtype", "shape", "data_offsets", "weight_map", "F8_E4M3", "F4",
          "\"F6_E2M3\"",  "..",    "/",     "\\u0000",      ":{",         "[]",      "{}"};
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace optlease;
  using namespace optlease::fuzz;
  Input input(data, size);
  const auto part = static_cast<Part>(input.byte() % static_cast<uint8_t>(Part::kCount));
  if (part == Part::kFile) {
    try_file(input.rest());
  } else if (part == Part::kIndex) {
    try_index(input.rest());
  } else {
    const uint64_t data_bytes = input.take<uint32_t>();
    std::vector<FileTensor> tensors;
    std::map<std::string, std::string> metadata;
    if (part == Part::kWriter && data_bytes <= kDataBytesMax) {
      try_writer(input.rest(), data_bytes);
    } else {
      try_header(input.rest(), data_bytes, &tensors, &metadata);
    }
  }
  return 0;
}
