#include "actors/trainer/progress.h"

#include <cstring>

namespace optlease {

TrainingProgress advanced(const TrainingProgress& progress, uint64_t samples, double loss) {
  TrainingProgress next = progress;
  ++next.step;
  next.next_sample += samples;
  next.losses.push_back(loss);
  if (next.losses.size() > kLossTailMax) next.losses.erase(next.losses.begin());
  return next;
}

std::string encode_progress(const TrainingProgress& progress) {
  OPTLEASE_CHECK(progress.losses.size() <= kLossTailMax, "%zu losses", progress.losses.size());
  ProgressHeader header{};
  header.magic = kProgressMagic;
  header.version = kProgressVersion;
  header.step = progress.step;
  header.next_sample = progress.next_sample;
  header.seed = progress.seed;
  header.text_hash = progress.text_hash;
  header.loss_count = static_cast<uint32_t>(progress.losses.size());
  std::string blob(reinterpret_cast<const char*>(&header), sizeof header);
  if (!progress.losses.empty())
    blob.append(reinterpret_cast<const char*>(progress.losses.data()),
                progress.losses.size() * sizeof(double));
  return blob;
}

Result<TrainingProgress> decode_progress(std::string_view blob) {
  ProgressHeader header;
  if (blob.size() < sizeof header)
    return Status{StatusCode::kCorrupt, format("the user blob has %zu bytes, this trainer's has at "
                                               "least %zu: another trainer wrote it",
                                               blob.size(), sizeof header)};
  std::memcpy(&header, blob.data(), sizeof header);
  if (header.magic != kProgressMagic)
    return Status{StatusCode::kCorrupt,
                  format("the user blob starts with 0x%08x, this trainer's with 0x%08x: another "
                         "trainer wrote it",
                         header.magic, kProgressMagic)};
  if (header.version != kProgressVersion)
    return Status{StatusCode::kWrongVersion,
                  format("the user blob has version %u, this trainer reads %u", header.version,
                         kProgressVersion)};
  if (header.loss_count > kLossTailMax || header.reserved_zero != 0 || header.step < 0 ||
      blob.size() != sizeof header + header.loss_count * sizeof(double))
    return Status{StatusCode::kCorrupt,
                  format("the user blob of %zu bytes does not hold the %u losses that it names",
                         blob.size(), header.loss_count)};
  TrainingProgress progress{header.step, header.next_sample, header.seed, header.text_hash, {}};
  progress.losses.resize(header.loss_count);
  if (header.loss_count != 0)
    std::memcpy(progress.losses.data(), blob.data() + sizeof header,
                header.loss_count * sizeof(double));
  return progress;
}

}  // namespace optlease
