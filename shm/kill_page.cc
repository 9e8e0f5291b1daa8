#include "shm/kill_page.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "shm/monotonic.h"
#include "shm/shared_buffer.h"

namespace optlease {
namespace {

// At most `bytes` - 1 of a name: names are compared as they were cut.
void set_name(char* to, size_t bytes, const std::string& name) {
  std::snprintf(to, bytes, "%s", name.c_str());
}

KillPage* map(int fd) {
  void* at = ::mmap(nullptr, sizeof(KillPage), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return at == MAP_FAILED ? nullptr : static_cast<KillPage*>(at);
}

KillRow* row_of(KillPage* page, const char* point) {
  for (uint32_t i = 0; i < page->row_count && i < kKillRowsMax; ++i) {
    KillRow& row = page->rows[i];
    if (std::strcmp(row.point, point) == 0 &&
        std::strcmp(row.program, program_invocation_short_name) == 0) {
      return &row;
    }
  }
  return nullptr;
}

void strike(KillRow* row) {
  const int signal = row->signal.load();
  row->struck_pid.store(::getpid());
  row->struck_ms.store(static_cast<int64_t>(monotonic_ms()));
  row->struck.fetch_add(1);
  ::kill(::getpid(), signal);
  // The signal is delivered before kill returns to its own process; nothing runs past a SIGKILL.
  if (signal == SIGKILL) std::abort();
}

}  // namespace

Result<KillPage*> make_kill_page(const std::string& path, const std::vector<KillPlace>& places) {
  if (places.size() > kKillRowsMax) {
    return Status(StatusCode::kInvalidArgument,
                  format("%zu places on a page of %u", places.size(), kKillRowsMax));
  }
  const UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  KillPage* page = nullptr;
  if (fd && ::ftruncate(fd.get(), sizeof(KillPage)) == 0) page = map(fd.get());
  if (page == nullptr) {
    return Status(StatusCode::kIo, format("kill page %s: %s", path.c_str(), ::strerror(errno)));
  }
  for (size_t i = 0; i < places.size(); ++i) {
    set_name(page->rows[i].point, kKillNameBytes, places[i].point);
    set_name(page->rows[i].program, kKillNameBytes, places[i].program);
    page->rows[i].signal.store(SIGKILL);
  }
  page->row_count = static_cast<uint32_t>(places.size());
  page->magic = kKillPageMagic;
  return page;
}

KillPage* map_kill_page(const char* path) {
  if (path == nullptr || *path == '\0') return nullptr;
  const UniqueFd fd(::open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  struct stat found {};
  KillPage* page = nullptr;
  if (fd && ::fstat(fd.get(), &found) == 0 && found.st_uid == ::geteuid() &&
      found.st_size == sizeof(KillPage)) {
    page = map(fd.get());
  }
  if (page != nullptr && page->magic == kKillPageMagic) return page;
  std::fprintf(stderr, "OPTLEASE_KILL_PAGE=%s: no kill page of this version; ignored\n", path);
  if (page != nullptr) ::munmap(page, sizeof(KillPage));
  return nullptr;
}

void visit_kill_page(KillPage* page, const char* point) {
  KillRow* row = row_of(page, point);
  if (row == nullptr) {
    if (page->strays.fetch_add(1) == 0) {
      std::snprintf(page->stray, sizeof page->stray, "%s %s", program_invocation_short_name, point);
    }
    return;
  }
  row->visits.fetch_add(1);
  // Ranks visit at once: one of them brings it to 0, and those after that leave it there.
  int64_t left = row->countdown.load();
  while (left > 0 && !row->countdown.compare_exchange_weak(left, left - 1)) {
  }
  if (left == 1) strike(row);
}

}  // namespace optlease
