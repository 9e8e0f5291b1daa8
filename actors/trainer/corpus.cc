#include "actors/trainer/corpus.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <system_error>
#include <utility>

#include "shm/contract/geometry.h"

namespace optlease {

namespace {

namespace fs = std::filesystem;

// SplitMix64's finaliser (Steele, Lea & Flood 2014).
uint64_t mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15ull;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}

Status append_file(const fs::path& path, std::string* text) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    return {StatusCode::kIo, format("text file %s: %s", path.c_str(), std::strerror(errno))};
  text->append(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  if (file.bad()) return {StatusCode::kIo, format("text file %s cannot be read", path.c_str())};
  return Status::ok();
}

Status list_markdown(const fs::path& directory, std::vector<fs::path>* files) {
  std::error_code error;
  for (fs::recursive_directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;  // what cannot be looked at is no text
    if (entry->path().extension() == ".md" && entry->is_regular_file(ignored))
      files->push_back(entry->path());
  }
  if (error)
    return {StatusCode::kIo,
            format("text directory %s: %s", directory.c_str(), error.message().c_str())};
  std::sort(files->begin(), files->end());
  return Status::ok();
}

}  // namespace

Result<std::string> read_text(const std::string& path) {
  std::string text;
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    OPTLEASE_TRY(append_file(path, &text));
    return text;
  }
  std::vector<fs::path> files;
  OPTLEASE_TRY(list_markdown(path, &files));
  if (files.empty())
    return Status{StatusCode::kNotFound, format("there is no *.md file under %s", path.c_str())};
  for (const fs::path& file : files) OPTLEASE_TRY(append_file(file, &text));
  return text;
}

SampleOrder::SampleOrder(uint64_t seed, uint64_t positions) : seed_(seed), positions_(positions) {
  OPTLEASE_CHECK(positions >= 1, "an order over no positions");
}

uint64_t SampleOrder::position_of(uint64_t sample) const {
  const uint64_t epoch = sample / positions_;
  const uint64_t offset = mix(seed_ ^ mix(2 * epoch)) % positions_;
  uint64_t multiplier = mix(seed_ ^ mix(2 * epoch + 1)) % positions_;
  // Coprime to the count, so that an epoch visits each position once; one is near any start.
  while (std::gcd(multiplier, positions_) != 1) multiplier = (multiplier + 1) % positions_;
  const auto product = static_cast<unsigned __int128>(multiplier) * (sample % positions_) + offset;
  return static_cast<uint64_t>(product % positions_);
}

Corpus::Corpus(std::string text, uint64_t context, uint64_t seed)
    : text_(std::move(text)),
      context_(context),
      order_(seed, text_.size() - context),
      text_hash_(fnv1a(text_.data(), text_.size())) {}

Result<Corpus> Corpus::of(std::string text, uint64_t context, uint64_t seed) {
  if (text.size() <= context)
    return Status{StatusCode::kInvalidArgument,
                  format("the text has %zu bytes; a context of %llu bytes and the one after it are "
                         "needed at least",
                         text.size(), static_cast<unsigned long long>(context))};
  return Corpus(std::move(text), context, seed);
}

void Corpus::fill(uint64_t first_sample, uint64_t batch, uint32_t rank, uint32_t world_size,
                  Batch* out) const {
  out->contexts.resize(batch * context_);
  out->targets.resize(batch);
  for (uint64_t i = 0; i < batch; ++i) {
    const uint64_t position = order_.position_of(first_sample + i * world_size + rank);
    std::memcpy(out->contexts.data() + i * context_, text_.data() + position, context_);
    out->targets[i] = static_cast<uint8_t>(text_[position + context_]);
  }
}

}  // namespace optlease
