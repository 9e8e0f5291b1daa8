// Files that the launcher writes: whole or not at all, and never in the place of something else.
#include "launcher/files.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

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

// The name of the unfinished file can be foreseen: what lies there is neither written into nor what
// the finished file is made of.
TEST(Files, WhatLiesUnderTheTemporaryNameIsNotWrittenInto) {
  TempDirectory directory;
  const std::string path = directory.path() + "/report.json";
  const std::string temporary = path + "." + std::to_string(getpid()) + ".tmp";
  const std::string precious = directory.path() + "/precious";
  std::ofstream(precious) << "old";
  for (const bool hard : {true, false}) {
    if (hard) {
      std::filesystem::create_hard_link(precious, temporary);
    } else {
      std::filesystem::create_symlink(precious, temporary);
    }
    ASSERT_TRUE(check_writable(path).is_ok());
    EXPECT_EQ(text_of(precious), "old");
    ASSERT_TRUE(write_file_atomically(path, "new").is_ok());
    EXPECT_EQ(text_of(path), "new");
    EXPECT_EQ(text_of(precious), "old");
    EXPECT_EQ(std::filesystem::hard_link_count(path), 1u);
  }
}

TEST(Files, AnothersFileUnderTheTemporaryNameEndsInWordsAndIsNoReport) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  TempDirectory directory;
  ASSERT_EQ(chmod(directory.path().c_str(), 01777), 0);
  const std::string path = directory.path() + "/report.json";
  const pid_t child = fork();
  if (child == 0) {
    // Root's file, open to all, under the name that the other user's process will take.
    const std::string temporary = path + "." + std::to_string(getpid()) + ".tmp";
    std::ofstream(temporary) << "theirs";
    if (chmod(temporary.c_str(), 0666) != 0 || setuid(65534) != 0) _exit(99);
    const Status status = write_file_atomically(path, "ours");
    const bool in_words = status.message().find(temporary) != std::string::npos;
    _exit(!status.is_ok() && in_words && text_of(temporary) == "theirs" ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_FALSE(std::filesystem::exists(path));
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

TEST(Files, APipeThatNobodyReadsAndASocketEndInWords) {
  TempDirectory directory;
  const std::string pipe = directory.path() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const Status written = write_file_atomically(pipe, "line\n");
  EXPECT_EQ(written.code(), StatusCode::kTimeout);
  EXPECT_NE(written.message().find("nobody reads"), std::string::npos) << written.text();
  const std::string path = directory.path() + "/socket";
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path, sizeof address.sun_path, "%s", path.c_str());
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(check_writable(path).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(write_file_atomically(path, "x").code(), StatusCode::kInvalidArgument);
  close(listener);
}

TEST(Files, APipeThatNobodyWritesEndsInWordsAndOneThatIsWrittenLateIsRead) {
  TempDirectory directory;
  const std::string path = directory.path() + "/pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  const Status nobody = read_whole_file(path, 100).status();
  EXPECT_EQ(nobody.code(), StatusCode::kTimeout);
  EXPECT_NE(nobody.message().find(path), std::string::npos) << nobody.text();
  const pid_t child = fork();
  if (child == 0) {
    std::ofstream(path) << "late";  // opens once somebody reads
    _exit(0);
  }
  const auto text = read_whole_file(path, 100);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  ASSERT_TRUE(text.is_ok()) << text.status().text();
  EXPECT_EQ(text.value(), "late");
}

// As `compare <(command)` has it.
TEST(Files, APipeIsReadAsLongAsSomethingComesAndEndsWithItsLastWriter) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const std::string path = "/dev/fd/" + std::to_string(ends[0]);
  const pid_t child = fork();
  if (child == 0) {
    for (int i = 0; i < 3; ++i) {
      sleep(i == 0 ? 0 : 6);  // longer than the deadline, all of them together
      if (write(ends[1], "x", 1) != 1) _exit(1);
    }
    _exit(0);
  }
  close(ends[1]);
  const auto text = read_whole_file(path, 100);
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  ASSERT_TRUE(text.is_ok()) << text.status().text();
  EXPECT_EQ(text.value(), "xxx");
  const auto nothing = read_whole_file(path, 100);
  ASSERT_TRUE(nothing.is_ok()) << nothing.status().text();
  EXPECT_EQ(nothing.value(), "") << "nobody is left who could write";
  close(ends[0]);
}

TEST(Files, WhatIsToLieThereReadyIsARegularFileOrRefused) {
  TempDirectory directory;
  const std::string path = directory.path() + "/pipe", file = directory.path() + "/file";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  for (const std::string& name : {path, directory.path(), std::string("/dev/zero")}) {
    EXPECT_EQ(read_regular_file(name, 100).status().code(), StatusCode::kInvalidArgument) << name;
  }
  EXPECT_EQ(read_regular_file(file, 100).status().code(), StatusCode::kNotFound);
  std::ofstream(file) << "text";
  EXPECT_EQ(read_regular_file(file, 100).value(), "text");
  EXPECT_EQ(read_regular_file(file, 3).status().code(), StatusCode::kIo);
}

// As `--report /dev/stdout > file` has it: what is in the file stays, and more is added.
TEST(Files, AnOpenFileOfThisProcessIsAddedToAndNotReplaced) {
  TempDirectory directory;
  const std::string path = directory.path() + "/out.txt";
  const int out = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_GE(out, 0);
  ASSERT_EQ(write(out, "progress\n", 9), 9);
  for (const char* folder : {"/dev/fd/", "/proc/self/fd/"}) {
    const std::string name = folder + std::to_string(out);
    EXPECT_TRUE(check_writable(name).is_ok());
    EXPECT_TRUE(write_file_atomically(name, "report\n").is_ok());
  }
  close(out);
  EXPECT_EQ(text_of(path), "progress\nreport\nreport\n");
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

// What is renamed into the place of a name would take a device's, a link's, and a job's state's,
// too.
TEST(Files, WhatIsNoFileOfTheUsersIsNotReplaced) {
  TempDirectory directory;
  const std::string pipe = directory.path() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const std::string open_file = directory.path() + "/out.txt";
  const int out = open(open_file.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_GE(out, 0);
  const std::string by_number = "/proc/self/fd/" + std::to_string(out);
  const std::string link_to_open = directory.path() + "/link-to-open";
  std::filesystem::create_symlink(by_number, link_to_open);
  for (const std::string& name :
       {pipe, std::string("/dev/null"), std::string("/dev/../dev/null"), open_file, by_number,
        "/" + by_number, "/proc/../" + by_number, link_to_open}) {
    EXPECT_EQ(replaceable_path(name).status().code(), StatusCode::kInvalidArgument) << name;
  }
  close(out);
}

TEST(Files, WhatIsReplacedIsTheFileBehindTheLinks) {
  TempDirectory directory;
  const std::string file = directory.path() + "/file", link = directory.path() + "/link";
  std::ofstream(file) << "old";
  std::filesystem::create_symlink(file, link);
  const std::string folder = std::filesystem::canonical(directory.path()).string();
  for (const std::string& name : {file, link}) {
    EXPECT_EQ(replaceable_path(name).value(), folder + "/file") << name;
  }
  EXPECT_EQ(replaceable_path(directory.path() + "/./new").value(), folder + "/new");
  EXPECT_FALSE(replaceable_path(directory.path() + "/absent/new").is_ok());
}

// There or not: a file under a name of that form is a job's to everybody else.
TEST(Files, NoFileIsPutUnderTheNameOfAJobsSegment) {
  TempDirectory directory;
  const std::string segment = "/dev/shm/optlease.files-test." + std::to_string(getpid());
  const std::string link = directory.path() + "/link";
  for (const bool exists : {false, true}) {
    if (exists) {
      std::ofstream(segment) << "a state";
      std::filesystem::create_symlink(segment, link);
    }
    for (const std::string& name :
         {segment, link, "/dev/../" + segment, "/dev/shm/." + segment.substr(8)}) {
      if (name == link && !exists) continue;
      EXPECT_EQ(replaceable_path(name).status().code(), StatusCode::kInvalidArgument) << name;
      EXPECT_EQ(check_writable(name).code(), StatusCode::kInvalidArgument) << name;
      EXPECT_EQ(write_file_atomically(name, "x").code(), StatusCode::kInvalidArgument) << name;
    }
    EXPECT_EQ(std::filesystem::exists(segment), exists);
  }
  EXPECT_EQ(text_of(segment), "a state");
  std::filesystem::remove(segment);
}

TEST(Files, RemoveEntriesTakesWhatIsNotKeptAndFollowsNoLink) {
  namespace fs = std::filesystem;
  TempDirectory directory, elsewhere;
  const std::string kept = directory.path() + "/kept";
  std::ofstream(kept) << "stays";
  std::ofstream(elsewhere.path() + "/theirs") << "stays";
  ASSERT_TRUE(fs::create_directories(directory.path() + "/a/b"));
  std::ofstream(directory.path() + "/a/b/c") << "goes";
  fs::create_directory_symlink(elsewhere.path(), directory.path() + "/link");
  const auto is_kept = [&](const std::string& path) { return path == kept; };
  ASSERT_TRUE(remove_entries(directory.path(), is_kept).is_ok());
  EXPECT_EQ(std::distance(fs::directory_iterator(directory.path()), {}), 1);
  EXPECT_EQ(text_of(kept), "stays");
  EXPECT_TRUE(fs::exists(elsewhere.path() + "/theirs"));
  // Nor one in the directory's own place.
  const std::string link = directory.path() + "/link";
  fs::create_directory_symlink(elsewhere.path(), link);
  EXPECT_TRUE(remove_entries(link, is_kept).is_ok());
  EXPECT_TRUE(fs::exists(elsewhere.path() + "/theirs"));
  EXPECT_TRUE(remove_entries(directory.path() + "/absent", is_kept).is_ok());
}

}  // namespace
}  // namespace optlease
