#include "launcher/config_file.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

#include "launcher/config_check.h"
#include "launcher/config_value.h"
#include "launcher/model_tensors.h"
#include "launcher/run_plan.h"

namespace optlease {
namespace {

constexpr uint64_t kFileBytesMax = 256u << 20;

Result<std::string> read_text(const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return Status(StatusCode::kInvalidArgument, path + " is a directory, not a job file");
  }
  if (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error)) {
    return Status(StatusCode::kInvalidArgument, path + " is no regular file");
  }
  if (const auto bytes = std::filesystem::file_size(path, error); !error && bytes > kFileBytesMax) {
    return Status(StatusCode::kInvalidArgument,
                  format("%s has %llu bytes: no job file is larger than %llu", path.c_str(),
                         static_cast<unsigned long long>(bytes),
                         static_cast<unsigned long long>(kFileBytesMax)));
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (file && !file.bad()) return text.str();
  const int code = errno;
  const std::string message = "job file " + path + " cannot be read: " + std::strerror(code);
  // Not NotFound: that word is kept for jobs and their state.
  return Status(StatusCode::kIo, message);
}

// The place of "section.key", or of "section.2.key" in an array: the nearest thing that the
// document has on the way there.
std::string place_of(const std::string& file, const ConfigValue& root, const std::string& key) {
  const ConfigValue* at = &root;
  std::istringstream words(key);
  for (std::string word; std::getline(words, word, '.');) {
    const ConfigValue* next = at->find(word);
    if (next == nullptr && at->kind == ValueKind::kArray) {
      size_t index = 0;
      const auto parsed = std::from_chars(word.data(), word.data() + word.size(), index);
      if (parsed.ec == std::errc() && index < at->items.size()) next = &at->items[index];
    }
    if (next == nullptr) break;
    at = next;
  }
  return at == &root ? file + ":1:1" : at->place;
}

// What no job can be made of is refused like any other value, at its place.
void check_plan(const std::string& file, const ConfigValue& root, const Config& config,
                std::vector<ConfigError>* errors) {
  if (!errors->empty()) return;
  auto problem = why_no_plan(config);
  if (!problem) return;
  // A plain shape is one parameter that the document has no table of.
  if (root.find("model") != nullptr && root.find("model")->find("elements") != nullptr &&
      problem->key.starts_with("model.")) {
    problem->key = "model.elements";
  }
  problem->place = place_of(file, root, problem->key);
  errors->push_back(std::move(*problem));
}

// model.parameters = N is the plain shape, model.elements, in another word. `replace`: an override
// counts whatever stood there before; in a file that gives both, each is left to be refused.
void take_plain_shape(bool replace, ConfigValue* root) {
  for (ConfigMember& section : root->members) {
    if (section.key != "model" || section.value.kind != ValueKind::kTable) continue;
    std::vector<ConfigMember>& keys = section.value.members;
    const auto key_is = [](const char* key) {
      return [key](const ConfigMember& member) { return member.key == key; };
    };
    const auto plain = std::find_if(keys.begin(), keys.end(), key_is("parameters"));
    if (plain == keys.end() || plain->value.kind != ValueKind::kInteger) return;
    if (!replace && std::any_of(keys.begin(), keys.end(), key_is("elements"))) return;
    plain->key = "elements";
    ConfigMember taken = std::move(*plain);
    keys.erase(plain);
    std::erase_if(keys, key_is("elements"));
    keys.push_back(std::move(taken));
    return;
  }
}

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto at = [&](size_t k) { return static_cast<unsigned char>(text[k]); };
    const unsigned lead = at(i);
    const size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if ((lead >= 0x80 && lead < 0xC2) || lead > 0xF4 || length > text.size() - i) return false;
    for (size_t k = 1; k < length; ++k) {
      if ((at(i + k) & 0xC0u) != 0x80u) return false;
    }
    const unsigned next = length > 1 ? at(i + 1) : 0;  // no longer form, surrogate or too large one
    if ((lead == 0xE0 && next < 0xA0) || (lead == 0xED && next > 0x9F) ||
        (lead == 0xF0 && next < 0x90) || (lead == 0xF4 && next > 0x8F)) {
      return false;
    }
    i += length;
  }
  return true;
}

// A plan is JSON, and that is UTF-8: so is a job file, but its folder may be called anything.
void check_paths(const std::string& file, const ConfigValue& root, const Config& config,
                 std::vector<ConfigError>* errors) {
  const auto check = [&](const char* key, const std::string& text) {
    if (is_utf8(text)) return;
    errors->push_back({place_of(file, root, key), key,
                       "the job file's folder, which is put in here, has a name that is no UTF-8: "
                       "rename it, or move the job file"});
  };
  check("model.source", config.model_source);
  check("gradients.replay_path", config.gradients.replay_path);
  for (const std::string& word : config.trainer.command) check("trainer.command", word);
}

bool parse_document(const std::string& text, const std::string& file, const std::string& directory,
                    const std::vector<std::string>& overrides, ConfigValue* root, Config* config,
                    std::vector<ConfigError>* errors) {
  if (!parse_toml(text, file, root, errors)) return false;
  take_plain_shape(false, root);
  for (const std::string& entry : overrides) {
    apply_override(entry, root, errors);
    take_plain_shape(true, root);
  }
  check_against_schema(file, root, errors);
  bind_config(*root, directory, config);
  check_rules(file, *root, *config, errors);
  check_paths(file, *root, *config, errors);
  return errors->empty();
}

}  // namespace

bool cuda_is_built_in() {
#ifdef OPTLEASE_HAVE_CUDA
  return true;
#else
  return false;
#endif
}

std::string text_of(const std::vector<ConfigError>& errors) {
  std::string text;
  for (const ConfigError& error : errors) {
    if (!text.empty()) text += '\n';
    text += error.place + ": " + (error.key.empty() ? "" : error.key + ": ") + error.text;
  }
  return text;
}

bool parse_config(const std::string& text, const std::string& file, const std::string& directory,
                  const std::vector<std::string>& overrides, Config* config,
                  std::vector<ConfigError>* errors) {
  ConfigValue root;
  parse_document(text, file, directory, overrides, &root, config, errors);
  if (config->model_source.empty()) check_plan(file, root, *config, errors);
  return errors->empty();
}

Result<LoadedConfig> load_config(const std::string& path,
                                 const std::vector<std::string>& overrides) {
  const Result<std::string> text = read_text(path);
  if (!text.is_ok()) return text.status();
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (error) return Status(StatusCode::kIo, path + ": " + error.message());

  LoadedConfig loaded;
  loaded.path = path;
  loaded.overrides = overrides;
  std::vector<ConfigError> errors;
  ConfigValue root;
  const std::string directory = absolute.lexically_normal().parent_path().string();
  if (parse_document(text.value(), path, directory, overrides, &root, &loaded.config, &errors) &&
      !loaded.config.model_source.empty()) {
    take_model_tensors(place_of(path, root, "model.source"), &loaded.config, &errors);
  }
  check_plan(path, root, loaded.config, &errors);
  loaded.replay_place = place_of(path, root, "gradients.replay_path");
  if (!errors.empty()) return Status(StatusCode::kInvalidArgument, text_of(errors));
  return loaded;
}

}  // namespace optlease
