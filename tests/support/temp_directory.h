// A directory of a test's own under /tmp, gone with the object. Short, because socket paths inside
// it must fit 107 bytes.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <stdexcept>
#include <string>

namespace optlease::testing_support {

class TempDirectory {
 public:
  TempDirectory() {
    char pattern[] = "/tmp/optlease-test-XXXXXX";
    if (mkdtemp(pattern) == nullptr) throw std::runtime_error("no temporary directory");
    path_ = pattern;
  }
  ~TempDirectory() {
    std::error_code error;  // a test that failed has more to say than its clean-up
    std::filesystem::remove_all(path_, error);
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace optlease::testing_support
