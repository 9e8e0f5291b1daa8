// The start of every fuzzer, before libFuzzer's own main does anything: where OPTLEASE_FUZZ_SEEDS
// names a folder the seeds are tried and written there, the words beside it, and
// nothing else is done.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);

namespace optlease::fuzz {
namespace {

uint64_t taken_so_far = 0;

// Every seed is taken by some decoder, or its encoder and its fuzzer no longer agree.
void write_seeds(const std::string& folder) {
  size_t written = 0;
  for (const std::string& seed : fuzz_seeds()) {
    const uint64_t before = taken_count();
    LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(seed.data()), seed.size());
    OPTLEASE_CHECK(taken_count() > before, "no decoder takes seed %zu of %zu bytes", written,
                   seed.size());
    const std::string path = folder + format("/seed-%02zu", written++);
    std::ofstream file(path, std::ios::binary);
    file << seed;
    OPTLEASE_CHECK(file.good(), "cannot write %s", path.c_str());
  }
  OPTLEASE_CHECK(written > 0, "there is no seed for %s", folder.c_str());
}

// As libFuzzer's -dict reads them: a quoted string a line.
void write_words(const std::string& path) {
  std::ofstream file(path);
  for (const std::string& word : fuzz_words()) {
    file << '"';
    for (const char c : word) file << (c == '"' || c == '\\' ? "\\" : "") << c;
    file << "\"\n";
  }
  OPTLEASE_CHECK(file.good(), "cannot write %s", path.c_str());
}

}  // namespace

void taken() { ++taken_so_far; }
uint64_t taken_count() { return taken_so_far; }

}  // namespace optlease::fuzz

[[gnu::weak]] std::vector<std::string> fuzz_words() { return {}; }

namespace optlease::fuzz {

std::string segment_stem() { return format("/optlease-fuzz-%d", static_cast<int>(::getpid())); }

const std::string& scratch_folder() {
  static const std::string folder = [] {
    const std::string made = "/dev/shm" + segment_stem() + ".files";
    std::atexit([] { std::filesystem::remove_all("/dev/shm" + segment_stem() + ".files"); });
    std::filesystem::remove_all(made);  // of an earlier process of this number
    OPTLEASE_CHECK(std::filesystem::create_directory(made), "cannot make %s", made.c_str());
    return made;
  }();
  return folder;
}

}  // namespace optlease::fuzz

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* folder = std::getenv("OPTLEASE_FUZZ_SEEDS");
  if (folder == nullptr) return 0;
  optlease::fuzz::write_seeds(folder);
  optlease::fuzz::write_words(std::string(folder) + ".words");
  std::exit(0);
}
