// Reference vectors on disk (safetensors with a JSON description under the metadata key "golden")
// run through the CPU kernels. Used by `optlease selftest`. A file about a rule that this build
// does not have is skipped in words; one that cannot be read or lacks a tensor fails.
#pragma once

#include <string>
#include <vector>

#include "kernels/selftest.h"
#include "shm/contract/status.h"

namespace optlease {

struct GoldenResult {
  SelftestResult result;
  bool skipped = false;  // result.detail says why
};

// Each path is a file, or a directory of which every *.safetensors is taken, sorted.
// NotFound where a path does not exist or a directory has no such file.
Result<std::vector<std::string>> golden_files(const std::vector<std::string>& paths);
GoldenResult run_golden_file(const std::string& path);

}  // namespace optlease
