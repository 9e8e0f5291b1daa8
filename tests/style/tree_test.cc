// Rules about the tree itself: which layer may include which, sizes, and words that must not
// appear. No exceptions list: what breaks a rule is changed, not excused.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;
const fs::path kRoot = OPTLEASE_SOURCE_DIR;

std::vector<fs::path> files_with(const std::set<std::string>& extensions) {
  std::vector<fs::path> found;
  for (const char* top :
       {"shm", "kernels", "actors", "launcher", "configs", "tests", "docs", "cmake", ".ci"}) {
    if (!fs::exists(kRoot / top)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / top)) {
      if (entry.is_regular_file() && extensions.contains(entry.path().extension())) {
        found.push_back(entry.path());
      }
    }
  }
  return found;
}

std::vector<fs::path> code_files() { return files_with({".h", ".cc", ".c", ".cu", ".cuh"}); }

std::vector<std::string> lines_of(const fs::path& path) {
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string in_tree(const fs::path& path) { return fs::relative(path, kRoot).string(); }

// The layer of a file or include path; empty for what is no layer of ours.
std::string layer_of(const std::string& path) {
  static const std::vector<std::string> kLayers = {"shm/contract",
                                                   "shm",
                                                   "kernels",
                                                   "actors/wire",
                                                   "actors/tensor_files",
                                                   "actors/device_memory",
                                                   "actors/runtime",
                                                   "actors/host_store",
                                                   "actors/gpu_actor",
                                                   "actors/client",
                                                   "actors/monitor",
                                                   "actors/trainer",
                                                   "launcher"};
  for (const std::string& layer : kLayers) {
    if (path.starts_with(layer + "/")) return layer;
  }
  return {};
}

// What each layer may include besides itself: the arrows of docs/ARCHITECTURE.md.
const std::map<std::string, std::set<std::string>> kBelow = {
    {"shm/contract", {}},
    {"shm", {"shm/contract"}},
    {"kernels", {"shm/contract"}},
    {"actors/wire", {"shm/contract"}},
    {"actors/tensor_files", {"shm/contract"}},
    {"actors/device_memory", {"shm/contract", "shm"}},
    {"actors/runtime", {"shm/contract", "shm", "kernels", "actors/wire", "actors/tensor_files"}},
    {"actors/host_store", {"shm/contract", "shm", "kernels", "actors/wire", "actors/runtime"}},
    {"actors/gpu_actor",
     {"shm/contract", "shm", "kernels", "actors/wire", "actors/tensor_files",
      "actors/device_memory", "actors/runtime"}},
    {"actors/client",
     {"shm/contract", "shm", "actors/wire", "actors/device_memory", "actors/runtime"}},
    {"actors/monitor", {"shm/contract", "actors/wire", "actors/runtime"}},
    // The trainer is a user of the C ABI, of number formats and of copies from and to a GPU.
    {"actors/trainer", {"actors/client", "actors/device_memory", "shm/contract", "kernels"}},
    {"launcher",
     {"shm/contract", "shm", "kernels", "actors/wire", "actors/tensor_files", "actors/runtime"}},
};

TEST(Tree, IncludesPointDown) {
  const std::regex include("^\\s*#\\s*include\\s+\"([^\"]+)\"");
  int seen = 0;
  for (const fs::path& path : code_files()) {
    const std::string layer = layer_of(in_tree(path));
    if (layer.empty()) continue;
    for (const std::string& line : lines_of(path)) {
      std::smatch match;
      if (!std::regex_search(line, match, include)) continue;
      ++seen;
      const std::string target = layer_of(match[1].str());
      EXPECT_FALSE(target.empty())
          << in_tree(path) << " includes " << match[1] << ": write it from the root";
      EXPECT_TRUE(target == layer || kBelow.at(layer).contains(target))
          << in_tree(path) << " includes " << match[1] << ": the arrow runs up";
    }
  }
  EXPECT_GT(seen, 100) << "the test did not find the tree at " << kRoot;
}

TEST(Tree, TheContractNeedsOnlyTheStandardLibrary) {
  const std::regex angled("^\\s*#\\s*include\\s+<([^>]+)>");
  for (const fs::path& path : code_files()) {
    if (layer_of(in_tree(path)) != "shm/contract") continue;
    for (const std::string& line : lines_of(path)) {
      std::smatch match;
      if (!std::regex_search(line, match, angled)) continue;
      EXPECT_EQ(match[1].str().find_first_of("/."), std::string::npos)
          << in_tree(path) << " includes <" << match[1] << ">";
    }
  }
}

TEST(Tree, EachWrappedLibraryIsIncludedInOnePlace) {
  const std::map<std::string, std::string> homes = {{"boost/interprocess", "shm/segment"},
                                                    {"zmq", "actors/wire/socket"},
                                                    {"gloo/", "actors/gpu_actor/gloo_"},
                                                    {"nccl.h", "actors/gpu_actor/nccl_"},
                                                    {"spdlog", "actors/runtime/log"}};
  for (const fs::path& path : code_files()) {
    const std::string name = in_tree(path);
    if (layer_of(name).empty()) continue;
    for (const std::string& line : lines_of(path)) {
      for (const auto& [library, home] : homes) {
        if (line.starts_with("#include <" + library)) {
          EXPECT_TRUE(name.starts_with(home))
              << name << " includes " << library << ", which belongs to " << home;
        }
      }
    }
  }
}

TEST(Tree, FilesHaveAtMost400LinesOf100Columns) {
  std::vector<fs::path> files = files_with({".sh", ".py", ".cmake"});
  const size_t scripts = files.size();
  EXPECT_GT(scripts, 10u) << "the scripts were not found";
  for (const fs::path& path : files_with({".txt"})) {
    if (path.filename() == "CMakeLists.txt") files.push_back(path);
  }
  for (const fs::path& path : code_files()) files.push_back(path);
  for (const fs::path& path : files) {
    const auto lines = lines_of(path);
    EXPECT_LE(lines.size(), 400u) << in_tree(path);
    for (size_t i = 0; i < lines.size(); ++i) {
      size_t columns = 0;
      for (unsigned char c : lines[i]) columns += (c & 0xc0) != 0x80 ? 1 : 0;
      EXPECT_LE(columns, 100u) << in_tree(path) << ":" << i + 1;
    }
  }
}

// Functions at namespace level: from the line that opens the body to the closing brace in column 0;
// and those in a class at namespace level, two columns further in.
TEST(Tree, FunctionsHaveAtMost70Lines) {
  const std::regex opens("^[^ #/}].*\\{$");
  const std::regex no_function(
      "^(namespace|extern|struct|class|enum|union|const|constexpr|inline constexpr|static "
      "const|typedef)\\b");
  for (const fs::path& path : code_files()) {
    const auto lines = lines_of(path);
    for (size_t i = 0; i < lines.size(); ++i) {
      const bool body = std::regex_search(lines[i], opens) ||
                        (lines[i].starts_with("    ") && lines[i].ends_with(") {") && i > 0 &&
                         !lines[i - 1].starts_with("  ") && !lines[i - 1].empty());
      if (!body ||
          (std::regex_search(lines[i], no_function) && lines[i].find('(') == std::string::npos))
        continue;
      size_t end = i;
      while (end < lines.size() && !lines[end].starts_with("}")) ++end;
      EXPECT_LE(end - i + 1, 70u) << in_tree(path) << ":" << i + 1 << ": " << lines[i];
    }
    for (size_t i = 0; i < lines.size(); ++i) {
      if (!std::regex_search(lines[i], std::regex("^  [^ #/}].*[)a-z] \\{$"))) continue;
      size_t end = i;
      while (end < lines.size() && !lines[end].starts_with("  }") && lines[end] != "}") ++end;
      EXPECT_LE(end - i + 1, 70u) << in_tree(path) << ":" << i + 1 << ": " << lines[i];
    }
  }
}

TEST(Tree, NoFileNamesAPlaceThatUsersDoNotHave) {
  // Written in pieces so that this file passes its own test.
  const std::vector<std::string> words = {std::string("/wo") + "rk/", std::string("../sha") + "red",
                                          std::string("/ro") + "ot/", std::string("/fa") + "rm/"};
  auto files =
      files_with({".h", ".cc", ".c", ".cu", ".md", ".sh", ".toml", ".txt", ".cmake", ".py"});
  files.push_back(kRoot / "README.md");
  files.push_back(kRoot / "CMakeLists.txt");
  for (const fs::path& path : files) {
    const auto lines = lines_of(path);
    EXPECT_FALSE(lines.empty()) << in_tree(path) << " is empty or missing";
    for (size_t i = 0; i < lines.size(); ++i) {
      for (const std::string& word : words) {
        EXPECT_EQ(lines[i].find(word), std::string::npos)
            << in_tree(path) << ":" << i + 1 << " names " << word;
      }
    }
  }
}

// The example trainer alone knows nothing but the C interface, which does so where it attaches.
TEST(Tree, EveryProgramPreparesItsDescriptorsFirst) {
  size_t programs = 0;
  for (const fs::path& path : code_files()) {
    const std::string layer = layer_of(in_tree(path));
    if (layer.empty() || layer == "actors/trainer") continue;
    const std::vector<std::string> lines = lines_of(path);
    for (size_t i = 0; i + 1 < lines.size(); ++i) {
      if (!lines[i].starts_with("int main(")) continue;
      ++programs;
      EXPECT_NE(lines[i + 1].find("prepare_descriptors();"), std::string::npos) << in_tree(path);
    }
  }
  EXPECT_GE(programs, 5u) << "the programs were not found";
}

// Pages are part of the product: what they link to is there, and nothing is left to be filled in.
TEST(Tree, EveryRelativeLinkOfAPageResolves) {
  auto pages = files_with({".md"});
  pages.push_back(kRoot / "README.md");
  const std::regex link("\\]\\(([^)#:]+)(#[^)]*)?\\)");
  int links = 0;
  for (const fs::path& page : pages) {
    for (const std::string& line : lines_of(page)) {
      EXPECT_EQ(line.find(std::string("@") + "@"), std::string::npos)
          << in_tree(page) << ": " << line;
      for (std::sregex_iterator at(line.begin(), line.end(), link), end; at != end; ++at) {
        ++links;
        const fs::path target = page.parent_path() / (*at)[1].str();
        EXPECT_TRUE(fs::exists(target)) << in_tree(page) << " links to " << (*at)[1];
      }
    }
  }
  EXPECT_GT(links, 5);
}

}  // namespace
