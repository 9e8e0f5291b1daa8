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

}  // namespace
}  // namespace optlease
