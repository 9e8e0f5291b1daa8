// How structs of the C interface cross it: each starts with struct_bytes, the size that the caller
// was compiled with, so that a newer library serves older programs and the reverse is refused in
// words rather than misread. Used by optlease_abi.cc alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "shm/contract/status.h"

namespace optlease {

// The caller's size of *theirs. Refuses null and sizes below the first version's.
template <class T>
Result<uint32_t> caller_bytes(const T* theirs, uint32_t first_version_bytes, const char* name) {
  if (theirs == nullptr) return Status{StatusCode::kInvalidArgument, format("%s is NULL", name)};
  uint32_t bytes = 0;
  std::memcpy(&bytes, theirs, sizeof bytes);
  if (bytes < first_version_bytes)
    return Status{StatusCode::kInvalidArgument,
                  format("%s.struct_bytes is %u, at least %u are needed: set it to sizeof(%s)",
                         name, bytes, first_version_bytes, name)};
  return bytes;
}

// Reads a caller's struct; fields that the caller does not know become zero. A caller that sets
// fields which this library does not know is refused: they would be silently ignored otherwise.
template <class T>
Status copy_in(const T* theirs, uint32_t first_version_bytes, const char* name, T* ours) {
  const auto bytes = caller_bytes(theirs, first_version_bytes, name);
  if (!bytes) return bytes.status();
  *ours = T{};
  std::memcpy(ours, theirs, std::min<size_t>(bytes.value(), sizeof(T)));
  const auto* tail = reinterpret_cast<const unsigned char*>(theirs) + sizeof(T);
  for (uint32_t i = sizeof(T); i < bytes.value(); ++i, ++tail)
    if (*tail != 0)
      return {
          StatusCode::kUnsupported,
          format("%s has a field set at byte %u that this library (%zu bytes) does not know: use a "
                 "newer liboptlease_client",
                 name, i, sizeof(T))};
  return Status::ok();
}

// Writes into a caller's struct as much as the caller knows, and never its struct_bytes.
template <class T>
Status copy_out(const T& ours, uint32_t first_version_bytes, const char* name, T* theirs) {
  const auto bytes = caller_bytes(theirs, first_version_bytes, name);
  if (!bytes) return bytes.status();
  std::memcpy(reinterpret_cast<char*>(theirs) + sizeof(uint32_t),
              reinterpret_cast<const char*>(&ours) + sizeof(uint32_t),
              std::min<size_t>(bytes.value(), sizeof(T)) - sizeof(uint32_t));
  return Status::ok();
}

}  // namespace optlease
