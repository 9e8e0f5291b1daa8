// Lists and removes a directory tree of this user without ever following a symbolic link or leaving
// its file system. Used by leftovers for run directories; it knows nothing of jobs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "shm/contract/status.h"
#include "shm/shared_buffer.h"

namespace optlease {

struct TreeEntry {
  std::string path;
  uint64_t bytes = 0;
};

// Opens `path` as a directory of this user; Permission for a symlink or another owner, NotFound.
Result<UniqueFd> open_own_directory(int parent, const std::string& path);

// Names in an open directory, "." and ".." left out, ascending.
Result<std::vector<std::string>> names_in(int directory);

// Appends everything under `name` in `parent`, deepest first, the directory itself last; removes it
// too where `remove`. Entries of other users and other file systems are left and are an error.
// `shown` is the path to print.
Status walk_tree(int parent, const std::string& name, const std::string& shown, bool remove,
                 std::vector<TreeEntry>* entries);

}  // namespace optlease
