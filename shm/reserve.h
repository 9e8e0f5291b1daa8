// Takes the space of a file before anybody maps it, so that a full file system is an error value
// and never a SIGBUS. Used for segments and memfds; it maps nothing.
#pragma once

#include <cstdint>
#include <string>

#include "shm/contract/status.h"
#include "shm/huge_pages.h"

namespace optlease {

// Gives `fd` (an empty file) `bytes` of reserved, zero-filled space, in 2 MiB pages as far as the
// kernel has them, and says in `*pages` how far, with the last refusal if there was one. `what`
// names it in the error: NoSpace with needed, free and the place to look.
Status reserve_space(int fd, uint64_t bytes, const std::string& what, HugePages* pages);

// Whether the next piece would meet the refusal (an errno), too: a kernel without large pages, a
// file that cannot have them, or no memory left in one piece. All else, such as a page that was in
// somebody's hands at that moment (EAGAIN), is one piece's own trouble.
bool ends_huge_pages(int refusal);

// Bytes free on the file system that holds `fd`.
Result<uint64_t> free_bytes_of(int fd);

}  // namespace optlease
