// Descriptors 0, 1 and 2 that a caller closed must not become the numbers of a segment, a shared
// buffer or a socket: words written to descriptor 1 or 2 would go into it. Called first by every
// program and by the client library before it attaches. Opens nothing where all three are open.
#pragma once

#include <fcntl.h>
#include <unistd.h>

namespace optlease {

inline void reserve_standard_descriptors() {
  int fd = 0;
  // Without close-on-exec, as such descriptors are: a child must not find them closed again.
  while ((fd = ::open("/dev/null", O_RDWR)) >= 0 && fd <= STDERR_FILENO) continue;
  if (fd > STDERR_FILENO) ::close(fd);
}

}  // namespace optlease
