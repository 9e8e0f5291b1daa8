// Which bytes a job's name may have: it is part of segments' and sockets' names, and is shown.
#pragma once

namespace optlease {

constexpr bool is_job_name_byte(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-';
}

}  // namespace optlease
