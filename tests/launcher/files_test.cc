// Files that the launcher writes: whole or not at all, and never in the place of something else.
#include "launcher/files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temp_directory.h"

namespace optlease {
namespace {

using testing_support::TempDirectory;

std::string text_of(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Files, AreReplacedWholeAndLeaveNoTemporary) {
  TempDirectory directory;
  const std::string path = directory.path() + "/report.json";
  ASSERT_TRUE(write_file_atomically(path, "one").is_ok());
  ASSERT_TRUE(write_file_atomically(path, "two").is_ok());
  EXPECT_EQ(text_of(path), "two");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 1);
}

TEST(Files, APipeIsWrittenIntoAndStaysAPipe) {
  TempDirectory directory;
  const std::string path = directory.path() + "/pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  std::fstream keep_open(path, std::ios::in | std::ios::out);
  ASSERT_TRUE(write_file_atomically(path, "line\n").is_ok());
  std::string line;
  std::getline(keep_open, line);
  EXPECT_EQ(line, "line");
  struct stat found {};
  ASSERT_EQ(lstat(path.c_str(), &found), 0);
  EXPECT_TRUE(S_ISFIFO(found.st_mode)) << "a rename has put a file in its place";
}

TEST(Files, ALinkStaysALinkAndADirectoryIsRefused) {
  TempDirectory directory;
  const std::string target = directory.path() + "/target";
  const std::string link = directory.path() + "/link";
  std::ofstream(target) << "old";
  std::filesystem::create_symlink(target, link);
  ASSERT_TRUE(write_file_atomically(link, "new").is_ok());
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_EQ(text_of(target), "new");
  EXPECT_EQ(write_file_atomically(directory.path(), "x").code(), StatusCode::kInvalidArgument);
}

// What check_writable says before the work is what the writer finds after it.
TEST(Files, CheckWritableForetellsTheWriterAndLeavesNothing) {
  TempDirectory directory, elsewhere;
  const std::string target = elsewhere.path() + "/target";
  const std::string link = directory.path() + "/link";
  std::ofstream(target) << "old";
  std::filesystem::create_symlink(target, link);
  const std::vector<std::string> names = {
      link,        target,           directory.path() + "/new",
      "/dev/null", directory.path(), directory.path() + "/absent/new"};
  for (const std::string& name : names) {
    const Status said = check_writable(name);
    EXPECT_EQ(text_of(target), "old") << name;
    EXPECT_EQ(said.code(), write_file_atomically(name, "x").code()) << name;
    std::ofstream(target) << "old";
  }
  size_t entries = 0;
  for (const auto& entry : std::filesystem::directory_iterator(directory.path())) {
    EXPECT_EQ(entry.path().string().find(".tmp"), std::string::npos) << entry.path();
    ++entries;
  }
  EXPECT_EQ(entries, 2u) << "the link, and what was written";
  const std::string dangling = directory.path() + "/dangling";
  std::filesystem::create_symlink(elsewhere.path() + "/nothing", dangling);
  EXPECT_EQ(check_writable(dangling).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(write_file_atomically(dangling, "x").code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(std::filesystem::is_symlink(dangling));
}

}  // namespace
}  // namespace optlease
