#include "actors/runtime/death_page.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>
#include <new>
#include <system_error>
#include <utility>

#include "shm/contract/limits.h"

namespace optlease {
namespace {

constexpr uint64_t kMagic = 0x314547415044'4145ull;  // tells a death page from any other descriptor
constexpr long kLookEveryNs = 500'000'000;           // a wake that was missed costs this much

struct Page {
  uint64_t magic;
  pthread_mutex_t mutex;
  LifeFigures figures;
};
static_assert(sizeof(Page) <= kPageBytes);

Page* page_in(const MappedBuffer& memory) { return static_cast<Page*>(memory.data()); }

// The mutex's futex. Its bits are the kernel's (robust futexes): the holder's thread id, whether
// somebody waits, whether the holder died. The launcher looks at this word alone and never locks:
// a mutex that a confused child has scribbled on would lead the C library through its pointers.
int* word_of(Page* page) { return &page->mutex.__data.__lock; }

uint32_t load(Page* page) {
  return static_cast<uint32_t>(std::atomic_ref<int>(*word_of(page)).load());
}

// True where the word was `seen`, and says now that somebody waits.
bool mark_waiter(Page* page, uint32_t seen) {
  int expected = static_cast<int>(seen);
  return std::atomic_ref<int>(*word_of(page))
      .compare_exchange_strong(expected, static_cast<int>(seen | FUTEX_WAITERS));
}

// Until the word is another than `seen`, a wake, or the time: the caller looks again.
void sleep_while(Page* page, uint32_t seen) {
  const timespec most{0, kLookEveryNs};
  (void)syscall(SYS_futex, word_of(page), FUTEX_WAIT, seen, &most, nullptr, 0);
}

void wake(Page* page) {
  (void)syscall(SYS_futex, word_of(page), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

Status lay_out(Page* page) {
  pthread_mutexattr_t attributes;
  int error = pthread_mutexattr_init(&attributes);
  if (error == 0) error = pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  if (error == 0) error = pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  if (error == 0) error = pthread_mutex_init(&page->mutex, &attributes);
  (void)pthread_mutexattr_destroy(&attributes);
  if (error != 0) {
    return {StatusCode::kInternal,
            format("no robust mutex for a death page: %s", std::strerror(error))};
  }
  new (&page->figures) LifeFigures();
  page->magic = kMagic;
  return Status::ok();
}

}  // namespace

Result<DeathPageHold> DeathPageHold::take(int fd) {
  if (fd < 0) return DeathPageHold();
  const UniqueFd owned(fd);
  Result<MappedBuffer> memory = MappedBuffer::map(fd, kPageBytes);
  if (!memory || page_in(memory.value())->magic != kMagic) {
    return Status(StatusCode::kInvalidArgument,
                  format("--death-page-fd %d is no death page; only the launcher gives it", fd));
  }
  // A process that this one forks must have no part in it.
  if (madvise(memory.value().data(), kPageBytes, MADV_DONTFORK) != 0) {
    return Status(StatusCode::kIo, format("madvise of the death page: %s", std::strerror(errno)));
  }
  Page* page = page_in(memory.value());
  const int error = pthread_mutex_trylock(&page->mutex);
  if (error != 0) {
    if (error == EOWNERDEAD) (void)pthread_mutex_unlock(&page->mutex);
    const auto code = error == EOWNERDEAD ? StatusCode::kPeerLost : StatusCode::kBusy;
    return Status(code, format("the death page %d is another process's: %s; each child has its own",
                               fd, std::strerror(error)));
  }
  wake(page);  // the watch sleeps until somebody holds it
  return DeathPageHold(std::move(memory).value());
}

DeathPageHold::~DeathPageHold() {
  if (held()) (void)pthread_mutex_unlock(&page_in(page_)->mutex);
}

Result<std::unique_ptr<DeathWatch>> DeathWatch::make() {
  Result<UniqueFd> fd = create_memfd("optlease-death-page", kPageBytes);
  if (!fd) return fd.status();
  Result<MappedBuffer> memory = MappedBuffer::map(fd.value().get(), kPageBytes);
  if (!memory) return memory.status();
  OPTLEASE_TRY(lay_out(page_in(memory.value())));
  UniqueFd event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) {
    return Status(StatusCode::kNoSpace,
                  format("eventfd for a death page: %s", std::strerror(errno)));
  }
  try {
    return std::unique_ptr<DeathWatch>(
        new DeathWatch(std::move(fd).value(), std::move(memory).value(), std::move(event)));
  } catch (const std::system_error& error) {
    return Status(
        StatusCode::kNoSpace,
        format("the thread that watches a death page cannot be started: %s", error.what()));
  }
}

DeathWatch::DeathWatch(UniqueFd child_fd, MappedBuffer page, UniqueFd event)
    : child_fd_(std::move(child_fd)),
      page_(std::move(page)),
      event_(std::move(event)),
      thread_([this] { watch(); }) {}

DeathWatch::~DeathWatch() {
  stopping_ = true;
  // A wake before the thread sleeps is lost: it is repeated.
  while (!ended_) {
    wake(page_in(page_));
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  thread_.join();
}

LifeFigures* DeathPageHold::figures() const { return held() ? &page_in(page_)->figures : nullptr; }

LifeTotals DeathWatch::totals() const { return page_in(page_)->figures.read(); }

bool DeathWatch::dead() const { return (load(page_in(page_)) & FUTEX_OWNER_DIED) != 0; }

// The kernel wakes one waiter of a dead holder's mutex, and only where the word says that there is
// one; so does the C library where a holder lets go.
void DeathWatch::watch() {
  Page* page = page_in(page_);
  bool was_held = false;
  while (!stopping_) {
    const uint32_t seen = load(page);
    if ((seen & FUTEX_OWNER_DIED) != 0) {
      const uint64_t one = 1;
      (void)!write(event_.get(), &one, sizeof one);  // a fresh counter has room for it
      break;
    }
    if ((seen & FUTEX_TID_MASK) == 0) {
      if (was_held) break;  // let go in order
      sleep_while(page, seen);
      continue;
    }
    was_held = true;
    if ((seen & FUTEX_WAITERS) != 0 || mark_waiter(page, seen)) {
      sleep_while(page, seen | FUTEX_WAITERS);
    }
  }
  ended_ = true;
}

}  // namespace optlease
