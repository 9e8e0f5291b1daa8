// JobPlan <-> JSON text. The keys are in job_plan_fields.h; here is how each type of value is
// written and read, and what a plan must hold before a process trusts it.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <type_traits>
#include <utility>

#include "actors/runtime/job_plan.h"
#include "actors/runtime/job_plan_fields.h"
#include "shm/eintr.h"
#include "shm/shared_buffer.h"

namespace optlease {
namespace {

using Json = nlohmann::ordered_json;

bool parse_name(const std::string& text, DType* out) { return parse_dtype(text, out); }
bool parse_name(const std::string& text, MainForm* out) { return parse_main_form(text, out); }
bool parse_name(const std::string& text, Rule* out) {
  for (const Rule rule : {Rule::kAdamW, Rule::kAdam}) {
    if (text != name_of(rule)) continue;
    *out = rule;
    return true;
  }
  return false;
}
bool parse_name(const std::string& text, auto* out) { return parse(text, out); }

template <class T>
constexpr bool kIsVector = false;
template <class T>
constexpr bool kIsVector<std::vector<T>> = true;

class Writer {
 public:
  template <class T>
  void operator()(const char* key, const T& value) {
    object_[key] = json_of(value);
  }
  // A member that holds an enum's number and is written as its name.
  template <class Enum>
  void enumeration(const char* key, uint32_t value) {
    (*this)(key, static_cast<Enum>(value));
  }

  template <class T>
  static Json json_of(const T& value) {
    if constexpr (std::is_same_v<T, Rank>) {
      return value.value;
    } else if constexpr (std::is_enum_v<T>) {
      return name_of(value);
    } else if constexpr (std::is_same_v<T, double>) {
      OPTLEASE_CHECK(std::isfinite(value), "a job plan holds the number %g, which JSON has not",
                     value);
      return value;  // written as the shortest text that reads back as the same double
    } else if constexpr (kIsVector<T>) {
      Json array = Json::array();
      for (const auto& element : value) array.push_back(json_of(element));
      return array;
    } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
      return value;
    } else {
      Writer writer;
      job_plan_fields::fields(writer, value);
      return std::move(writer.object_);
    }
  }

 private:
  Json object_ = Json::object();
};

// Reads one object; the first broken rule stays in *error with the path of its place.
class Reader {
 public:
  Reader(const Json& object, const std::string& path, std::string* error)
      : object_(object), path_(path), error_(error) {}

  template <class T>
  void operator()(const char* key, T& out) {
    if (!error_->empty()) return;
    keys_.insert(key);
    const auto found = object_.find(key);
    const std::string path = path_.empty() ? key : path_ + "." + key;
    if (found == object_.end()) return fail(path, "is missing");
    read(*found, path, out);
  }

  template <class Enum>
  void enumeration(const char* key, uint32_t& out) {
    Enum value{};
    (*this)(key, value);
    out = static_cast<uint32_t>(value);
  }

  template <class T>
  void read(const Json& json, const std::string& path, T& out) {
    if (!error_->empty()) return;
    if constexpr (std::is_same_v<T, Rank>) {
      read(json, path, out.value);
    } else if constexpr (std::is_enum_v<T>) {
      read_enum(json, path, out);
    } else if constexpr (std::is_same_v<T, bool>) {
      if (!json.is_boolean()) return fail(path, "is not true or false");
      out = json.get<bool>();
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (!json.is_string()) return fail(path, "is not a string");
      out = json.get<std::string>();
    } else if constexpr (std::is_same_v<T, double>) {
      if (!json.is_number()) return fail(path, "is not a number");
      out = json.get<double>();
    } else if constexpr (std::is_integral_v<T>) {
      read_integer(json, path, out);
    } else if constexpr (kIsVector<T>) {
      read_array(json, path, out);
    } else {
      read_object(json, path, out);
    }
  }

 private:
  void fail(const std::string& path, const std::string& rule) {
    if (error_->empty()) *error_ = "'" + path + "' " + rule;
  }
  template <class T>
  void read_enum(const Json& json, const std::string& path, T& out) {
    if (!json.is_string()) return fail(path, "is not a string");
    const auto text = json.get<std::string>();
    if (!parse_name(text, &out)) fail(path, "has the unknown value '" + text + "'");
  }
  template <class T>
  void read_integer(const Json& json, const std::string& path, T& out) {
    if (!json.is_number_integer()) return fail(path, "is not a whole number");
    const bool fits = json.is_number_unsigned() ? std::in_range<T>(json.get<uint64_t>())
                                                : std::in_range<T>(json.get<int64_t>());
    if (!fits) return fail(path, "is out of range: " + json.dump());
    out = json.is_number_unsigned() ? static_cast<T>(json.get<uint64_t>())
                                    : static_cast<T>(json.get<int64_t>());
  }
  template <class T>
  void read_array(const Json& json, const std::string& path, T& out) {
    if (!json.is_array()) return fail(path, "is not an array");
    out.clear();
    out.reserve(json.size());
    for (const Json& element : json) {
      if (!error_->empty()) return;
      out.emplace_back();
      read(element, path + "[" + std::to_string(out.size() - 1) + "]", out.back());
    }
  }
  template <class T>
  void read_object(const Json& json, const std::string& path, T& out) {
    if (!json.is_object()) return fail(path.empty() ? "the job plan" : path, "is not an object");
    Reader reader(json, path, error_);
    job_plan_fields::fields(reader, out);
    if (!error_->empty()) return;
    for (const auto& item : json.items()) {
      if (!reader.keys_.contains(item.key())) {
        return fail(path.empty() ? item.key() : path + "." + item.key(), "is unknown");
      }
    }
  }

