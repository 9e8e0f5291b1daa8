#include "actors/runtime/exception_status.h"

#include <cerrno>
#include <new>
#include <system_error>

namespace optlease {

Status status_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return {StatusCode::kNoSpace,
            "memory has run out: give this process more (ulimit -a, the container's limit)"};
  }
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  const bool has_errno =
      system != nullptr && (system->code().category() == std::generic_category() ||
                            system->code().category() == std::system_category());
  if (!has_errno) return {StatusCode::kInternal, error.what()};
  switch (system->code().value()) {
    case EAGAIN:
      return {StatusCode::kNoSpace,
              std::string("a thread cannot be started: ") + error.what() +
                  "; more memory or more processes must be allowed (ulimit -d, -v, -u)"};
    case ENOMEM:
    case EMFILE:
    case ENFILE:
    case ENOSPC:
      return {StatusCode::kNoSpace, error.what()};
    default:
      return {StatusCode::kInternal, error.what()};
  }
}

}  // namespace optlease
