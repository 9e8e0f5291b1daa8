// docs/TESTING.md and docs/THREATS.md name tests: every one of them is there.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <utility>

namespace {

namespace fs = std::filesystem;
const fs::path kRoot = OPTLEASE_SOURCE_DIR;
const std::string kEllipsis = "\xe2\x80\xa6";

std::string read(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Suite and name of every test of the tree.
std::set<std::pair<std::string, std::string>> all_tests() {
  const std::regex test("TEST(?:_F|_P)?\\(\\s*(\\w+),\\s*(\\w+)\\s*\\)");
  std::set<std::pair<std::string, std::string>> found;
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "tests")) {
    if (entry.path().extension() != ".cc") continue;
    const std::string text = read(entry.path());
    for (std::sregex_iterator at(text.begin(), text.end(), test), end; at != end; ++at) {
      found.emplace((*at)[1], (*at)[2]);
    }
  }
  return found;
}

// `name` may end in an ellipsis or be "*"; no suite: any.
bool is_there(const std::set<std::pair<std::string, std::string>>& tests, const std::string& suite,
              std::string name) {
  const bool is_beginning = name.ends_with(kEllipsis);
  if (is_beginning) name.resize(name.size() - kEllipsis.size());
  for (const auto& [a, b] : tests) {
    if (!suite.empty() && a != suite) continue;
    if (name == "*" || b == name || (is_beginning && b.starts_with(name))) return true;
  }
  return false;
}

TEST(Pages, EveryTestThatThePagesNameIsThere) {
  const auto tests = all_tests();
  ASSERT_GT(tests.size(), 500u);
  ASSERT_FALSE(is_there(tests, "Pages", "SomethingThatIsNot" + kEllipsis));
  const std::string text = read(kRoot / "docs/TESTING.md") + read(kRoot / "docs/THREATS.md");
  // `Suite.Name`, `Suite.Begin...`, `Suite.*`, and `...Name` after another of the same suite.
  const std::regex named("`(?:([A-Z]\\w+)\\.|" + kEllipsis + ")((?:[A-Z]\\w*(?:" + kEllipsis +
                         ")?|\\*))`");
  int names = 0;
  for (std::sregex_iterator at(text.begin(), text.end(), named), end; at != end; ++at) {
    ++names;
    EXPECT_TRUE(is_there(tests, (*at)[1], (*at)[2])) << (*at)[0];
  }
  EXPECT_GT(names, 80) << "the page or its form has changed";
}

// Names of the KILL_POINT lines of the source.
std::set<std::string> kill_points_of_source() {
  const std::regex point("KILL_POINT\\(\"([\\w.]+)\"\\)");
  std::set<std::string> points;
  for (const char* top : {"shm", "kernels", "actors", "launcher"}) {
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / top)) {
      if (entry.path().extension() != ".cc") continue;
      const std::string text = read(entry.path());
      for (std::sregex_iterator at(text.begin(), text.end(), point), end; at != end; ++at) {
        points.insert((*at)[1]);
      }
    }
  }
  return points;
}

// A place to die at that no test dies at is no test: the soak kills at each row of its table.
TEST(Pages, EveryKillPointIsInTheTableOfTheSoakAndTheTableHasNoOther) {
  const std::set<std::string> points = kill_points_of_source();
  EXPECT_GT(points.size(), 100u);
  const std::string text = read(kRoot / "tests/soak/kill_points.cc");
  const std::regex row("\\{\"([\\w.]+)\",\\s*\"[^\"]+\",\\s*Who::");
  std::set<std::string> rows;
  for (std::sregex_iterator at(text.begin(), text.end(), row), end; at != end; ++at) {
    rows.insert((*at)[1]);
  }
  for (const std::string& point : points) EXPECT_TRUE(rows.contains(point)) << point;
  for (const std::string& name : rows) EXPECT_TRUE(points.contains(name)) << name;
}

// Where a row names another test than the soak, that test kills at the point.
TEST(Pages, AKillPointThatTheSoakLeavesToAnotherTestIsNamedThere) {
  const std::string table = read(kRoot / "tests/soak/kill_points.cc");
  const std::regex elsewhere(
      "\\{\"([\\w.]+)\",[^}]*When::kElsewhere,\\s*Need::\\w+,\\s*\"(\\w+)\"\\}");
  int rows = 0;
  for (std::sregex_iterator at(table.begin(), table.end(), elsewhere), end; at != end; ++at) {
    ++rows;
    bool named = false;
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / "tests")) {
      if (entry.path().extension() != ".cc" || entry.path().filename() == "kill_points.cc")
        continue;
      const std::string text = read(entry.path());
      if (text.find("(" + (*at)[2].str() + ",") == std::string::npos) continue;
      named = named || text.find("\"" + (*at)[1].str()) != std::string::npos;
    }
    EXPECT_TRUE(named) << (*at)[1] << " in " << (*at)[2];
  }
  EXPECT_GT(rows, 0);
}

TEST(Pages, EveryFileThatThePagesNameIsThere) {
  const std::string text = read(kRoot / "docs/TESTING.md") + read(kRoot / "docs/THREATS.md");
  const std::regex path("(?:^|[^/\\w])((?:tests|docs|configs|launcher|actors|shm)/[\\w./-]*\\w)");
  int paths = 0;
  for (std::sregex_iterator at(text.begin(), text.end(), path), end; at != end; ++at) {
    ++paths;
    EXPECT_TRUE(fs::exists(kRoot / (*at)[1].str())) << (*at)[1];
  }
  EXPECT_GT(paths, 10);
}

}  // namespace
