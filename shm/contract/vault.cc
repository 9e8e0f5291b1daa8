#include "shm/contract/vault.h"

#include <algorithm>
#include <cstring>

namespace optlease {
namespace {

const char* why_invalid_key(const char (&key)[kVaultKeyBytes]) {
  const void* end = std::memchr(key, '\0', sizeof key);
  if (end == nullptr) return "the key has no end";
  const size_t length = static_cast<size_t>(static_cast<const char*>(end) - key);
  if (length == 0) return "the key is empty";
  for (size_t i = 0; i < length; ++i) {
    if (key[i] <= ' ' || key[i] > '~') return "the key has a byte that is no printable ASCII";
  }
  if (!std::all_of(key + length, key + sizeof key, [](char c) { return c == '\0'; })) {
    return "the key is not zero-filled";
  }
  return nullptr;
}

}  // namespace

const char* why_invalid(const VaultMessage& m) {
  if (m.magic != kVaultMagic) return "the magic number is not the vault's";
  if (m.version != kVaultVersion) return "another version of the vault protocol";
  if (m.reserved_zero != 0 || m.reserved_zero_2 != 0) return "a reserved field is not zero";
  if (m.bytes > kVaultBufferBytesMax) return "the buffer is larger than 16 TiB";
  if (m.status > static_cast<uint16_t>(StatusCode::kInternal)) return "the status is unknown";
  if (const char* why = why_invalid_key(m.key)) return why;
  switch (static_cast<VaultOp>(m.op)) {
    case VaultOp::kPut:
      return m.status != 0 ? "a request has a status" : nullptr;
    case VaultOp::kGet:
      if (m.status != 0) return "a request has a status";
      return m.bytes != 0 ? "a get request has a size" : nullptr;
    case VaultOp::kPutReply:
      return m.bytes != 0 ? "a put reply has a size" : nullptr;
    case VaultOp::kGetReply:
      return m.status != 0 && m.bytes != 0 ? "a refused get has a size" : nullptr;
  }
  return "the operation is unknown";
}

}  // namespace optlease
