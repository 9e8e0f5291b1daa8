// Small file helpers of the launcher: whole-file reads and atomic writes. No policy.
#pragma once

#include <functional>
#include <string>

#include "shm/contract/status.h"

namespace optlease {

// The file appears whole or not at all: a temporary name beside `path`, synced, then renamed. A
// device, a pipe and a file that this process has open (/dev/stdout) are written into; Timeout
// where nobody reads it.
Status write_file_atomically(const std::string& path, const std::string& text);
// Ok where write_file_atomically(path) can be expected to work: asked before work that would be
// lost.
Status check_writable(const std::string& path);
// The same for a file that somebody else puts in place as a whole, and where: the path behind every
// link. No device, no pipe, no file that this process has open.
Result<std::string> replaceable_path(const std::string& path);
// At most `bytes_max`; Io where it is larger, NotFound where it is missing. A pipe is read until
// its last writer is gone; Timeout where nothing comes for 10 s.
Result<std::string> read_whole_file(const std::string& path, uint64_t bytes_max);
// The same of a file that is to lie there ready: whatever is no regular file is InvalidArgument at
// once.
Result<std::string> read_regular_file(const std::string& path, uint64_t bytes_max);
// Removes every entry of a directory but those whose path is `kept`, folders with what is in them.
// Never follows a symlink, nor one in the directory's place; a directory that is not there is
// empty.
Status remove_entries(const std::string& directory,
                      const std::function<bool(const std::string& path)>& kept);

}  // namespace optlease
