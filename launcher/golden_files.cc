#include "launcher/golden_files.h"

#include <algorithm>
#include <deque>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "actors/tensor_files/safetensors.h"

namespace optlease {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// An open file and the bytes of the tensors that were asked for. What a broken file gives is thrown
// as std::runtime_error and ends in run_golden_file.
class GoldenFile {
 public:
  explicit GoldenFile(SafetensorsReader reader) : reader_(std::move(reader)) {
    const auto found = reader_.metadata().find("golden");
    if (found == reader_.metadata().end()) {
      throw std::runtime_error(
          "its metadata has no \"golden\": this is no file of reference vectors");
    }
    about_ = json::parse(found->second);
  }

  const json& about() const { return about_; }
  DType dtype(const std::string& name) const {
    DType out = DType::kF32;
    if (!parse_dtype(find(name).dtype, &out)) {
      throw std::runtime_error("tensor " + name + " has the unknown dtype " + find(name).dtype);
    }
    return out;
  }
  const void* raw(const std::string& name) { return load(find(name)); }
  template <class T>
  std::span<const T> get(const std::string& name) {
    const FileTensor& tensor = find(name);
    if (tensor.bytes() != tensor.elements * sizeof(T)) {
      throw std::runtime_error("tensor " + name + " has dtype " + tensor.dtype);
    }
    return {static_cast<const T*>(load(tensor)), tensor.elements};
  }
  template <class T>
  std::span<const T> get_if(const std::string& name) {
    return reader_.find(name) == nullptr ? std::span<const T>() : get<T>(name);
  }

 private:
  const FileTensor& find(const std::string& name) const {
    const FileTensor* tensor = reader_.find(name);
    if (tensor == nullptr) throw std::runtime_error("it has no tensor " + name);
    return *tensor;
  }
  const void* load(const FileTensor& tensor) {
    // Aligned for every element type, and never null for an empty tensor.
    std::vector<uint64_t>& words = held_.emplace_back(tensor.bytes() / 8 + 1);
    const Status status = reader_.read(tensor, 0, tensor.bytes(), words.data());
    if (!status.is_ok()) throw std::runtime_error(status.message());
    return words.data();
  }

  SafetensorsReader reader_;
  json about_;
  std::deque<std::vector<uint64_t>> held_;
};

AdamCaseTensor tensor_of(GoldenFile& file, const std::string& name) {
  AdamCaseTensor tensor;
  tensor.name = name;
  tensor.init = file.get<float>(name + ".init");
  tensor.grad_dtype = file.dtype(name + ".grad.1");
  for (size_t step = 1; step <= file.about().at("lrs").size(); ++step) {
    tensor.grads.push_back(file.raw(name + ".grad." + std::to_string(step)));
  }
  for (const int64_t step : file.about().at("kept_steps")) {
    const std::string at = "." + std::to_string(step);
    tensor.expected[step] = {file.get<float>(name + ".param" + at),
                             file.get<float>(name + ".exp_avg" + at),
                             file.get<float>(name + ".exp_avg_sq" + at),
                             file.get_if<uint16_t>(name + ".param_bf16" + at)};
  }
  return tensor;
}

SelftestResult run_adam(GoldenFile& file, const std::string& name, Rule rule) {
  const json& about = file.about();
  AdamCase adam_case;
  adam_case.file = name;
  adam_case.lrs = about.at("lrs").get<std::vector<double>>();
  if (adam_case.lrs.empty()) throw std::runtime_error("it describes no step");
  GroupParams& params = adam_case.params;
  params.lr = adam_case.lrs[0];
  params.beta1 = about.at("betas").at(0);
  params.beta2 = about.at("betas").at(1);
  params.eps = about.at("eps");
  params.weight_decay = about.at("weight_decay");
  params.rule = static_cast<uint32_t>(rule);
  const json& clip = about.at("clip_max_norm");
  if (!clip.is_null()) adam_case.max_norm = clip;
  adam_case.grad_norms = about.at("grad_norms").get<std::vector<double>>();
  for (const std::string tensor : about.at("tensors")) {
    adam_case.tensors.push_back(tensor_of(file, tensor));
  }
  return run_adam_case(adam_case);
}

SelftestResult run_casts(GoldenFile& file, const std::string& name) {
  CastsCase casts;
  casts.file = name;
  casts.x = file.get<float>("x");
  casts.bf16 = file.get_if<uint16_t>("bf16");
  casts.f16 = file.get_if<uint16_t>("fp16");
  casts.e4m3 = file.get_if<uint8_t>("e4m3");
  casts.e5m2 = file.get_if<uint8_t>("e5m2");
  return check_casts(casts);
}

GoldenResult run_open_file(GoldenFile& file, const std::string& name) {
  const std::string optimizer = file.about().value("optimizer", "");
  if (optimizer == "AdamW") return {run_adam(file, name, Rule::kAdamW), false};
  if (optimizer == "Adam") return {run_adam(file, name, Rule::kAdam), false};
  if (file.about().value("case", "") == "casts") return {run_casts(file, name), false};
  GoldenResult skipped;
  skipped.skipped = true;
  skipped.result.file = name;
  skipped.result.detail = "this build has no rule " + (optimizer.empty() ? "?" : optimizer);
  return skipped;
}

}  // namespace

Result<std::vector<std::string>> golden_files(const std::vector<std::string>& paths) {
  std::vector<std::string> out;
  for (const std::string& path : paths) {
    std::error_code error;
    if (fs::is_regular_file(path, error)) {
      out.push_back(path);
      continue;
    }
    if (!fs::is_directory(path, error)) {
      return Status(StatusCode::kNotFound, path + " is neither a file nor a directory");
    }
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(path, error)) {
      if (entry.path().extension() == ".safetensors") found.push_back(entry.path().string());
    }
    if (found.empty()) return Status(StatusCode::kNotFound, path + " has no *.safetensors file");
    std::sort(found.begin(), found.end());
    out.insert(out.end(), found.begin(), found.end());
  }
  return out;
}

GoldenResult run_golden_file(const std::string& path) {
  const std::string name = fs::path(path).stem().string();
  GoldenResult failed;
  failed.result.file = name;
  auto reader = SafetensorsReader::open(path);
  if (!reader) {
    failed.result.detail = reader.status().message();
    return failed;
  }
  try {
    GoldenFile file(std::move(reader).value());
    return run_open_file(file, name);
  } catch (const std::exception& error) {  // JSON of another shape, or a missing tensor
    failed.result.detail = path + ": " + error.what();
    return failed;
  }
}

}  // namespace optlease
