// Repeats a system call that a signal interrupted. Header only.
#pragma once

#include <errno.h>

namespace optlease {

template <class Call>
auto retry_eintr(Call call) {
  auto result = call();
  while (result == -1 && errno == EINTR) result = call();
  return result;
}

}  // namespace optlease