  const Json& object_;
  const std::string path_;
  std::string* const error_;
  std::set<std::string> keys_;
};

// Repeated keys would silently lose all but one value, so the parser looks for them.
class RepeatedKeys {
 public:
  bool operator()(int /*depth*/, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) {
      open_objects_.emplace_back();
    } else if (event == Json::parse_event_t::object_end) {
      open_objects_.pop_back();
    } else if (event == Json::parse_event_t::key) {
      auto key = parsed.get<std::string>();
      if (!open_objects_.back().insert(key).second) found_ = std::move(key);
    }
    return true;
  }
  const std::string& found() const { return found_; }

 private:
  std::vector<std::set<std::string>> open_objects_;
  std::string found_;
};

// What a child relies on without looking again. Whether the plan is wise was the launcher's
// business.
std::string why_invalid(const JobPlan& plan) {
  if (std::string rule = why_invalid(plan.segment); !rule.empty()) return rule;
  if (std::string rule = why_not_laid_out(plan.segment); !rule.empty()) return rule;
  if (plan.steps < 0 || plan.steps > kStepMax) return "'steps' is out of range";
  const auto& spaces = plan.segment.spaces;
  for (const GroupParams& group : plan.optimizer.groups) {
    if (const char* rule = why_invalid(group)) return rule;
  }
  for (const SpaceSpec& space : spaces) {
    if (space.group >= plan.optimizer.groups.size()) {
      return "space '" + space.name + "' names an optimizer group that is not there";
    }
  }
  if (!plan.model.init.empty() && plan.model.init.size() != spaces.size()) {
    return "'model.init' has not one entry a space";
  }
  for (size_t i = 0; i < plan.model.init.size(); ++i) {
    if (plan.model.init[i].size() != spaces[i].tensors.size()) {
      return "'model.init' has not one entry a tensor of space '" + spaces[i].name + "'";
    }
  }
  for (const Rehearsal& rehearsal : plan.rehearsals) {
    if (std::max(rehearsal.rank, rehearsal.at_rank) >= plan.segment.world_size) {
      return "a rehearsal names a rank past world_size";
    }
  }
  if (!plan.numa.nodes.empty() && plan.numa.nodes.size() != plan.segment.world_size) {
    return "'numa.nodes' has not one entry a rank";
  }
  if (plan.staging_buffers == 0) return "'staging_buffers' is 0";
  return {};
}

Status invalid(const std::string& rule) {
  return Status(StatusCode::kInvalidArgument, "the job plan is invalid: " + rule);
}

}  // namespace

std::string to_json(const JobPlan& plan) {
  try {
    return Writer::json_of(plan).dump(1) + "\n";
  } catch (const Json::exception& error) {  // a string that is no UTF-8
    OPTLEASE_CHECK(false, "a job plan cannot be written: %s", error.what());
  }
}

Result<JobPlan> job_plan_from_json(const std::string& text) {
  RepeatedKeys repeated;
  Json json;
  try {
    json = Json::parse(text, [&](int depth, Json::parse_event_t event, Json& parsed) {
      return repeated(depth, event, parsed);
    });
  } catch (const Json::exception& error) {
    return invalid(error.what());
  }
  if (!repeated.found().empty()) return invalid("'" + repeated.found() + "' is there twice");
  JobPlan plan;
  std::string error;
  Reader(json, "", &error).read(json, "", plan);
  if (error.empty()) error = why_invalid(plan);
  if (!error.empty()) return invalid(error);
  return plan;
}

Result<JobPlan> read_job_plan(const std::string& path) {
  // Not waiting for a writer: a FIFO may have been put in its place.
  const UniqueFd file(
      retry_eintr([&] { return ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC); }));
  if (!file) {
    return Status(StatusCode::kNotFound,
                  "the job plan " + path + " cannot be opened; does the job run?");
  }
  struct stat info {};
  if (::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return Status(StatusCode::kIo, "the job plan " + path + " is no regular file");
  }
  std::string text;
  for (std::array<char, 65536> buffer{};;) {
    const ssize_t got =
        retry_eintr([&] { return ::read(file.get(), buffer.data(), buffer.size()); });
    if (got < 0) return Status(StatusCode::kIo, "the job plan " + path + " cannot be read");
    if (got == 0) break;
    text.append(buffer.data(), static_cast<size_t>(got));
  }
  Result<JobPlan> plan = job_plan_from_json(text);
  if (plan) return plan;
  return Status(plan.status().code(), path + ": " + plan.status().message());
}

}  // namespace optlease
