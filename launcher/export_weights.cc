// export_weights of job_state.h.
#include <algorithm>
#include <map>
#include <set>

#include "actors/tensor_files/safetensors.h"
#include "kernels/checksum.h"
#include "kernels/formats.h"
#include "launcher/job_state.h"

namespace optlease {
namespace {

constexpr uint64_t kConvertElements = 1 << 16;

struct Place {
  uint32_t space = 0;
  ElementRange range;
};

// The file's table and, for each entry, where its elements are.
Status make_table(const ControlView& view, DType dtype, std::vector<FileTensor>* table,
                  std::vector<Place>* places) {
  std::map<std::string, int> uses;
  for (uint32_t s = 0; s < view.spaces().size(); ++s) {
    for (const TensorRecord& tensor : view.tensors(s)) ++uses[tensor.name];
  }
  std::set<std::string> taken;
  for (uint32_t s = 0; s < view.spaces().size(); ++s) {
    for (const TensorRecord& tensor : view.tensors(s)) {
      FileTensor entry;
      entry.name = tensor.name;
      if (uses[tensor.name] > 1)
        entry.name = std::string(view.spaces()[s].name) + "." + tensor.name;
      if (!taken.insert(entry.name).second) {
        return {StatusCode::kInvalidArgument,
                "two tensors would both be called " + entry.name + " in the file"};
      }
      entry.dtype = name_of(dtype);
      entry.shape.assign(tensor.shape, tensor.shape + tensor.dim_count);
      table->push_back(std::move(entry));
      places->push_back({s, {tensor.flat_offset, tensor.flat_offset + tensor.elements}});
    }
  }
  return Status::ok();
}

Status append_run(SafetensorsWriter& writer, const ElementRun& run, DType dtype) {
  if (dtype == DType::kF32) return writer.append(run.data, run.count * sizeof(float));
  std::vector<uint16_t> narrow(std::min(run.count, kConvertElements));
  for (uint64_t done = 0; done < run.count; done += narrow.size()) {
    const uint64_t count = std::min<uint64_t>(narrow.size(), run.count - done);
    for (uint64_t i = 0; i < count; ++i) narrow[i] = bf16_from_f32(run.data[done + i]);
    OPTLEASE_TRY(writer.append(narrow.data(), count * sizeof(uint16_t)));
  }
  return Status::ok();
}

}  // namespace

Status export_weights(const JobState& state, const ExportOptions& options, const KeepGoing& keep) {
  if (options.dtype != DType::kF32 && options.dtype != DType::kBF16) {
    return {StatusCode::kUnsupported, "weights are exported as F32 or BF16"};
  }
  const ControlView& view = state.view();
  std::vector<FileTensor> table;
  std::vector<Place> places;
  OPTLEASE_TRY(make_table(view, options.dtype, &table, &places));
  const std::map<std::string, std::string> metadata = {
      {"format", "pt"},
      {"optlease_job", view.header().job_name},
      {"optlease_step", std::to_string(view.step_committed())}};
  auto writer = SafetensorsWriter::begin(options.path, metadata, std::move(table));
  if (!writer) return writer.status();
  std::set<std::pair<uint32_t, uint32_t>> verified;  // rank, chunk
  for (const Place& place : places) {
    const auto write = [&](const ElementRun& run) -> Status {
      OPTLEASE_TRY(keep());
      if (verified.insert({run.rank.value, run.chunk.value}).second) {
        OPTLEASE_TRY(verify_chunk(view, state.arenas(), run.rank, run.chunk, &checksum_words));
      }
      return append_run(writer.value(), run, options.dtype);
    };
    if (place.range.size() == 0) continue;
    OPTLEASE_TRY(read_elements(view, state.arenas(), place.space, kMainArray, place.range, write));
  }
  OPTLEASE_TRY(keep());
  return writer.value().finish();
}

}  // namespace optlease
